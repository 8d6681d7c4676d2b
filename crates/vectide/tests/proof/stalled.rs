//! A log that stalls: what others see meanwhile, by `visibility`, and what the stats say holds them back.

use crate::support::*;
use std::time::Duration;
use vectide::stats::WaitsFor;
use vectide::store::fault::{FaultOptions, FaultStore};
use vectide::store::fault_fs::Phase;
use vectide::store::{StoreOptions, open_uri};
use vectide::{Options, Table, Vectide, Visibility};

async fn open(name: &str, visibility: Visibility) -> (Vectide, Table, FaultStore) {
    let inner = open_uri(&format!("memory://{name}"), &StoreOptions::default()).expect("memory");
    let store = FaultStore::new(inner, FaultOptions::default());
    let options = Options { visibility, ..Options::default() };
    let db = Vectide::builder("stalled").store(store.shared()).options(options).open().await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    table.upsert(numbered([1], "before")).await.expect("writes");
    (db, table, store)
}

async fn keys(table: &Table) -> Vec<i64> {
    all_rows(table).await.into_iter().map(|(key, _)| key).collect()
}

/// Starts a write of `rows` while the log stalls, and waits until it is published.
async fn write_stalled(table: &Table, rows: std::ops::Range<i64>) -> tokio::task::JoinHandle<()> {
    let published = table.stats().writes.batches;
    let writer = {
        let (table, rows) = (table.clone(), numbered(rows, "during"));
        tokio::spawn(async move {
            table.upsert(rows).await.expect("acknowledged once the log goes on");
        })
    };
    for _ in 0..2_000 {
        if table.stats().writes.batches > published {
            return writer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the write was never published");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_table_shows_nothing_that_is_not_durable_and_names_what_it_waits_for() {
    let (_db, table, store) = open("stalled-ordered", Visibility::Ordered).await;
    store.stall(Phase::Before);
    let first = write_stalled(&table, 10..20).await;
    let second = write_stalled(&table, 20..25).await;
    assert_eq!(keys(&table).await, [1], "neither is durable");
    let held = table.stats().held_back.expect("something waits");
    let visible = table.stats().visible_publication;
    assert_eq!((held.publication, held.rows, held.waits_for), (visible + 1, 15, WaitsFor::Log));
    assert!(held.for_ms >= 0.0);
    assert!(!first.is_finished() && !second.is_finished());
    store.release();
    first.await.expect("written");
    second.await.expect("written");
    assert_eq!(table.count().await.expect("counts"), 16);
    assert_eq!(table.stats().held_back, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_an_unordered_table_a_stalled_writer_hides_no_others_rows() {
    let (_db, table, store) = open("stalled-unordered", Visibility::Unordered).await;
    store.stall(Phase::Before);
    let first = write_stalled(&table, 10..20).await;
    let snapshot = table.snapshot();
    let second = write_stalled(&table, 20..25).await;
    assert_eq!(table.count().await.expect("counts"), 16, "by count");
    assert_eq!(ids(&table.get(vec![24i64]).await.expect("gets")), [24], "by key");
    assert_eq!(ids(&table.search(&[24.0; DIM]).k(1).await.expect("searches")), [24], "by vector");
    assert_eq!(snapshot.count().await.expect("counts"), 11, "a snapshot stays what it was");
    assert!(!first.is_finished() && !second.is_finished(), "seen, not acknowledged");
    assert_eq!(table.stats().held_back.map(|held| held.waits_for), Some(WaitsFor::Log));
    store.release();
    first.await.expect("written");
    second.await.expect("written");
}

/// What is given up, and what is not: the rows of a writer that dies before its log has them are gone, whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_unordered_table_showed_and_never_acknowledged_may_be_gone_after_a_crash() {
    let inner = open_uri("memory://stalled-crash", &StoreOptions::default()).expect("memory");
    let store = FaultStore::new(std::sync::Arc::clone(&inner), FaultOptions::default());
    let options = Options { visibility: Visibility::Unordered, ..Options::default() };
    let db = Vectide::builder("stalled").store(store.shared()).options(options.clone()).open().await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    table.upsert(numbered([1, 2], "kept")).await.expect("writes");
    store.stall(Phase::Before);
    let lost = write_stalled(&table, 10..20).await;
    assert_eq!(table.count().await.expect("counts"), 12, "seen");
    lost.abort();
    drop((table, db));
    let db = Vectide::builder("again").store(inner).options(options).open().await.expect("opens again");
    let table = db.open_table("t").await.expect("opens again");
    assert_eq!(keys(&table).await, [1, 2]);
}
