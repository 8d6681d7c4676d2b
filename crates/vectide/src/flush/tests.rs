use crate::store::fault::{FaultOptions, FaultStore};
use crate::store::{Store, StoreOptions, open_uri};
use crate::{Error, ErrorKind, Table, Vectide};
use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const ROWS: i64 = 300;

fn rows() -> RecordBatch {
    let ids = Int64Array::from_iter_values(0..ROWS);
    let values = Float32Array::from_iter_values((0..ROWS * 4).map(|v| v as f32));
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, 4, Arc::new(values), None);
    let columns: Vec<(&str, ArrayRef)> = vec![("id", Arc::new(ids)), ("vec", Arc::new(vectors))];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

async fn filled(store: Arc<dyn Store>) -> (Vectide, Table) {
    let db = Vectide::builder("faulty").store(store).open().await.expect("opens");
    let schema = crate::schema! { key id: Int64, vector vec: [f32; 4] l2 };
    let table = db.create_table("t", schema).await.expect("creates");
    table.upsert(rows()).await.expect("writes");
    table.delete(vec![7, 8]).await.expect("deletes");
    (db, table)
}

/// Whether any version of the shard names a segment.
async fn names_a_segment(store: &Arc<dyn Store>) -> bool {
    for object in store.list("tables/").await.expect("lists") {
        if object.path.contains("/manifest/") {
            let text = store.get(&object.path).await.expect("is there");
            if !String::from_utf8_lossy(&text).contains("\"segments\":[]") {
                return true;
            }
        }
    }
    false
}

/// Passes `left` points of calls on segments, then fails them all until it is mended.
struct Fault {
    left: AtomicU32,
    is_mended: AtomicBool,
    passed: AtomicU32,
}

impl Fault {
    fn set(faults: &FaultStore, left: u32) -> Arc<Self> {
        let fault =
            Arc::new(Self { left: AtomicU32::new(left), is_mended: AtomicBool::new(false), passed: AtomicU32::new(0) });
        let hook = Arc::clone(&fault);
        faults.set_hook(Arc::new(move |point| {
            if !point.path.contains("/segments/") || hook.is_mended.load(Ordering::SeqCst) {
                return Ok(());
            }
            hook.passed.fetch_add(1, Ordering::SeqCst);
            let left = hook.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            left.map(drop).map_err(|_| Error::unavailable(format!("told to fail at {point}")))
        }));
        fault
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_store_call_of_a_flush_fails_no_manifest_names_its_files_and_a_retry_succeeds() {
    let memory = || open_uri("memory://", &StoreOptions::default()).expect("opens");
    let faults = FaultStore::new(memory(), FaultOptions::default());
    let (_db, table) = filled(faults.shared()).await;
    let fault = Fault::set(&faults, u32::MAX);
    table.flush().await.expect("flushes");
    // Four parts are created, finished and mapped, each call with a point before and one after its effect.
    let points = fault.passed.load(Ordering::SeqCst);
    assert_eq!(points, 24);
    for left in 0..points {
        let inner = memory();
        let faults = FaultStore::new(Arc::clone(&inner), FaultOptions::default());
        let (_db, table) = filled(faults.shared()).await;
        let fault = Fault::set(&faults, left);
        let error = table.flush().await.expect_err("a call failed");
        assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("told to fail"), "{error:?}");
        assert!(!names_a_segment(&inner).await, "after {left} points");
        assert_eq!(table.count().await.expect("counts"), ROWS as u64 - 2);
        fault.is_mended.store(true, Ordering::SeqCst);
        while table.stats().segments.count == 0 || table.stats().sealed.count > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(names_a_segment(&inner).await);
        assert_eq!(table.count().await.expect("counts"), ROWS as u64 - 2);
        table.verify().await.expect("is whole");
    }
}
