//! Batches, databases and truths that the tests share.

use arrow::array::{Array, AsArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type};
use std::sync::Arc;
use vectide::{MergeOptions, Options, Table, TableSchema, Vectide, arrow};

/// `key id: Int64, state: Utf8, vector vec: [f32; DIM] l2`.
pub const DIM: usize = 4;

pub fn schema() -> TableSchema {
    vectide::schema! { key id: Int64, state: Utf8, vector vec: [f32; 4] l2 }.expect("valid")
}

/// A database in memory with a table `t` and the given options.
pub async fn table_with(options: Options) -> (Vectide, Table) {
    let db = Vectide::open("memory://", options).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    (db, table)
}

pub async fn table() -> (Vectide, Table) {
    table_with(Options::default()).await
}

/// Memtables of a few rows, so that everything seals and flushes all the time.
pub fn tiny() -> Options {
    let merge = MergeOptions { step_rows: 16, core_pct: 100, ..MergeOptions::default() };
    Options { memtable_rows: 50, memtable_bytes: 64 << 10, tail_rows: 16, merge, ..Options::default() }
}

pub fn vectors(rows: &[[f32; DIM]]) -> FixedSizeListArray {
    let values = Float32Array::from(rows.concat());
    FixedSizeListArray::new(
        Arc::new(Field::new_list_field(DataType::Float32, true)),
        DIM as i32,
        Arc::new(values),
        None,
    )
}

pub fn batch(rows: &[(i64, &str, [f32; DIM])]) -> RecordBatch {
    let ids: Int64Array = rows.iter().map(|r| r.0).collect();
    let states: StringArray = rows.iter().map(|r| Some(r.1)).collect();
    let vectors = vectors(&rows.iter().map(|r| r.2).collect::<Vec<_>>());
    RecordBatch::try_from_iter([
        ("id", Arc::new(ids) as Arc<dyn Array>),
        ("state", Arc::new(states)),
        ("vec", Arc::new(vectors)),
    ])
    .expect("a batch")
}

/// Rows `ids` whose vector is the id in every element.
pub fn numbered(ids: impl IntoIterator<Item = i64>, state: &str) -> RecordBatch {
    let rows: Vec<(i64, &str, [f32; DIM])> = ids.into_iter().map(|id| (id, state, [id as f32; DIM])).collect();
    batch(&rows)
}

pub fn ids(batch: &RecordBatch) -> Vec<i64> {
    batch.column_by_name("id").expect("id").as_primitive::<Int64Type>().values().to_vec()
}

pub fn states(batch: &RecordBatch) -> Vec<String> {
    batch
        .column_by_name("state")
        .expect("state")
        .as_string::<i32>()
        .iter()
        .map(|s| s.unwrap_or("").to_owned())
        .collect()
}

pub fn distances(batch: &RecordBatch) -> Vec<f32> {
    batch.column_by_name("_distance").expect("_distance").as_primitive::<Float32Type>().values().to_vec()
}

/// All rows of a table as sorted `(id, state)`.
pub async fn all_rows(table: &Table) -> Vec<(i64, String)> {
    let rows = table.scan().await.expect("scans").collect_all().expect("reads");
    let mut rows: Vec<_> = ids(&rows).into_iter().zip(states(&rows)).collect();
    rows.sort();
    rows
}

/// A small generator, so that a seed replays.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}
