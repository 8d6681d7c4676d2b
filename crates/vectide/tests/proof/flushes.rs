//! Flushes that fail, stall or are overtaken, and a log that is held back.

use crate::support::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use vectide::clock::ManualClock;
use vectide::store::fault_fs::{FaultFs, Phase};
use vectide::store::sim::SimFs;
use vectide::store::{Fs, LocalStore};
use vectide::{ErrorKind, Options, Table, Vectide};

async fn open_with(fs: Arc<dyn Fs>, options: Options, clock: Arc<ManualClock>) -> (Vectide, Table) {
    let store = LocalStore::open(fs, "/db").expect("opens");
    let builder = Vectide::builder("sim").store(Arc::new(store)).options(options).clock(clock);
    let db = builder.open().await.expect("opens");
    let table = match db.open_table("t").await {
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table("t", schema()).await.expect("creates"),
        other => other.expect("opens"),
    };
    (db, table)
}

async fn open(fs: Arc<dyn Fs>, options: Options) -> (Vectide, Table) {
    open_with(fs, options, Arc::default()).await
}

/// Makes calls on paths that contain `part` fail for as long as `is_on`.
fn fail_on(fs: &FaultFs, part: &'static str) -> Arc<AtomicBool> {
    let is_on = Arc::new(AtomicBool::new(true));
    let on = Arc::clone(&is_on);
    fs.set_hook(Arc::new(move |point| {
        let hit =
            point.phase == Phase::Before && point.path.to_string_lossy().contains(part) && on.load(Ordering::SeqCst);
        if hit { Err(std::io::Error::other("told to fail")) } else { Ok(()) }
    }));
    is_on
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_cannot_succeed_is_said_to_be_degraded_and_why_and_since_when() {
    let fs = FaultFs::new(SimFs::new().shared());
    let clock = Arc::new(ManualClock::default());
    let (_db, table) = open_with(fs.shared(), Options::default(), Arc::clone(&clock)).await;
    let failing = fail_on(&fs, "/segments/");
    table.upsert(numbered(0..100, "a")).await.expect("writes go on");
    let error = table.flush().await.expect_err("fails");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    clock.advance(Duration::from_secs(90));
    let health = serde_json::to_value(table.stats().health).expect("serialises");
    assert_eq!(health["status"], "degraded", "{health}");
    assert!(health["reason"].as_str().expect("a reason").contains("told to fail"), "{health}");
    assert!(health["for_ms"].as_u64().expect("since when") >= 90_000, "{health}");
    assert!(table.stats().flush.failed >= 1);
    table.upsert(numbered(100..200, "a")).await.expect("writes go on");
    assert_eq!(ids(&table.search(&[150.0; DIM]).k(1).await.expect("reads go on")), [150]);
    failing.store(false, Ordering::SeqCst);
    until("healthy again", || table.stats().segments.count > 0 && table.stats().sealed.count == 0).await;
    assert_eq!(serde_json::to_value(table.stats().health).expect("serialises")["status"], "ok");
    assert_eq!(table.count().await.expect("counts"), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_flush_never_overtakes_one_that_fails() {
    let sim = SimFs::new();
    let fs = FaultFs::new(sim.shared());
    let (db, table) = open(fs.shared(), Options { memtable_rows: 50, ..Options::default() }).await;
    // Only the first segment's rows cannot be written: those behind it could.
    fail_on(&fs, "/segments/1-1/");
    for chunk in 0..4 {
        table.upsert(numbered(chunk * 50..(chunk + 1) * 50, "a")).await.expect("writes");
    }
    table.delete(vec![3, 60]).await.expect("deletes");
    until("the first flush was tried", || table.stats().flush.failed >= 1).await;
    let killed = sim.kill();
    fs.stop_at(0);
    drop((db, table));
    for disk in [killed.clone(), killed.power_cut(0), killed.power_cut(1)] {
        let (_db, table) = open(disk.shared(), Options::default()).await;
        let expected: Vec<i64> = (0..200).filter(|id| *id != 3 && *id != 60).collect();
        assert_eq!(all_rows(&table).await.iter().map(|row| row.0).collect::<Vec<_>>(), expected);
        table.verify().await.expect("nothing is damaged");
    }
}

/// Holds syncs of the log back.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut shut = self.is_shut.lock().expect("no panic");
        while *shut {
            shut = self.opened.wait(shut).expect("no panic");
        }
    }

    fn set(&self, shut: bool) {
        *self.is_shut.lock().expect("no panic") = shut;
        self.opened.notify_all();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_does_not_return_because_an_older_memtable_was_flushed() {
    let fs = FaultFs::new(SimFs::new().shared());
    let (_db, table) = open(fs.shared(), Options { memtable_rows: 50, ..Options::default() }).await;
    table.upsert(numbered(0..50, "a")).await.expect("writes");
    let gate = Arc::new(Gate::default());
    let at_log = Arc::clone(&gate);
    fs.set_hook(Arc::new(move |point| {
        let is_log = point.path.extension().is_some_and(|e| e == "log");
        if point.op == "fs.sync_data" && point.phase == Phase::Before && is_log {
            at_log.pass();
        }
        Ok(())
    }));
    gate.set(true);
    let writing = tokio::spawn({
        let table = table.clone();
        async move { table.upsert(numbered(50..51, "b")).await }
    });
    until("the older memtable is a segment", || table.stats().segments.count == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writing.is_finished(), "acknowledged before the log had it");
    assert_eq!(table.count().await.expect("counts"), 50, "not visible either");
    assert_eq!(table.get(vec![50]).await.expect("gets").num_rows(), 0);
    gate.set(false);
    writing.await.expect("joins").expect("acknowledged");
    assert_eq!(table.count().await.expect("counts"), 51);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_faster_than_the_disk_stay_within_the_budget_and_are_never_refused() {
    let fs = FaultFs::new(SimFs::new().shared());
    let options = Options { memory_bytes: 1 << 20, memtable_bytes: 256 << 10, ..Options::default() };
    let (_db, table) = open_with(fs.shared(), options, Arc::default()).await;
    fs.set_hook(Arc::new(|point| {
        if point.phase == Phase::Before && point.path.to_string_lossy().contains("/segments/") {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }));
    let state = "y".repeat(500);
    let most = Arc::new(AtomicU64::new(0));
    for chunk in 0..120 {
        table.upsert(numbered(chunk * 40..(chunk + 1) * 40, &state)).await.expect("slowed, not refused");
        let stats = table.stats();
        let memtable = stats.memtable.rows_bytes + stats.memtable.graph_bytes + stats.memtable.key_bytes;
        most.fetch_max(memtable + stats.sealed.bytes, Ordering::SeqCst);
    }
    let stats = table.stats();
    assert_eq!((stats.live_rows, stats.stalls.refused), (4_800, 0));
    assert!(most.load(Ordering::SeqCst) < 2 << 20, "{most:?} bytes under a budget of 1 MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_row_costs_one_row_and_memtables_seal_on_rows_and_on_bytes() {
    let dir: PathBuf = "/db".into();
    let fs = SimFs::new();
    assert!(fs.read_dir(&dir).is_err());
    let options = Options { memtable_rows: 5_000, memtable_bytes: 2 << 20, ..Options::default() };
    let (_db, table) = open(fs.shared(), options).await;
    table.upsert(numbered(0..1, "a")).await.expect("writes");
    let one = table.stats().memtable;
    let bytes = one.rows_bytes + one.graph_bytes + one.key_bytes + one.bookkeeping_bytes;
    assert!(bytes < 256 << 10, "{bytes} bytes for one row: {one:?}");
    for chunk in 0..12 {
        table.upsert(numbered(chunk * 1_000..(chunk + 1) * 1_000, "a")).await.expect("writes");
    }
    until("sealed on rows", || table.stats().segments.count >= 2).await;
    let state = "z".repeat(4_000);
    table.flush().await.expect("flushes");
    let before = table.stats().segments.count;
    for chunk in 0..8 {
        table.upsert(numbered(chunk * 100..(chunk + 1) * 100, &state)).await.expect("writes");
    }
    until("sealed on bytes", || table.stats().segments.count > before).await;
    assert_eq!(table.count().await.expect("counts"), 12_000);
}
