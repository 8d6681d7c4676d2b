//! The log of versions over stores that fail, stall and lose power: no edit twice, none lost, none behind a fence.

use super::*;
use crate::ids::Seq;
use crate::manifest::{EpochEnd, ShardManifest};
use crate::store::fault::{FaultOptions, FaultStore};
use crate::store::fault_fs::{FaultFs, Phase};
use crate::store::sim::{SimFs, SyncKind};
use crate::store::{LocalStore, ObjectBackend, RetryOptions, RetryStore};
use object_store::memory::InMemory;

const DIR: &str = "tables/x/0/manifest/";

fn faulty(options: FaultOptions) -> FaultStore {
    FaultStore::new(Arc::new(ObjectBackend::new(Arc::new(InMemory::new()))), options)
}

fn log(store: Arc<dyn Store>, writer: u64) -> Versioned<ShardManifest> {
    Versioned::new(store, DIR, writer)
}

fn add_segment(shard: &ShardManifest) -> Result<ShardManifest> {
    let mut next = shard.clone();
    next.next_segment += 1;
    Ok(next)
}

async fn newest(store: Arc<dyn Store>) -> Arc<ShardManifest> {
    log(store, 99).load_latest().await.expect("loaded").expect("there")
}

#[tokio::test]
async fn a_version_that_was_put_although_it_looked_failed_counts_once() {
    let faults = faulty(FaultOptions::default());
    let log = log(faults.shared(), 1);
    log.create(ShardManifest::empty()).await.expect("created");
    faults.fail_next("store.put_if_absent", "", Phase::After, 2);
    let committed = log.commit(Epoch(0), add_segment).await.expect("settled by reading it back");
    assert_eq!((committed.version, committed.next_segment), (2, 2));
    assert_eq!(newest(faults.shared()).await, committed);
}

#[tokio::test]
async fn two_writers_that_say_the_same_do_not_take_each_other_for_themselves() {
    let faults = faulty(FaultOptions::default());
    let (a, b) = (log(faults.shared(), 1), log(faults.shared(), 2));
    a.create(ShardManifest::empty()).await.expect("created");
    b.load_latest().await.expect("loaded");
    a.commit(Epoch(0), add_segment).await.expect("committed");
    // B's edit of version 1 has the very content of A's version 2, and its first attempt fails.
    faults.fail_next("store.put_if_absent", "", Phase::Before, 1);
    let committed = b.commit(Epoch(0), add_segment).await.expect("committed");
    assert_eq!((committed.version, committed.next_segment), (3, 3));
}

#[tokio::test]
async fn an_unknown_outcome_is_an_error_and_the_next_commit_builds_on_what_is_there() {
    let faults = faulty(FaultOptions::default());
    let log = log(faults.shared(), 1);
    log.create(ShardManifest::empty()).await.expect("created");
    faults.fail_next("store.put_if_absent", "", Phase::After, u64::from(MAX_UNKNOWN));
    let error = log.commit(Epoch(0), add_segment).await.expect_err("never answered");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("outcome unknown"), "{error}");
    let next = log.commit(Epoch(0), add_segment).await.expect("committed");
    assert_eq!((next.version, next.next_segment), (3, 3), "the first one was there after all");
}

#[tokio::test(start_paused = true)]
async fn over_a_bad_line_no_edit_is_lost_or_made_twice() {
    for seed in 0..12 {
        let options =
            FaultOptions { seed, max_delay_us: 300, error_before: 100, error_after: 150, late: 50, stale_list: 500 };
        let faults = faulty(options);
        let retry = RetryOptions { max_attempts: 60, ..RetryOptions::default() };
        let store: Arc<dyn Store> = Arc::new(RetryStore::new(faults.shared(), retry, seed).expect("valid"));
        log(store.clone(), 0).create(ShardManifest::empty()).await.expect("created");
        let committers = (1..=6).map(|writer| {
            let log = log(store.clone(), writer);
            tokio::spawn(async move {
                for _ in 0..5 {
                    log.commit(Epoch(0), add_segment).await.expect("committed");
                }
            })
        });
        for committer in committers.collect::<Vec<_>>() {
            committer.await.expect("no panic");
        }
        faults.settle().await;
        let newest = newest(store).await;
        assert_eq!((newest.version, newest.next_segment), (31, 31), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_behind_a_takeover_whenever_its_writer_wakes_up() {
    for seed in 0..30 {
        let options = FaultOptions { seed, max_delay_us: 400, error_after: 100, late: 100, ..FaultOptions::default() };
        let memory: Arc<dyn Store> = Arc::new(ObjectBackend::new(Arc::new(InMemory::new())));
        let faults = FaultStore::new(memory.clone(), options);
        log(memory.clone(), 0).create(ShardManifest::empty()).await.expect("created");
        let writers = (1..=4u64).map(|writer| {
            let log = log(faults.shared(), writer);
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for _ in 0..3 {
                    let Ok(raised) = log.raise_epoch().await else { continue };
                    // Each commit leaves its version number in the history that the next ones carry on.
                    while let Ok(done) = log.commit(raised.epoch, add_segment).await {
                        acknowledged.push((raised.epoch, done.version));
                        if acknowledged.len() > 40 {
                            break;
                        }
                    }
                }
                acknowledged
            })
        });
        let mut acknowledged = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            acknowledged.extend(writer.await.expect("no panic"));
        }
        faults.settle().await;
        assert!(acknowledged.len() > 10, "seed {seed}: {acknowledged:?}");
        let log = log(memory, 99);
        let mut history = Vec::new();
        for version in log.versions().await.expect("listed") {
            history.push(log.load(version).await.expect("loaded"));
        }
        assert!(history.is_sorted_by_key(|m| m.epoch), "seed {seed}: an epoch came back");
        for (epoch, version) in acknowledged {
            assert_eq!(history[version as usize - 1].epoch, epoch, "seed {seed}: version {version} is another's");
        }
    }
}

#[tokio::test]
async fn a_commit_finds_versions_that_a_stale_listing_lacks() {
    let faults = faulty(FaultOptions { stale_list: 1000, ..FaultOptions::default() });
    let writer = log(faults.shared(), 1);
    writer.create(ShardManifest::empty()).await.expect("created");
    for _ in 0..6 {
        writer.commit(Epoch(0), add_segment).await.expect("committed");
    }
    for reader in 2..10 {
        let found = log(faults.shared(), reader).load_latest().await.expect("loaded").expect("there");
        assert_eq!(found.version, 7);
    }
}

/// The local store of a disk, as a process that starts on it sees it.
fn restarted(fs: &SimFs) -> Arc<dyn Store> {
    Arc::new(LocalStore::open(fs.shared(), "/db").expect("opened").inline())
}

/// Commits until the world stops; the version that was last acknowledged.
async fn commit_until_stopped(fs: &FaultFs) -> u64 {
    let Ok(store) = LocalStore::open(fs.shared(), "/db") else { return 0 };
    let log = log(Arc::new(store.inline()), 1);
    let mut acknowledged = 0;
    for n in 0..4 {
        let done = match n {
            0 => log.create(ShardManifest::empty()).await,
            1 => log.raise_epoch().await,
            _ => log.commit(Epoch(1), add_segment).await,
        };
        match done {
            Ok(done) => acknowledged = done.version,
            Err(_) => break,
        }
    }
    acknowledged
}

/// Cuts the power at every point of a run, with several seeds each; the versions that some disk lacks though acknowledged.
async fn lost_at_any_point(skip: Option<(SyncKind, &str)>) -> usize {
    let mut lost = 0;
    for point in 0.. {
        let sim = SimFs::new();
        if let Some((kind, pattern)) = skip {
            sim.skip_sync(kind, pattern);
        }
        let fs = FaultFs::new(sim.shared());
        fs.stop_at(point);
        let acknowledged = commit_until_stopped(&fs).await;
        for seed in 0..12 {
            let left = restarted(&sim.power_cut(seed));
            let found = log(left.clone(), 2).load_latest().await;
            let version = found.as_ref().map(|f| f.as_ref().map_or(0, |m| m.version));
            // At most one more than was acknowledged: the one that was on its way.
            let whole = matches!(version, Ok(v) if v == acknowledged || v == acknowledged + 1);
            lost += usize::from(!whole);
        }
        if !fs.stopped() {
            assert!(point > 40, "a run has many points: {point}");
            return lost;
        }
    }
    unreachable!("a run ends")
}

#[tokio::test]
async fn a_power_cut_at_any_call_keeps_what_was_acknowledged_and_tears_nothing() {
    assert_eq!(lost_at_any_point(None).await, 0);
}

#[tokio::test]
async fn without_any_one_of_its_syncs_a_commit_is_lost_at_some_power_cut() {
    for skip in [(SyncKind::File, "/manifest/"), (SyncKind::Dir, "/manifest"), (SyncKind::Dir, "/db/tables/x")] {
        assert!(lost_at_any_point(Some(skip)).await > 0, "{skip:?} could be left out: the checker sees nothing");
    }
}

#[tokio::test]
async fn a_process_killed_between_any_two_calls_leaves_a_log_that_goes_on() {
    for point in 0.. {
        let sim = SimFs::new();
        let fs = FaultFs::new(sim.shared());
        fs.stop_at(point);
        let acknowledged = commit_until_stopped(&fs).await;
        let log = log(restarted(&sim.kill()), 2);
        match log.load_latest().await.expect("never torn") {
            None => assert_eq!(acknowledged, 0),
            Some(found) => {
                let raised = log.raise_epoch().await.expect("it goes on");
                assert!(found.version >= acknowledged && raised.version == found.version + 1);
                let close = |m: &ShardManifest| {
                    let mut next = m.clone();
                    next.closed.push(EpochEnd { epoch: raised.epoch, at: 0, last_seq: Seq(0) });
                    Ok(next)
                };
                log.commit(raised.epoch, close).await.expect("committed");
            }
        }
        if !fs.stopped() {
            return;
        }
    }
}
