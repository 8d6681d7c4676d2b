//! A second process reads while the first writes: one consistent snapshot, a stated staleness.

use crate::support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vectide::{ErrorKind, Options, Vectide, keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_what_was_durable_when_it_refreshed() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("utf-8");
    let missing = Vectide::open_read_only(path, Options::default()).await.expect_err("nothing there");
    assert_eq!(missing.kind(), ErrorKind::NotFound);

    let db = Vectide::open(path, Options::default()).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    table.upsert(numbered(0..100, "a")).await.expect("writes");
    let beside = Vectide::open_read_only(path, Options::default()).await.expect("opens beside");
    let reader = beside.open_table("t").await.expect("opens");
    assert_eq!(reader.count().await.expect("counts"), 100);
    for round in 0..6i64 {
        let before = reader.snapshot().await.expect("pins");
        let held = before.count().await.expect("counts");
        table.upsert(numbered(round * 50..round * 50 + 150, "b")).await.expect("writes");
        table.delete(keys![round]).await.expect("deletes");
        if round % 2 == 1 {
            table.flush().await.expect("flushes");
        }
        reader.refresh().await.expect("refreshes");
        assert_eq!(reader.count().await.expect("counts"), table.count().await.expect("counts"), "round {round}");
        let (ours, theirs) = (reader.search(&[40.0; DIM]).k(5), table.search(&[40.0; DIM]).k(5));
        assert_eq!(ids(&ours.await.expect("searches")), ids(&theirs.await.expect("searches")));
        assert!(reader.get(keys![round]).await.expect("gets").num_rows() == 0, "deleted");
        assert_eq!(before.count().await.expect("counts"), held, "a held snapshot stands");
        assert_eq!(before.scan().await.expect("scans").collect_all().expect("reads").num_rows() as u64, held);
        let staleness = reader.staleness();
        assert!(staleness.caught_up && staleness.applied_publication > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_beside_a_busy_writer_never_sees_half_a_batch() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("utf-8");
    let db = Vectide::open(path, tiny()).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    table.upsert(numbered(0..40, "0")).await.expect("writes");
    let done = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn({
        let (path, done) = (path.to_owned(), Arc::clone(&done));
        async move {
            let options = Options { refresh_interval_ms: 0, ..Options::default() };
            let db = Vectide::open_read_only(&path, options).await.expect("opens beside");
            let reader = db.open_table("t").await.expect("opens");
            let mut seen = 0;
            while !done.load(Ordering::SeqCst) {
                let rows = reader.scan().await.expect("scans").collect_all().expect("reads");
                let all = states(&rows);
                assert_eq!(all.len(), 40);
                assert!(all.iter().all(|s| *s == all[0]), "one batch or the other: {all:?}");
                seen = seen.max(all[0].parse::<u64>().expect("a number"));
            }
            seen
        }
    });
    for round in 1..150 {
        table.upsert(numbered(0..40, &round.to_string())).await.expect("writes");
    }
    done.store(true, Ordering::SeqCst);
    assert!(reading.await.expect("joins") > 0, "it follows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_follows_over_objects_and_to_the_next_writer() {
    let uri = "memory://readers-follow";
    let db = Vectide::open(uri, Options::default()).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    table.upsert(numbered(0..100, "a")).await.expect("writes");
    let reader =
        Vectide::open_read_only(uri, Options::default()).await.expect("opens").open_table("t").await.expect("opens");
    let next = Vectide::open(uri, Options::default()).await.expect("an object store has no lock");
    let taken = next.open_table("t").await.expect("takes over");
    assert_eq!(table.upsert(numbered(0..1, "late")).await.expect_err("fenced").kind(), ErrorKind::Fenced);
    taken.upsert(numbered(50..150, "b")).await.expect("writes");
    reader.refresh().await.expect("refreshes");
    assert_eq!(reader.count().await.expect("counts"), 150);
    assert_eq!(states(&reader.get(keys![0, 60]).await.expect("gets")), ["a", "b"]);
}
