//! A disk that fills: writes are refused, reads and deletes go on, and everything works again once there is room.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use vectide::store::LocalStore;
use vectide::store::sim::SimFs;
use vectide::{ErrorKind, Options, Table, Vectide};

/// What fits before the disk is full.
const SMALL: u64 = 6 << 20;

async fn open(fs: &SimFs) -> (Vectide, Table) {
    let store = LocalStore::open(fs.shared(), "/db").expect("opens");
    let options = Options { memtable_rows: 2_000, ..Options::default() };
    let db = Vectide::builder("sim").store(Arc::new(store)).options(options).open().await.expect("opens");
    let table = match db.open_table("t").await {
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table("t", schema()).await.expect("creates"),
        other => other.expect("opens"),
    };
    (db, table)
}

fn wide(first: i64) -> vectide::arrow::array::RecordBatch {
    let state = "x".repeat(200);
    numbered(first..first + 100, &state)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_serves_reads_and_deletes_and_recovers() {
    let fs = SimFs::new();
    let (db, table) = open(&fs).await;
    fs.limit_bytes(Some(SMALL));
    let mut written = 0;
    let error = loop {
        match table.upsert(wide(written)).await {
            Ok(_) => written += 100,
            Err(error) => break error,
        }
        assert!(written < 1_000_000, "the disk never fills");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("full"), "{error}");
    assert!(written >= 1_000, "only {written} rows fitted");
    for _ in 0..3 {
        assert_eq!(table.upsert(wide(written)).await.expect_err("still full").kind(), ErrorKind::Unavailable);
    }
    assert_eq!(table.count().await.expect("counts"), written as u64, "nothing of a refused batch is there");
    assert_eq!(ids(&table.search(&[7.0; DIM]).k(1).await.expect("searches")), [7]);
    assert_eq!(table.get(vec![written - 1, written]).await.expect("gets").num_rows(), 1);
    for key in 0..50 {
        assert_eq!(table.delete(vec![key]).await.expect("deletes go on").deleted, 1);
    }
    assert_eq!(ids(&table.search(&[7.0; DIM]).k(1).await.expect("searches")), [50]);

    fs.limit_bytes(None);
    table.upsert(wide(written)).await.expect("there is room");
    table.flush().await.ok();
    let mut patience = 0;
    while table.flush().await.is_err() {
        patience += 1;
        assert!(patience < 100, "flushing goes on once there is room");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let rows = all_rows(&table).await.len() as i64;
    assert_eq!(rows, written + 100 - 50);
    assert_eq!(serde_json::to_value(table.stats().health).expect("serialises")["status"], "ok");
    drop((db, table));
    let (_db, table) = open(&fs.power_cut(0)).await;
    assert_eq!(table.count().await.expect("counts") as i64, rows);
    table.verify().await.expect("nothing is damaged");
}
