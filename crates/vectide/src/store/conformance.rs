//! Any store goes in; it comes out if it keeps every promise of [`Store`], and panics with the broken one if not.
//!
//! Each backend's tests run [`run`], and so may the tests of a store that a caller brings along. Invariant: a check looks
//! at what the trait promises and at nothing else. The store must be empty; what is written stays in it.

use super::{ObjectWriter, PutOutcome, Store};
use crate::ErrorKind;
use bytes::Bytes;
use std::sync::Arc;

/// Tasks that race for one name.
const RACERS: usize = 16;

/// Runs every check against an empty store. Panics at the first broken promise. Needs a Tokio runtime.
pub async fn run(store: Arc<dyn Store>) {
    run_alone(Arc::clone(&store)).await;
    one_of_many_racers_creates_the_object(&store).await;
}

/// Runs every check that needs one client only: for stores that are stood in for by something less than atomic.
pub async fn run_alone(store: Arc<dyn Store>) {
    missing_objects_are_not_found(&*store).await;
    objects_come_back_whole(&*store).await;
    a_listing_is_complete_sorted_and_below_its_prefix(&*store).await;
    a_removed_object_is_gone_and_may_be_removed_again(&*store).await;
    the_second_of_two_puts_finds_the_first(&*store).await;
    streamed_objects_are_whole_and_their_checksum_is_right(&*store).await;
    an_unfinished_stream_leaves_nothing(&*store).await;
    a_mapping_of_another_length_is_damage(&*store).await;
    paths_that_leave_the_store_are_refused(&*store).await;
}

async fn missing_objects_are_not_found(store: &dyn Store) {
    let kinds = [store.get("none/here").await.err(), store.map("none/here", 1).await.err()];
    for error in kinds {
        assert_eq!(error.expect("nothing is there").kind(), ErrorKind::NotFound);
    }
    assert_eq!(store.list("none/").await.expect("an empty listing"), []);
    store.delete("none/here").await.expect("removing nothing is no error");
}

async fn objects_come_back_whole(store: &dyn Store) {
    for len in [0, 1, 4096, 100_000] {
        let path = format!("whole/{len}");
        let bytes = pattern(len, len as u8);
        store.put(&path, bytes.clone()).await.expect("put");
        assert_eq!(store.get(&path).await.expect("get"), bytes);
        assert_eq!(store.map(&path, len as u64).await.expect("map"), bytes);
    }
    store.put("whole/1", Bytes::from_static(b"again")).await.expect("put over an object");
    assert_eq!(store.get("whole/1").await.expect("get"), "again");
}

async fn a_listing_is_complete_sorted_and_below_its_prefix(store: &dyn Store) {
    let paths = ["l/a-b", "l/a/x/y", "l/b/10", "l/b/2", "l/c", "l2/a"];
    for path in paths.iter().rev() {
        store.put(path, Bytes::from_static(b"12345")).await.expect("put");
    }
    let listed = store.list("l/").await.expect("list");
    let names: Vec<&str> = listed.iter().map(|m| m.path.as_str()).collect();
    assert_eq!(names, ["l/a-b", "l/a/x/y", "l/b/10", "l/b/2", "l/c"]);
    assert!(listed.iter().all(|m| m.size == 5));
    let all = store.list("").await.expect("list everything");
    assert!(all.is_sorted_by(|a, b| a.path < b.path) && paths.iter().all(|p| all.iter().any(|m| m.path == *p)));
    assert_eq!(store.list("l/a/x/").await.expect("list").len(), 1);
}

async fn a_removed_object_is_gone_and_may_be_removed_again(store: &dyn Store) {
    store.put("gone/deep/er/x", Bytes::from_static(b"x")).await.expect("put");
    for _ in 0..2 {
        store.delete("gone/deep/er/x").await.expect("delete");
        assert_eq!(store.get("gone/deep/er/x").await.expect_err("gone").kind(), ErrorKind::NotFound);
    }
    assert_eq!(store.list("gone/").await.expect("list"), []);
    assert_eq!(
        store.put_if_absent("gone/deep/er/x", Bytes::from_static(b"y")).await.expect("put"),
        PutOutcome::Created
    );
}

async fn the_second_of_two_puts_finds_the_first(store: &dyn Store) {
    let put = |bytes: &'static [u8]| store.put_if_absent("twice/x", Bytes::from_static(bytes));
    assert_eq!(put(b"first").await.expect("put if absent"), PutOutcome::Created);
    assert_eq!(put(b"second").await.expect("put if absent"), PutOutcome::Exists);
    assert_eq!(store.get("twice/x").await.expect("get"), "first");
}

async fn one_of_many_racers_creates_the_object(store: &Arc<dyn Store>) {
    for round in 0..4 {
        let racers = (0..RACERS).map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.put_if_absent(&format!("race/{round}"), pattern(500, n as u8)).await })
        });
        let mut created = Vec::new();
        for (n, racer) in racers.collect::<Vec<_>>().into_iter().enumerate() {
            if racer.await.expect("no panic").expect("put if absent") == PutOutcome::Created {
                created.push(n);
            }
        }
        assert_eq!(created.len(), 1, "created by {created:?}");
        let there = store.get(&format!("race/{round}")).await.expect("get");
        assert_eq!(there, pattern(500, created[0] as u8), "whose answer was Created");
    }
}

async fn streamed_objects_are_whole_and_their_checksum_is_right(store: &dyn Store) {
    const PIECE: usize = 700_001;
    for pieces in [0, 1, 30] {
        let path = format!("stream/{pieces}");
        let whole = pattern(PIECE * pieces, 7);
        let mut writer = store.create(&path).await.expect("create");
        for at in 0..pieces {
            writer.write(whole.slice(at * PIECE..(at + 1) * PIECE)).await.expect("write");
        }
        let written = writer.finish().await.expect("finish");
        assert_eq!((written.len, written.crc32c), (whole.len() as u64, crc32c::crc32c(&whole)));
        assert_eq!(store.map(&path, whole.len() as u64).await.expect("map"), whole);
    }
}

async fn an_unfinished_stream_leaves_nothing(store: &dyn Store) {
    let mut writer: Box<dyn ObjectWriter> = store.create("unfinished/x").await.expect("create");
    writer.write(pattern(9 << 20, 1)).await.expect("write");
    assert_eq!(store.get("unfinished/x").await.expect_err("not yet").kind(), ErrorKind::NotFound);
    drop(writer);
    assert_eq!(store.list("unfinished/").await.expect("list"), []);
}

async fn a_mapping_of_another_length_is_damage(store: &dyn Store) {
    store.put("length/x", Bytes::from_static(b"12345")).await.expect("put");
    for len in [0, 4, 6] {
        let error = store.map("length/x", len).await.expect_err("another length");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let says = |what: &str| error.message().contains(what);
        assert!(says("length/x") && says(&format!("expected {len} bytes")) && says("has 5"), "{error}");
    }
}

async fn paths_that_leave_the_store_are_refused(store: &dyn Store) {
    for path in ["../x", "a/../../x", "/x", "a//b", "", ".x"] {
        let refused = [
            store.put(path, Bytes::new()).await.err(),
            store.put_if_absent(path, Bytes::new()).await.err(),
            store.get(path).await.err(),
            store.delete(path).await.err(),
            store.create(path).await.err(),
            store.map(path, 0).await.err(),
        ];
        assert!(
            refused.iter().flatten().filter(|e| e.kind() == ErrorKind::Invalid).count() == 6,
            "{path}: {refused:?}"
        );
    }
    assert_eq!(store.list("../").await.expect_err("refused").kind(), ErrorKind::Invalid);
}

/// Bytes that differ by position and by `salt`.
fn pattern(len: usize, salt: u8) -> Bytes {
    let period: Vec<u8> = (0..=250).map(|i| i ^ salt).collect();
    let mut bytes = period.repeat(len.div_ceil(period.len()));
    bytes.truncate(len);
    bytes.into()
}
