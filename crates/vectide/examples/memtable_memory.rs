//! What a row costs in memory: writes rows singly and by thousands, and compares `stats()` with the allocator.
//!
//! `cargo run --release --example memtable_memory [-- ROWS DIM]`, 20,000 rows of 64 dimensions unless told. Prints one
//! JSON object per way of writing: bytes a row by component, what the allocator holds beyond the rows themselves, and
//! by how much `stats()` is off. The database lies in a temporary directory, buffered: no sync is waited for.

#![allow(unsafe_code, reason = "a counting allocator")]

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use vectide::{Durability, Options, Result, Vectide, arrow};

struct Counting;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: 1. every call is passed on to the system allocator with the caller's own arguments; 2. counting touches no
// memory but a static atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE_BYTES.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn batch(first: usize, rows: usize, dim: usize) -> RecordBatch {
    let mut state = first as u64 + 1;
    let mut value = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let values: Vec<f32> = (0..rows * dim).map(|_| value()).collect();
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, dim as i32, Arc::new(Float32Array::from(values)), None);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values((first..first + rows).map(|id| id as i64)))),
        ("text", Arc::new(StringArray::from_iter_values((first..first + rows).map(|id| format!("row {id:8}"))))),
        ("vec", Arc::new(vectors)),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

/// Bytes of a row in Arrow: key, text with its offset, vector.
fn row_bytes(dim: usize) -> f64 {
    (8 + 12 + 4 + dim * 4) as f64
}

async fn measure(rows: usize, dim: usize, batch_rows: usize) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("vectide-memory-{}-{batch_rows}", std::process::id()));
    let options = Options {
        durability: Durability::Buffered,
        memory_bytes: 8 << 30,
        memtable_bytes: 4 << 30,
        memtable_rows: 10_000_000,
        flush_interval_ms: 0,
        ..Options::default()
    };
    let db = Vectide::open(&dir.display().to_string(), options).await?;
    let field = |name: &str, of, nullable| Field::new(name, of, nullable);
    let vector = DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Float32, true)), dim as i32);
    let arrow = arrow::datatypes::Schema::new(vec![
        field("id", DataType::Int64, false),
        field("text", DataType::Utf8, true),
        field("vec", vector, true),
    ]);
    let schema = vectide::TableSchema::builder(arrow).key("id").vector("vec", vectide::Metric::Cosine).build()?;
    let table = db.create_table("rows", schema).await?;
    // The first batch sets up buffers and threads that have nothing to do with rows.
    table.upsert(batch(rows, 1, dim)).await?;
    table.search(&vec![0.1; dim]).k(1).await?;
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let stats_before = table.stats().memtable;
    let mut token = None;
    for first in (0..rows).step_by(batch_rows) {
        token = Some(table.upsert(batch(first, batch_rows.min(rows - first), dim)).await?.token);
    }
    if let Some(token) = token {
        table.wait_durable(token).await?;
    }
    while table.stats().memtable.tail_rows > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let held = (LIVE_BYTES.load(Ordering::Relaxed) - before) as f64;
    let stats = table.stats().memtable;
    let per_row = |now: u64, then: u64| (now - then) as f64 / rows as f64;
    let parts = [
        per_row(stats.rows_bytes, stats_before.rows_bytes),
        per_row(stats.graph_bytes, stats_before.graph_bytes),
        per_row(stats.key_bytes, stats_before.key_bytes),
        per_row(stats.bookkeeping_bytes, stats_before.bookkeeping_bytes),
    ];
    let [in_rows, graph, keys, bookkeeping] = parts;
    let counted: f64 = parts.iter().sum();
    println!(
        "{{\"rows\": {rows}, \"dim\": {dim}, \"batch_rows\": {batch_rows}, \"row_bytes\": {:.1}, \"rows_bytes\": {in_rows:.1}, \
         \"graph_bytes\": {graph:.1}, \"key_bytes\": {keys:.1}, \"bookkeeping_bytes\": {bookkeeping:.1}, \
         \"allocated_beyond_rows\": {:.1}, \"stats_over_allocated\": {:.3}}}",
        row_bytes(dim),
        held / rows as f64 - row_bytes(dim),
        counted / (held / rows as f64),
    );
    db.close().await?;
    std::fs::remove_dir_all(&dir).map_err(|e| vectide::Error::io("removing the temporary database", e))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("ROWS and DIM are numbers"));
    let (rows, dim) = (numbers.next().unwrap_or(20_000), numbers.next().unwrap_or(64));
    for batch_rows in [1, 100, 1_000] {
        measure(rows, dim, batch_rows).await?;
    }
    Ok(())
}
