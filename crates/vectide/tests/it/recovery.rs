//! What was acknowledged is there after a close, a drop and a second open; the log is read, never rewritten.

use crate::support::*;
use std::collections::BTreeMap;
use std::path::Path;
use vectide::{ErrorKind, Options, Table, Vectide, keys};

async fn open(path: &Path) -> (Vectide, Table) {
    open_with(path, Options::default()).await
}

async fn open_with(path: &Path, options: Options) -> (Vectide, Table) {
    let db = Vectide::open(path.to_str().expect("utf-8"), options).await.expect("opens");
    let table = match db.open_table("t").await {
        Ok(table) => table,
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table("t", schema()).await.expect("creates"),
        Err(error) => panic!("{error:?}"),
    };
    (db, table)
}

/// Files below a folder with their lengths.
fn files(path: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("lists") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(path).expect("below").to_string_lossy().into_owned();
                found.insert(name, entry.metadata().expect("metadata").len());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_survive_a_close_and_a_drop_without_one() {
    let dir = tempfile::tempdir().expect("a folder");
    for round in 0..4i64 {
        let (db, table) = open(dir.path()).await;
        assert_eq!(table.count().await.expect("counts"), round as u64 * 100);
        table.upsert(numbered(round * 100..(round + 1) * 100, "a")).await.expect("writes");
        if round % 2 == 0 {
            db.close().await.expect("closes");
        }
    }
    let (_db, table) = open(dir.path()).await;
    assert_eq!(all_rows(&table).await.len(), 400);
    assert_eq!(ids(&table.search(&[250.0; DIM]).k(1).await.expect("searches")), [250]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_and_updates_survive_in_every_order_of_flush_and_reopen() {
    for flushes in 0..8u32 {
        let dir = tempfile::tempdir().expect("a folder");
        for step in 0..3u32 {
            let (_db, table) = open(dir.path()).await;
            match step {
                0 => drop(table.upsert(numbered(0..200, "a")).await.expect("writes")),
                1 => drop(table.delete((0..50).collect::<Vec<i64>>()).await.expect("deletes")),
                _ => drop(table.upsert(numbered(40..60, "b")).await.expect("writes")),
            }
            if flushes & (1 << step) != 0 {
                table.flush().await.expect("flushes");
            }
        }
        for _ in 0..2 {
            let (_db, table) = open(dir.path()).await;
            let rows = all_rows(&table).await;
            let expected: Vec<(i64, String)> =
                (40..200).map(|id| (id, if id < 60 { "b" } else { "a" }.to_owned())).collect();
            assert_eq!(rows, expected, "flush pattern {flushes:03b}");
            assert_eq!(table.count().await.expect("counts"), 160);
            assert_eq!(ids(&table.search(&[0.0; DIM]).k(2).await.expect("searches")), [40, 41]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reopening_three_times_without_writing_changes_neither_log_nor_rows() {
    let dir = tempfile::tempdir().expect("a folder");
    {
        let (_db, table) = open(dir.path()).await;
        table.upsert(numbered(0..100, "a")).await.expect("writes");
    }
    // The first handle's log is cut to what it holds as it goes; the lock tells when it has gone.
    drop(open(dir.path()).await);
    let log = |all: BTreeMap<String, u64>| {
        all.into_iter().filter(|(name, _)| name.contains("/wal/")).collect::<BTreeMap<_, _>>()
    };
    let before = log(files(dir.path()));
    assert!(before.keys().any(|name| name.ends_with(".log")), "{before:?}");
    for _ in 0..3 {
        let (_db, table) = open(dir.path()).await;
        assert_eq!(table.count().await.expect("counts"), 100);
    }
    assert_eq!(log(files(dir.path())), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_open_is_a_conflict_that_names_the_pid() {
    let dir = tempfile::tempdir().expect("a folder");
    let (db, table) = open(dir.path()).await;
    let error = Vectide::open(dir.path().to_str().expect("utf-8"), Options::default()).await.expect_err("locked");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains(&std::process::id().to_string()), "{error}");
    db.close().await.expect("closes");
    assert_eq!(table.upsert(numbered(0..1, "a")).await.expect_err("closed").kind(), ErrorKind::Closed);
    drop((db, table));
    open(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_log_is_trimmed_and_its_files_stay_few() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_db, table) = open_with(dir.path(), Options { memtable_rows: 2_000, ..Options::default() }).await;
    for id in 0..10_000i64 {
        table.upsert(numbered([id % 3_000], "a")).await.expect("writes");
    }
    table.flush().await.expect("flushes");
    let all = files(dir.path());
    let logs = all.keys().filter(|name| name.ends_with(".log")).count();
    assert!(logs <= 2, "{logs} log files after a flush");
    assert!(all.len() < 100, "{} files for 10,000 one-row writes", all.len());
    assert_eq!(table.count().await.expect("counts"), 3_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_table_beside_a_busy_one_is_flushed_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options { flush_interval_ms: 100, ..Options::default() };
    let (db, idle) = open_with(dir.path(), options).await;
    idle.upsert(numbered(0..10, "a")).await.expect("writes");
    let busy = db.create_table("busy", schema()).await.expect("creates");
    while idle.stats().segments.count == 0 {
        busy.upsert(numbered(0..10, "a")).await.expect("writes");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(idle.stats().memtable.rows, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_outgrows_memory_is_flushed_on_the_way() {
    let dir = tempfile::tempdir().expect("a folder");
    {
        let (_db, table) = open(dir.path()).await;
        for chunk in 0..20i64 {
            table.upsert(numbered(chunk * 100..(chunk + 1) * 100, "a")).await.expect("writes");
        }
        table.delete(keys![5, 500, 1_500]).await.expect("deletes");
    }
    for round in 0..2 {
        let (_db, table) = open_with(dir.path(), Options { memtable_rows: 300, ..Options::default() }).await;
        assert_eq!(table.count().await.expect("counts"), 1_997);
        let flushes = table.stats().recovery.flushes;
        assert!(round == 1 || flushes >= 5, "{flushes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_an_earlier_writer_is_durable_or_lost_never_a_lie() {
    let dir = tempfile::tempdir().expect("a folder");
    let token = {
        let (_db, table) = open(dir.path()).await;
        table.upsert(numbered(0..10, "a")).await.expect("writes").token
    };
    let (_db, table) = open(dir.path()).await;
    table.wait_durable(token).await.expect("was durable");
    let [shard, epoch, seq] =
        token.to_string().split('.').map(|p| p.parse::<u64>().expect("a number")).collect::<Vec<_>>()[..]
    else {
        panic!("three parts")
    };
    let beyond = format!("{shard}.{epoch}.{}", seq + 1).parse().expect("a token");
    assert_eq!(table.wait_durable(beyond).await.expect_err("never written").kind(), ErrorKind::Lost);
    let future = format!("{shard}.{}.{seq}", epoch + 9).parse().expect("a token");
    assert_eq!(table.wait_durable(future).await.expect_err("no such writer").kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_gone_and_its_name_free() {
    let dir = tempfile::tempdir().expect("a folder");
    let (db, table) = open(dir.path()).await;
    table.upsert(numbered(0..100, "a")).await.expect("writes");
    table.flush().await.expect("flushes");
    db.drop_table("t").await.expect("drops");
    assert_eq!(db.list_tables().await.expect("lists"), []);
    assert!(files(dir.path()).keys().all(|name| !name.starts_with("tables/")), "{:?}", files(dir.path()));
    assert_eq!(table.upsert(numbered(0..1, "a")).await.expect_err("closed").kind(), ErrorKind::Closed);
    let again = db.create_table("t", schema()).await.expect("free");
    assert_eq!(again.count().await.expect("counts"), 0);
}
