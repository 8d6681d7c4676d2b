//! Recall and reachability: gates, before and after flush, and while rows stream in.

use crate::support::{Rng, ids};
use std::sync::Arc;
use vectide::arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use vectide::arrow::datatypes::{DataType, Field, Float16Type};
use vectide::{Metric, Options, Table, TableSchema, Vectide, arrow, keys};

fn schema(dim: i32, metric: Metric) -> TableSchema {
    let vec = Field::new_fixed_size_list("vec", Field::new_list_field(DataType::Float32, true), dim, true);
    let arrow = arrow::datatypes::Schema::new(vec![Field::new("id", DataType::Int64, false), vec]);
    TableSchema::builder(arrow).key("id").vector("vec", metric).build().expect("valid")
}

pub fn batch(first: i64, vectors: &[Vec<f32>]) -> RecordBatch {
    let dim = vectors.first().map_or(1, Vec::len) as i32;
    let values = Float32Array::from(vectors.concat());
    let list =
        FixedSizeListArray::new(Arc::new(Field::new_list_field(DataType::Float32, true)), dim, Arc::new(values), None);
    let ids: Int64Array = (first..first + vectors.len() as i64).collect();
    RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("vec", Arc::new(list) as ArrayRef)])
        .expect("a batch")
}

pub async fn create(dim: i32, metric: Metric, options: Options) -> (Vectide, Table) {
    let db = Vectide::open("memory://", options).await.expect("opens");
    let table = db.create_table("t", schema(dim, metric)).await.expect("creates");
    (db, table)
}

pub async fn recall(table: &Table, queries: &[Vec<f32>], k: usize, ef: usize) -> f64 {
    let snapshot = table.snapshot();
    let found = snapshot.search_batch(queries).k(k).ef_search(ef).await.expect("searches");
    let truth = snapshot.search_batch(queries).k(k).exact(true).await.expect("scans");
    let hit: usize =
        found.iter().zip(&truth).map(|(f, t)| ids(t).iter().filter(|id| ids(f).contains(id)).count()).sum();
    hit as f64 / (k * queries.len()) as f64
}

/// The words of the data set that the repository ships, `[n, 100]`.
pub fn glove() -> Vec<Vec<f32>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/glove-100d-25k.arrow");
    let file = std::fs::File::open(path).expect("shipped with the repository");
    let reader = arrow::ipc::reader::FileReader::try_new(file, None).expect("Arrow IPC");
    let mut rows = Vec::new();
    for batch in reader {
        let batch = batch.expect("a batch");
        let list = batch.column_by_name("vec").expect("vec").as_fixed_size_list().clone();
        let values = list.values().as_primitive::<Float16Type>().values().to_vec();
        rows.extend(values.chunks(100).map(|row| row.iter().map(|v| v.to_f32()).collect::<Vec<f32>>()));
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recall_and_reachability_hold_on_raw_glove_before_and_after_flush() {
    let rows = glove();
    let (base, queries) = (&rows[..8_000], &rows[24_800..]);
    for metric in [Metric::L2, Metric::Cosine] {
        let (_db, table) = create(100, metric, Options { index_threads: 2, ..Options::default() }).await;
        for (n, chunk) in base.chunks(500).enumerate() {
            table.upsert(batch(n as i64 * 500, chunk)).await.expect("writes");
        }
        let before = recall(&table, queries, 10, 128).await;
        table.flush().await.expect("flushes");
        let after = recall(&table, queries, 10, 128).await;
        assert!(before >= 0.97 && after >= 0.97, "{metric:?}: {before} before, {after} after");
        let report = table.verify().await.expect("sound");
        assert_eq!(report.reachable_nodes, 8_000, "every row is reachable at level 0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_near_copies_are_found() {
    let mut rng = Rng(14);
    let centre: Vec<f32> = (0..32).map(|_| rng.unit()).collect();
    let mut rows: Vec<Vec<f32>> = (0..60).map(|_| centre.iter().map(|v| v + rng.unit() * 1e-4).collect()).collect();
    rows.extend((0..20).map(|_| (0..32).map(|_| 50.0 + 50.0 * rng.unit()).collect()));
    let vec = Field::new_fixed_size_list("vec", Field::new_list_field(DataType::Float32, true), 32, true);
    let arrow = arrow::datatypes::Schema::new(vec![Field::new("id", DataType::Int64, false), vec]);
    let options = vectide::schema::VectorOptions { m: 48, ..vectide::schema::VectorOptions::new(Metric::L2) };
    let schema = TableSchema::builder(arrow).key("id").vector_with("vec", options).build().expect("valid");
    let db = Vectide::open("memory://", Options::default()).await.expect("opens");
    let table = db.create_table("t", schema).await.expect("creates");
    table.upsert(batch(0, &rows)).await.expect("writes");
    for _ in 0..2 {
        let hits = table.search(&centre).k(80).ef_search(160).await.expect("searches");
        assert_eq!(hits.num_rows(), 80);
        table.flush().await.expect("flushes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recall_is_the_same_over_every_mix_of_tiers_while_rows_are_replaced() {
    let mut rng = Rng(20);
    let mut row = || -> Vec<f32> { (0..24).map(|_| rng.unit() + rng.unit() - 1.0).collect() };
    let rows: Vec<Vec<f32>> = (0..6_000).map(|_| row()).collect();
    let queries: Vec<Vec<f32>> = (0..50).map(|_| row()).collect();
    let options = Options { memtable_rows: 2_500, ..Options::default() };
    let (_db, table) = create(24, Metric::L2, options).await;
    for (n, chunk) in rows.chunks(300).enumerate() {
        table.upsert(batch(n as i64 * 300, chunk)).await.expect("writes");
        let replaced: Vec<Vec<f32>> = (0..30).map(|i| rows[(n * 131 + i * 7) % rows.len()].clone()).collect();
        table.upsert(batch((n as i64 * 97) % 300, &replaced)).await.expect("writes");
        if n % 5 == 4 {
            let found = recall(&table, &queries, 10, 128).await;
            assert!(found >= 0.97, "{found} after {n} chunks");
        }
    }
    table.flush().await.expect("flushes");
    let found = recall(&table, &queries, 10, 128).await;
    assert!(found >= 0.97, "{found} at the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_vectors_are_kept_and_not_searched() {
    let (_db, table) = create(3, Metric::Cosine, Options::default()).await;
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Float32Array::from(vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let nulls = arrow::buffer::NullBuffer::from(vec![true, false, true]);
    let list = FixedSizeListArray::new(Arc::clone(&item), 3, Arc::new(values), Some(nulls));
    let some_null = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef, false),
        ("vec", Arc::new(list) as ArrayRef, true),
    ]);
    table.upsert(some_null.expect("a batch")).await.expect("writes");
    let all_null = FixedSizeListArray::new_null(item, 3, 2);
    let all_null = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from(vec![4, 5])) as ArrayRef, false),
        ("vec", Arc::new(all_null) as ArrayRef, true),
    ]);
    table.upsert(all_null.expect("a batch")).await.expect("writes");
    for _ in 0..2 {
        let hits = table.search(&[1.0, 0.1, 0.0]).k(10).await.expect("searches");
        assert_eq!(ids(&hits), [1, 3]);
        assert_eq!(table.count().await.expect("counts"), 5);
        let kept = table.get(keys![2, 4]).await.expect("gets");
        assert_eq!(kept.column_by_name("vec").expect("vec").null_count(), 2);
        table.flush().await.expect("flushes");
    }
}
