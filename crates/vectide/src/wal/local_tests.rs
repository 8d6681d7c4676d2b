//! The local log over a simulated disk: what is reported durable comes back, whatever happened.

use super::*;
use crate::error::ErrorKind;
use crate::store::sim::{SimFs, SyncKind};
use crate::wal::fixture::*;
use crate::wal::frame::FrameKind;
use crate::wal::{epoch_name, log_file_name};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn small() -> LocalLogOptions {
    LocalLogOptions {
        file_bytes: 256 << 10,
        first_file_bytes: 64 << 10,
        delete_reserve_bytes: 16 << 10,
        ..LocalLogOptions::default()
    }
}

fn file(epoch: u64, start: u64) -> PathBuf {
    Path::new(WAL_DIR).join(epoch_name(Epoch(epoch))).join(log_file_name(start))
}

/// Ids of all replayed rows, in order.
async fn recovered_ids(fs: &SimFs, current: u64) -> Vec<i64> {
    let (batches, _) = replay_local(fs.shared(), from_start(current)).await.expect("replays");
    batches.iter().flat_map(ids).collect()
}

#[tokio::test]
async fn what_was_acknowledged_is_replayed_in_order() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, small());
    for count in [1, 1, 700, 3, 1] {
        writer.put(count).await.expect("durable");
    }
    let end = writer.log.close().await.expect("closes");
    assert_eq!(end.last_seq, Seq(706));
    let (batches, recovered) = replay_local(fs.shared(), from_start(2)).await.expect("replays");
    assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), (1..=706).collect::<Vec<_>>());
    assert_eq!(recovered.ends, vec![end]);
    assert_eq!((recovered.last_seq, recovered.last_publication), (Seq(706), PubNo(5)));
    let (again, _) = replay_local(fs.shared(), plan(LogPosition::default(), 1, 2, vec![end])).await.expect("replays");
    assert_eq!(again.len(), 5, "the recorded end gives the same");
}

#[tokio::test]
async fn an_open_without_a_write_creates_nothing() {
    let fs = SimFs::new();
    for epoch in 1..4 {
        let writer = Writer::local(fs.shared(), epoch, 1, small());
        let end = writer.log.close().await.expect("closes");
        assert_eq!(end, EpochEnd { epoch: Epoch(epoch), at: 0, last_seq: Seq(0) });
    }
    assert_eq!(fs.used_bytes(), 0);
    assert!(fs.read_dir(Path::new(WAL_DIR)).is_err(), "not even a directory");
    assert!(recovered_ids(&fs, 4).await.is_empty());
}

#[tokio::test]
async fn a_batch_of_several_parts_is_replayed_whole_or_not_at_all() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, LocalLogOptions::default());
    writer.put(2).await.expect("durable");
    let small_end = writer.log.stats().bytes_written;
    writer.put(70_000).await.expect("durable");
    drop(writer);
    assert_eq!(recovered_ids(&fs, 2).await.len(), 70_002);
    // The last part's last byte is missing: the whole batch is.
    let path = file(1, 0);
    let disk = fs.open(&path, true).expect("the log file");
    let header = log_schema().file_header(Epoch(1), 0).len() as u64;
    let cut = header + small_end + put(&log_schema(), 3, 70_000).bytes() - 1;
    disk.set_len(cut).expect("cuts");
    let (batches, recovered) = replay_local(fs.shared(), from_start(2)).await.expect("replays");
    assert_eq!((batches.len(), recovered.last_seq), (1, Seq(2)));
    assert_eq!(recovered.ends[0].at, header + small_end);
}

#[tokio::test]
async fn the_end_may_be_cut_or_zeroed_at_any_byte_of_the_last_frames() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, small());
    writer.put(1).await.expect("durable");
    // Two batches in one group, so that the last frames share a sync.
    let first = writer.append(put(&writer.schema, 2, 1), Admission::Write).await.expect("room");
    let second = writer.append(put(&writer.schema, 3, 2), Admission::Write).await.expect("room");
    writer.heard.wait(second).await.expect("durable");
    let end = writer.log.close().await.expect("closes").at;
    assert_eq!(first.plus(1), second);
    let sizes = [1, 2].map(|count| put(&log_schema(), 2, count).bytes());
    let (two, three) = (end - sizes[1] - sizes[0], end - sizes[1]);
    let expected = |at: u64| if at < three { 1 } else { 3 - u64::from(at < end) };
    for at in two..end {
        let cut = fs.kill();
        cut.open(&file(1, 0), true).expect("file").set_len(at).expect("cuts");
        let zeroed = fs.kill();
        let zeros = vec![0; (end - at) as usize];
        let disk = zeroed.open(&file(1, 0), true).expect("file");
        disk.write_all_at(&[std::io::IoSlice::new(&zeros)], at).expect("zeroes");
        for disk in [cut, zeroed] {
            let (batches, recovered) = replay_local(disk.shared(), from_start(2)).await.expect("no manual step");
            assert!(batches.len() as u64 >= expected(at) && batches.len() < 4, "{at}: {}", batches.len());
            assert_eq!(recovered.ends[0].at, batches.last().expect("the first").position_after.at);
        }
    }
}

#[tokio::test]
async fn damage_below_what_was_synced_names_file_and_byte() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, small());
    let mut starts = Vec::new();
    for _ in 0..3 {
        starts.push(writer.log.locate(Seq(u64::MAX)).at);
        writer.put(1).await.expect("durable");
    }
    drop(writer);
    let header = log_schema().file_header(Epoch(1), 0).len() as u64;
    let second = header + put(&log_schema(), 1, 1).bytes();
    for offset in [second, second + 8, second + 76, second + 100, second + 400] {
        let damaged = fs.kill();
        damaged.flip(&file(1, 0), offset, 0x40);
        let error = replay_local(damaged.shared(), from_start(2)).await.expect_err("damage");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = format!("{} is damaged at byte {second}", file(1, 0).display());
        assert!(error.message().contains(&place), "{error}");
        assert!(error.message().contains("vectide verify"), "{error}");
    }
    let zeroed = fs.kill();
    let disk = zeroed.open(&file(1, 0), true).expect("file");
    disk.write_all_at(&[std::io::IoSlice::new(&[0; 80])], second).expect("zeroes");
    assert_eq!(replay_local(zeroed.shared(), from_start(2)).await.expect_err("damage").kind(), ErrorKind::Corrupt);
}

/// Enough rows in single writes to fill several files.
async fn fill_files(writer: &Writer) {
    for _ in 0..12 {
        writer.put(2000).await.expect("durable");
    }
}

#[tokio::test]
async fn files_follow_one_another_and_a_missing_one_is_damage() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, small());
    fill_files(&writer).await;
    drop(writer);
    assert_eq!(recovered_ids(&fs, 2).await, (1..=24_000).collect::<Vec<_>>());
    let starts = list_files(&fs, file(1, 0).parent().expect("dir")).expect("lists");
    assert!(starts.len() >= 3, "{starts:?}");
    for &missing in &starts[..starts.len() - 1] {
        let disk = fs.kill();
        disk.remove_file(&file(1, missing)).expect("removes");
        let error = replay_local(disk.shared(), from_start(2)).await.expect_err("damage");
        assert!(error.message().contains(&file(1, missing).display().to_string()), "{error}");
    }
}

#[tokio::test]
async fn trimming_removes_whole_files_and_replay_starts_behind_them() {
    let fs = SimFs::new();
    let old = Writer::local(fs.shared(), 1, 1, small());
    fill_files(&old).await;
    let end = old.log.close().await.expect("closes");
    let writer = Writer::local(fs.shared(), 2, 24_001, small());
    fill_files(&writer).await;
    let position = writer.log.locate(Seq(40_001));
    assert_eq!(position.epoch, Epoch(2));
    writer.log.trim(position).await.expect("trims");
    assert!(fs.read_dir(file(1, 0).parent().expect("dir")).is_err(), "the old epoch is gone");
    let starts = list_files(&fs, file(2, 0).parent().expect("dir")).expect("lists");
    assert!(starts[0] > 0 && starts[0] <= position.at);
    let (batches, _) =
        replay_local(fs.shared(), plan(position, 40_001, 3, vec![end])).await.expect("replays from there");
    assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), (40_001..=48_000).collect::<Vec<_>>());
    // An idle log goes altogether; the next write starts a file of its own.
    writer.log.trim(writer.log.locate(Seq(48_001))).await.expect("trims");
    assert!(list_files(&fs, file(2, 0).parent().expect("dir")).expect("lists").is_empty());
    let idle = writer.log.locate(Seq(48_001));
    writer.put(5).await.expect("durable");
    writer.log.trim(idle).await.expect("nothing to trim");
    let (batches, _) = replay_local(fs.shared(), plan(idle, 48_001, 3, vec![end])).await.expect("replays");
    assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), (48_001..=48_005).collect::<Vec<_>>());
}

#[tokio::test]
async fn replay_goes_over_epochs_writes_nothing_and_says_the_same_each_time() {
    let fs = SimFs::new();
    for (epoch, first) in [(1, 1), (2, 11), (4, 21)] {
        let writer = Writer::local(fs.shared(), epoch, first, small());
        for _ in 0..10 {
            writer.put(1).await.expect("durable");
        }
    }
    let used = fs.used_bytes();
    let mut first = None;
    for _ in 0..3 {
        let (batches, recovered) = replay_local(fs.shared(), from_start(5)).await.expect("replays");
        let seen = (batches.iter().flat_map(ids).collect::<Vec<_>>(), recovered.ends);
        assert_eq!(seen.0, (1..=30).collect::<Vec<_>>());
        assert_eq!(seen.1.iter().map(|end| end.last_seq.0).collect::<Vec<_>>(), [10, 20, 20, 30]);
        assert_eq!(first.get_or_insert_with(|| seen.clone()), &seen);
    }
    assert_eq!(fs.used_bytes(), used);
}

#[tokio::test]
async fn a_gap_in_seqs_or_a_missing_start_is_damage() {
    let fs = SimFs::new();
    for (epoch, first) in [(1, 1), (2, 12)] {
        let writer = Writer::local(fs.shared(), epoch, first, small());
        writer.put(10).await.expect("durable");
    }
    let error = replay_local(fs.shared(), from_start(3)).await.expect_err("seq 11 is missing");
    assert!(error.message().contains("seq is 12 where 11"), "{error}");
    let second = plan(LogPosition { epoch: Epoch(2), at: 0 }, 11, 3, Vec::new());
    let error = replay_local(fs.shared(), second).await.expect_err("seq 11 is missing");
    assert!(error.message().contains("begins at seq 12"), "{error}");
}

#[tokio::test]
async fn many_writers_share_syncs() {
    let dir = tempfile::tempdir().expect("a directory");
    let heard = Arc::new(Heard::default());
    let index = SeqIndex::new(crate::wal::index::LOCAL_GRAIN, Seq(1), LogPosition::default());
    let log = LocalLog::open(
        Arc::new(crate::store::DiskFs),
        dir.path().join("wal"),
        Epoch(1),
        log_schema(),
        index,
        LocalLogOptions::default(),
        Arc::new(crate::clock::SystemClock::new()),
        Arc::clone(&heard) as _,
    );
    let writer = Arc::new(Writer::new(Box::new(log.expect("opens")), heard, Seq(1), PubNo(1)));
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move {
                for _ in 0..20 {
                    writer.put(1).await.expect("durable");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    let stats = writer.log.stats();
    assert_eq!((stats.rows_written, stats.queue_rows, stats.queue_bytes), (1280, 0, 0));
    assert!(stats.rows_per_sync > 2.0, "{stats:?}");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_lets_deletes_go_on_and_recovers() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, small());
    writer.put(1).await.expect("durable");
    fs.limit_bytes(Some(fs.used_bytes()));
    let mut accepted = 1;
    let error = loop {
        match writer.put(20).await {
            Ok(()) => accepted += 20,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("disk full") && error.message().contains("delete rows"), "{error}");
    assert!(writer.heard.failure().is_none(), "the log goes on");
    let keys = rows(&table_schema(), 1, 3).project(&[0]).expect("the key");
    let delete = Arc::new(EncodedBatch::encode(&writer.schema, FrameKind::Delete, &keys, None).expect("encodes"));
    for _ in 0..10 {
        let publication = writer.append(Arc::clone(&delete), Admission::Delete).await.expect("the reserve");
        writer.heard.wait(publication).await.expect("durable");
    }
    assert!(writer.put(20).await.is_err(), "writes leave the reserve alone");
    fs.limit_bytes(None);
    writer.put(20).await.expect("there is room again");
    drop(writer);
    let (batches, _) = replay_local(fs.shared(), from_start(2)).await.expect("replays");
    let puts = batches.iter().filter(|b| b.kind == FrameKind::Put).map(|b| b.rows).sum::<u64>();
    let deletes = batches.iter().filter(|b| b.kind == FrameKind::Delete).count();
    assert_eq!((puts, deletes), (accepted + 20, 10));
}

#[tokio::test]
async fn a_full_disk_at_a_change_of_files_leaves_the_old_file_in_use() {
    let fs = SimFs::new();
    let options = LocalLogOptions { file_bytes: 64 << 10, first_file_bytes: 64 << 10, ..small() };
    let writer = Writer::local(fs.shared(), 1, 1, options);
    writer.put(1).await.expect("durable");
    fs.limit_bytes(Some(fs.used_bytes() + 8192));
    while writer.put(20).await.is_ok() {}
    let keys = rows(&table_schema(), 1, 1).project(&[0]).expect("the key");
    let delete = Arc::new(EncodedBatch::encode(&writer.schema, FrameKind::Delete, &keys, None).expect("encodes"));
    let publication = writer.append(delete, Admission::Delete).await.expect("the reserve");
    writer.heard.wait(publication).await.expect("durable");
    let starts = list_files(&fs, file(1, 0).parent().expect("dir")).expect("lists");
    assert_eq!(starts, [0], "no name is left of the file that could not be filled");
    for seed in 0..8 {
        let (batches, _) = replay_local(fs.power_cut(seed).shared(), from_start(2)).await.expect("replays");
        assert_eq!(batches.last().expect("some").kind, FrameKind::Delete);
    }
    fs.limit_bytes(None);
    writer.put(20).await.expect("a new file");
}

#[tokio::test]
async fn a_permit_that_is_not_used_gives_its_room_back() {
    let fs = SimFs::new();
    let writer = Writer::local(fs.shared(), 1, 1, small());
    writer.put(1).await.expect("durable");
    let used = fs.used_bytes();
    for _ in 0..1000 {
        drop(writer.log.admit(100, 10_000, Admission::Write).await.expect("room"));
    }
    assert_eq!(fs.used_bytes(), used, "no more was preallocated");
    assert_eq!(writer.log.stats().stalls, 0);
}

#[tokio::test]
async fn a_failed_sync_ends_the_log_and_acknowledges_nothing_more() {
    use crate::store::fault_fs::{FaultFs, Phase};
    let faults = FaultFs::new(SimFs::new().shared());
    let writer = Writer::local(faults.shared(), 1, 1, small());
    writer.put(1).await.expect("durable");
    faults.set_hook(Arc::new(|point| match (point.op, point.phase) {
        ("fs.sync_data", Phase::Before) => Err(std::io::Error::other("the device is gone")),
        _ => Ok(()),
    }));
    let error = writer.put(1).await.expect_err("the sync failed");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("outcome of the writes in flight is unknown"), "{error}");
    assert_eq!(writer.heard.upto(), PubNo(1));
    assert_eq!(writer.put(1).await.expect_err("dead").kind(), ErrorKind::Unavailable);
    assert_eq!(writer.log.close().await.expect_err("dead").kind(), ErrorKind::Unavailable);
    assert!(writer.log.trim(LogPosition::default()).await.is_err());
}

/// A run of small writes over several files, cut at some moment; what it had been told by then is on every disk that the
/// cut can leave, and nothing is there by half.
async fn cut_and_replay(fs: &SimFs, heard: PubNo, sizes: &[usize], seed: u64) -> Result<(), String> {
    let disk = fs.power_cut(seed);
    let (batches, recovered) =
        replay_local(disk.shared(), from_start(2)).await.map_err(|e| format!("seed {seed}: {e:?}"))?;
    if (batches.len() as u64) < heard.0 {
        return Err(format!("seed {seed}: {} batches of {heard} acknowledged", batches.len()));
    }
    let mut next = 1;
    for (batch, &size) in batches.iter().zip(sizes) {
        let expected: Vec<i64> = (next..next + size as i64).collect();
        if ids(batch) != expected {
            return Err(format!("seed {seed}: batch {} is not whole", batch.publication));
        }
        next += size as i64;
    }
    // What was replayed counts now: it has to survive another cut.
    let (again, _) =
        replay_local(disk.power_cut(seed ^ 0x55).shared(), plan(LogPosition::default(), 1, 2, recovered.ends))
            .await
            .map_err(|e| format!("seed {seed}, second cut: {e:?}"))?;
    if again.len() != batches.len() {
        return Err(format!("seed {seed}: {} batches after a second cut, {} before", again.len(), batches.len()));
    }
    Ok(())
}

/// Writes through `layer`, which stands on `fs`, and cuts `fs` after each batch.
async fn run_and_cut(fs: &SimFs, layer: Arc<dyn Fs>, seeds: u64) -> Result<(), String> {
    let options = LocalLogOptions { file_bytes: 32 << 10, first_file_bytes: 8 << 10, group_bytes: 6 << 10, ..small() };
    let writer = Writer::local(layer, 1, 1, options);
    let sizes: Vec<usize> = (0..60).map(|i| 1 + (i * 7) % 60).collect();
    let mut first = 1;
    let mut seeds = 0..seeds;
    for (i, &size) in sizes.iter().enumerate() {
        let publication = writer.append(put(&writer.schema, first, size), Admission::Write).await.expect("room");
        first += size as i64;
        if i % 3 == 0 {
            writer.heard.wait(publication).await.expect("durable");
        }
        for seed in seeds.by_ref().take(4) {
            // What was heard before the cut; the thread may write on between.
            let heard = writer.heard.upto();
            cut_and_replay(fs, heard, &sizes, seed).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_power_cut_loses_nothing_acknowledged_and_leaves_nothing_half() {
    let fs = SimFs::new();
    run_and_cut(&fs, fs.shared(), 240).await.expect("every seed");
}

#[tokio::test]
async fn a_log_without_any_one_kind_of_its_syncs_is_caught() {
    for (kind, pattern) in [(SyncKind::File, ".log"), (SyncKind::Dir, "/wal/0"), (SyncKind::Dir, "")] {
        let fs = SimFs::new();
        fs.skip_sync(kind, pattern);
        let verdict = run_and_cut(&fs, fs.shared(), 240).await;
        assert!(fs.skipped() > 0, "{kind:?} {pattern}: nothing was skipped");
        assert!(verdict.is_err(), "{kind:?} {pattern}: no seed noticed");
    }
}

#[tokio::test]
async fn a_log_that_syncs_its_headers_only_is_caught() {
    let fs = SimFs::new();
    let skip: Skip = |path, before| path.extension().is_some_and(|e| e == "log") && before > 0;
    let layer = Arc::new(SkipFs { inner: fs.shared(), skip });
    assert!(run_and_cut(&fs, layer, 240).await.is_err(), "no seed noticed");
}

/// The first group of a new file is written and the power fails before its sync. Its later frames say that the header was
/// durable: true, and the reason why it has to be.
async fn cut_in_a_new_files_first_group(skip: Skip) -> Vec<Error> {
    use crate::store::fault_fs::{FaultFs, Phase};
    let fs = SimFs::new();
    let faults = FaultFs::new(Arc::new(SkipFs { inner: fs.shared(), skip }));
    let options = LocalLogOptions { file_bytes: 64 << 10, first_file_bytes: 64 << 10, ..small() };
    let writer = Writer::local(faults.shared(), 1, 1, options);
    writer.put(1).await.expect("durable");
    // Three batches have room in the first file; a fourth asks for another one, and meanwhile they are queued.
    let batches = [2, 102, 202].map(|first| put(&writer.schema, first, 100));
    let mut permits = Vec::new();
    for batch in &batches {
        permits.push(writer.log.admit(batch.rows(), batch.bytes(), Admission::Write).await.expect("room"));
    }
    let (at_sync, mut reached) = tokio::sync::mpsc::unbounded_channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (wait, is_armed) = (Mutex::new(wait), AtomicBool::new(false));
    faults.set_hook(Arc::new(move |point| match (point.op, point.phase) {
        ("fs.sync_dir", Phase::After) => {
            is_armed.store(true, Ordering::Relaxed);
            at_sync.send(()).map_err(std::io::Error::other)?;
            wait.lock().recv().map_err(std::io::Error::other)
        }
        ("fs.sync_data", Phase::Before) if is_armed.load(Ordering::Relaxed) => {
            Err(std::io::Error::other("the power fails"))
        }
        _ => Ok(()),
    }));
    let fourth = writer.log.admit(1000, 48 << 10, Admission::Write);
    let queue = async {
        reached.recv().await.expect("a new file");
        for ((batch, permit), n) in batches.iter().zip(permits).zip(0..) {
            writer.log.enqueue(permit, Arc::clone(batch), Seq(2 + 100 * n), PubNo(2 + n));
        }
        go.send(()).expect("the thread waits");
    };
    let _ = tokio::join!(fourth, queue);
    assert!(writer.heard.wait(PubNo(4)).await.is_err(), "the sync failed");
    let mut errors = Vec::new();
    for seed in 0..64 {
        errors.extend(replay_local(fs.power_cut(seed).shared(), from_start(2)).await.err());
    }
    errors
}

#[tokio::test]
async fn a_new_file_cut_in_its_first_group_is_no_damage_because_its_header_is_synced_first() {
    let errors = cut_in_a_new_files_first_group(|_, _| false).await;
    assert!(errors.is_empty(), "{errors:?}");
    let unsynced: Skip = |path, before| before == 0 && path.extension().is_some_and(|e| e == "log");
    assert!(!cut_in_a_new_files_first_group(unsynced).await.is_empty(), "no seed noticed");
}

/// Cuts the disk at the moment each call returns or is about to be made, not only between batches.
#[tokio::test]
async fn a_power_cut_at_every_call_loses_nothing_acknowledged() {
    use crate::store::fault_fs::FaultFs;
    let sizes = [1, 30, 60, 1, 60, 60, 2, 60, 60];
    let options = LocalLogOptions { file_bytes: 16 << 10, first_file_bytes: 8 << 10, ..small() };
    for point in 0.. {
        let fs = SimFs::new();
        let faults = FaultFs::new(fs.shared());
        faults.stop_at(point);
        let writer = Writer::local(faults.shared(), 1, 1, options);
        for size in sizes {
            if writer.put(size).await.is_err() {
                break;
            }
        }
        for seed in 0..6 {
            cut_and_replay(&fs, writer.heard.upto(), &sizes, seed)
                .await
                .unwrap_or_else(|e| panic!("point {point}: {e}"));
        }
        if !faults.stopped() {
            assert!(point > 60, "only {point} points were passed");
            break;
        }
    }
}

#[tokio::test]
async fn what_a_replay_gave_survives_a_power_cut() {
    let run = async |skips: bool| {
        let fs = SimFs::new();
        // The writer was killed before it could sync.
        let layer = SkipFs { inner: fs.shared(), skip: |path, before| path.ends_with(log_file_name(0)) && before > 0 };
        let writer = Writer::local(Arc::new(layer), 1, 1, small());
        writer.put(500).await.expect("written");
        let killed = fs.kill();
        if skips {
            killed.skip_sync(SyncKind::File, ".log");
        }
        let (seen, _) = replay_local(killed.shared(), from_start(2)).await.expect("replays");
        assert_eq!(seen.len(), 1);
        let mut lost = false;
        for seed in 0..16 {
            let after = replay_local(killed.power_cut(seed).shared(), from_start(2)).await;
            lost |= after.map_or(0, |(batches, _)| batches.len()) != 1;
        }
        lost
    };
    assert!(!run(false).await, "a row that a reader may have seen was lost");
    assert!(run(true).await, "without the sync no seed noticed");
}

#[tokio::test]
async fn a_file_that_could_not_be_filled_leaves_no_name_behind() {
    let run = async |skips: bool| {
        let fs = SimFs::new();
        let options = LocalLogOptions { file_bytes: 64 << 10, first_file_bytes: 64 << 10, ..small() };
        let writer = Writer::local(fs.shared(), 1, 1, options);
        writer.put(1).await.expect("durable");
        if skips {
            fs.skip_sync(SyncKind::Dir, "/wal/0");
        }
        fs.limit_bytes(Some(fs.used_bytes() + 4096));
        while writer.put(20).await.is_ok() {}
        let keys = rows(&table_schema(), 1, 1).project(&[0]).expect("the key");
        let delete = Arc::new(EncodedBatch::encode(&writer.schema, FrameKind::Delete, &keys, None).expect("encodes"));
        let publication = writer.append(delete, Admission::Delete).await.expect("the reserve");
        writer.heard.wait(publication).await.expect("durable");
        let (batches, _) = replay_local(fs.shared(), from_start(2)).await.expect("replays");
        let last = batches.last().expect("the delete");
        let mut lost = false;
        for seed in 0..32 {
            // A replay from the delete on has to find its file, as a trim has to.
            let plan = plan(last.position, last.first_seq.0, 2, Vec::new());
            let replayed = replay_local(fs.power_cut(seed).shared(), plan).await;
            lost |= !replayed.is_ok_and(|(batches, _)| batches.len() == 1);
        }
        lost
    };
    assert!(!run(false).await, "the delete was lost");
    assert!(run(true).await, "without the sync no seed noticed");
}
