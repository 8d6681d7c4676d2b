//! Readers in other processes: never more than is durable, never less than was acknowledged.

use super::*;
use crate::error::ErrorKind;
use crate::ids::Seq;
use crate::store::LocalStore;
use crate::store::sim::SimFs;
use crate::wal::fixture::*;
use crate::wal::local::LocalLogOptions;
use crate::wal::object::ObjectLogOptions;
use crate::wal::{Admission, EpochEnd};

fn manifest(from: LogPosition, seq: u64, epoch: u64, closed: Vec<EpochEnd>) -> ShardManifest {
    ShardManifest { epoch: Epoch(epoch), replay_from: from, replay_seq: Seq(seq), closed, ..ShardManifest::empty() }
}

fn start() -> LogPosition {
    LogPosition { epoch: Epoch(1), at: 0 }
}

fn small() -> LocalLogOptions {
    LocalLogOptions {
        file_bytes: 32 << 10,
        first_file_bytes: 16 << 10,
        delete_reserve_bytes: 4 << 10,
        ..LocalLogOptions::default()
    }
}

/// A local store whose shard's log stands where the fixture's writer puts it.
fn local(fs: &SimFs) -> (Arc<dyn Store>, PathBuf) {
    let store: Arc<dyn Store> = Arc::new(LocalStore::open(fs.shared(), "/db").expect("opens").inline());
    let wal_dir = PathBuf::from("/db").join(paths().wal_dir());
    (store, wal_dir)
}

async fn read(tail: &mut Tail) -> Vec<i64> {
    let mut seen = Vec::new();
    while let Some(batch) = tail.next().await.expect("reads") {
        seen.extend(ids(&batch));
    }
    seen
}

#[tokio::test]
async fn a_local_tail_sees_each_acknowledged_batch_once_and_goes_on_over_files_and_epochs() {
    let fs = SimFs::new();
    let (store, wal_dir) = local(&fs);
    let writer = Writer::local_at(fs.shared(), wal_dir.clone(), 1, 1, small());
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 1, 1, Vec::new()));
    assert!(read(&mut tail).await.is_empty());
    let mut next = 1;
    for _ in 0..20 {
        writer.put(300).await.expect("durable");
        assert_eq!(read(&mut tail).await, (next..next + 300).collect::<Vec<_>>());
        next += 300;
    }
    let end = writer.log.close().await.expect("closes");
    let second = Writer::local_at(fs.shared(), wal_dir, 2, 6001, small());
    second.put(5).await.expect("durable");
    assert!(read(&mut tail).await.is_empty(), "this manifest does not know of epoch 2");
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 5999, 2, vec![end]));
    assert!(tail.next().await.is_err(), "the replay point lies inside a batch");
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 5701, 2, vec![end]));
    assert_eq!(read(&mut tail).await, (5701..=6005).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_local_tail_never_reads_beyond_the_durable_mark() {
    let fs = SimFs::new();
    let (store, wal_dir) = local(&fs);
    let writer = Writer::local_at(fs.shared(), wal_dir.clone(), 1, 1, small());
    writer.put(2).await.expect("durable");
    let mark = DurableMark::read(&fs, &wal_dir).expect("reads").expect("is there");
    writer.put(3).await.expect("durable");
    drop(writer);
    // As if the second batch had been written and not yet synced.
    let file = DurableMark::file(&fs, &wal_dir).expect("opens");
    mark.write(file.as_ref()).expect("writes");
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 1, 1, Vec::new()));
    assert_eq!(read(&mut tail).await, [1, 2]);
}

#[tokio::test]
async fn a_tail_that_was_trimmed_under_is_told() {
    let fs = SimFs::new();
    let (store, wal_dir) = local(&fs);
    let writer = Writer::local_at(fs.shared(), wal_dir, 1, 1, small());
    writer.put(10).await.expect("durable");
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 1, 1, Vec::new()));
    assert_eq!(read(&mut tail).await.len(), 10);
    for _ in 0..20 {
        writer.put(300).await.expect("durable");
    }
    writer.log.trim(writer.log.locate(Seq(5000))).await.expect("trims");
    assert_eq!(tail.next().await.expect_err("trimmed").kind(), ErrorKind::Expired);
}

#[tokio::test]
async fn an_object_tail_follows_the_gapless_prefix() {
    let store = memory();
    let writer = Writer::objects(&store, 1, 1, ObjectLogOptions { beside_bytes: 1, ..ObjectLogOptions::default() });
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 1, 1, Vec::new()));
    assert!(read(&mut tail).await.is_empty());
    for _ in 0..10 {
        writer.put(1).await.expect("durable");
    }
    assert_eq!(read(&mut tail).await, (1..=10).collect::<Vec<_>>());
    // An object behind a gap could still be lost.
    let path = |n| paths().wal(Epoch(1), n, crate::store::paths::LogKind::Object);
    let last = store.get(&path(9)).await.expect("there");
    store.put(&path(12), last).await.expect("puts");
    assert!(read(&mut tail).await.is_empty());
    store.delete(&path(12)).await.expect("deletes");
    let publication = writer.append(put(&writer.schema, 11, 1), Admission::Write).await.expect("room");
    writer.heard.wait(publication).await.expect("durable");
    assert_eq!(read(&mut tail).await, [11]);
}

#[tokio::test]
async fn an_object_tail_goes_over_recorded_ends_and_stops_at_an_unrecorded_fence() {
    let store = memory();
    let first = Writer::objects(&store, 1, 1, ObjectLogOptions::default());
    first.put(2).await.expect("durable");
    let mut old = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 1, 1, Vec::new()));
    assert_eq!(read(&mut old).await, [1, 2]);
    let (_, recovered) = recover_objects(&store, from_start(2)).await.expect("takes over");
    let second = Writer::objects(&store, 2, 3, ObjectLogOptions::default());
    second.put(2).await.expect("durable");
    assert!(read(&mut old).await.is_empty());
    let mut tail = Tail::open(&store, &paths(), log_schema(), &manifest(start(), 1, 2, recovered.ends));
    assert_eq!(read(&mut tail).await, [1, 2, 3, 4]);
}
