//! Bad input is refused whole, before anything is written, with a message that says what and where.

use crate::support::*;
use std::sync::Arc;
use vectide::arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, StringArray};
use vectide::arrow::datatypes::Float32Type;
use vectide::{ErrorKind, Options, Vectide, keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nan_in_row_57_refuses_the_batch_and_leaves_the_count() {
    let (_db, table) = table().await;
    for bad in [f32::NAN, f32::INFINITY] {
        let mut rows: Vec<(i64, &str, [f32; DIM])> = (0..100).map(|id| (id, "a", [id as f32; DIM])).collect();
        rows[57].2[2] = bad;
        for insert in [false, true] {
            let written = if insert { table.insert(batch(&rows)).await } else { table.upsert(batch(&rows)).await };
            let error = written.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains("row 57") && error.message().contains("`vec`"), "{error}");
            assert_eq!(table.count().await.expect("counts"), 0);
        }
    }
    assert_eq!(table.stats().writes.batches, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_queries_name_what_was_expected() {
    let (_db, table) = table().await;
    table.upsert(numbered(0..10, "a")).await.expect("writes");
    let error = table.search(&[1.0; 3]).await.expect_err("dimension");
    assert!(error.message().contains("expected dimension 4, got 3"), "{error}");
    let error = table.search(&[1.0; DIM]).k(0).await.expect_err("k");
    assert!(error.message().contains("k is 0"), "{error}");
    let error = table.search(&[f32::NAN; DIM]).await.expect_err("NaN");
    assert!(error.message().contains("NaN"), "{error}");
    let error = table.search(&[1.0; DIM]).columns(["nmae"]).await.expect_err("column");
    assert!(error.message().contains("`nmae`") && error.message().contains("state"), "{error}");
    let error = table.search(&[1.0; DIM]).column("vce").await.expect_err("vector column");
    assert!(error.message().contains("`vce`") && error.message().contains("vec"), "{error}");
    let error = table.search_batch(&vec![vec![1.0; DIM], vec![1.0; 2]]).await.expect_err("dimension");
    assert!(error.message().contains("vector 1"), "{error}");
    for error in [table.get(keys!["x"]).await.expect_err("type"), table.delete(keys!["x"]).await.expect_err("type")] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("Int64") && error.message().contains("Utf8"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_column_and_an_empty_batch() {
    let (_db, table) = table().await;
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let unknown = RecordBatch::try_from_iter([("id", Arc::clone(&ids)), ("colour", ids)]).expect("a batch");
    let error = table.upsert(unknown).await.expect_err("unknown");
    assert!(error.message().contains("`colour`"), "{error}");
    let ack = table.upsert(numbered([], "a")).await.expect("a no-op");
    assert_eq!((ack.inserted, ack.updated), (0, 0));
    assert_eq!(table.delete(Vec::<i64>::new()).await.expect("a no-op").deleted, 0);
    assert_eq!(table.stats().writes.batches, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_leave_the_directory_are_refused() {
    let (db, _table) = table().await;
    for name in ["../../x", "", ".hidden", "a/b", "a\\b", "a b"] {
        let error = db.create_table(name, schema()).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
    }
    let error = db.create_table("t", schema()).await.expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let error = db.open_table("u").await.expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("there are: t"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_and_uris_that_make_no_sense_are_refused() {
    let error = Vectide::open("memory://", Options { shards: 2, ..Options::default() }).await.expect_err("shards");
    assert!(error.message().contains("shards"), "{error}");
    let error = Vectide::open("ftp://x/y", Options::default()).await.expect_err("scheme");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_without_a_key_appends_and_refuses_what_needs_one() {
    let db = Vectide::open("memory://", Options::default()).await.expect("opens");
    let schema = vectide::schema! { id: Int64, state: Utf8, vector vec: [f32; 4] l2 };
    let table = db.create_table("log", schema).await.expect("creates");
    for _ in 0..2 {
        table.insert(numbered(0..100, "a")).await.expect("appends");
    }
    assert_eq!(table.count().await.expect("counts"), 200);
    assert_eq!(ids(&table.search(&[5.0; DIM]).k(2).await.expect("searches")), [5, 5]);
    for error in [
        table.upsert(numbered(0..1, "a")).await.expect_err("no key"),
        table.delete(keys![1]).await.expect_err("no key"),
        table.get(keys![1]).await.expect_err("no key"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("key"), "{error}");
    }
    table.flush().await.expect("flushes");
    assert_eq!(table.count().await.expect("counts"), 200);
}

/// Columns of a batch, any of which may be wrong.
fn columns(ids: ArrayRef, states: ArrayRef, vectors: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter([("id", ids), ("state", states), ("vec", vectors)]).expect("a batch")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_promise_three_refuses_is_named_by_column_and_row() {
    let (_db, table) = table().await;
    let ids = |ids: &[Option<i64>]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
    let states = || Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
    let good = || Arc::new(vectors(&[[1.0; DIM], [2.0; DIM]])) as ArrayRef;
    let long = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        [Some(vec![Some(1.0); 7]), Some(vec![Some(1.0); 7])],
        7,
    );
    let holed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        [Some(vec![Some(1.0); DIM]), Some(vec![Some(1.0), None, Some(1.0), Some(1.0)])],
        DIM as i32,
    );
    let refused = [
        (columns(ids(&[Some(1), None]), states(), good()), vec!["`id`", "row 1", "null"]),
        (columns(ids(&[Some(1), Some(2)]), states(), Arc::new(long)), vec!["`vec`", "4", "7"]),
        (columns(ids(&[Some(1), Some(2)]), states(), Arc::new(holed)), vec!["`vec`", "row 1"]),
        (columns(states(), states(), good()), vec!["`id`", "Int64", "Utf8"]),
    ];
    for (batch, words) in refused {
        for error in [table.upsert(batch.clone()).await, table.insert(batch).await].map(|r| r.expect_err("refused")) {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(words.iter().all(|word| error.message().contains(word)), "{words:?}: {error}");
        }
    }
    let twice = columns(ids(&[Some(7), Some(7)]), states(), good());
    let error = table.insert(twice).await.expect_err("twice");
    assert!(error.message().contains('7') && error.message().contains("row 1"), "{error}");
    assert_eq!((table.count().await.expect("counts"), table.stats().writes.batches), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zero_vector_under_cosine_is_refused_in_a_write_and_as_a_query() {
    let db = Vectide::open("memory://", Options::default()).await.expect("opens");
    let schema = vectide::schema! { key id: Int64, state: Utf8, vector vec: [f32; 4] cosine };
    let table = db.create_table("t", schema).await.expect("creates");
    let error = table.upsert(batch(&[(1, "a", [1.0; DIM]), (2, "a", [0.0; DIM])])).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(["`vec`", "row 1", "zero", "cosine"].iter().all(|word| error.message().contains(word)), "{error}");
    assert_eq!(table.count().await.expect("counts"), 0);
    table.upsert(batch(&[(1, "a", [1.0; DIM])])).await.expect("writes");
    let error = table.search(&[0.0; DIM]).await.expect_err("refused");
    assert!(error.message().contains("zero") && error.message().contains("cosine"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_all_null_vector_column_is_stored_and_not_searched() {
    let (_db, table) = table().await;
    let ids = Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
    let states = Arc::new(StringArray::from(vec![None::<&str>, None])) as ArrayRef;
    let nulls: [Option<Vec<Option<f32>>>; 2] = [None, None];
    let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(nulls, DIM as i32);
    table.upsert(columns(ids, states, Arc::new(vectors))).await.expect("stored");
    for _ in 0..2 {
        assert_eq!(table.count().await.expect("counts"), 2);
        assert_eq!(table.search(&[1.0; DIM]).await.expect("searches").num_rows(), 0);
        assert_eq!(table.get(keys![2]).await.expect("gets").num_rows(), 1);
        table.flush().await.expect("flushes");
    }
}
