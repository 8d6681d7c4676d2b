//! How long a flush takes against a plain write of the same bytes, in the same run.
//!
//! `cargo run --release --example flush_time [-- ROWS DIM]`, 50,000 rows of 1,024 dimensions unless told. Fills one
//! memtable, waits until its graph holds every row, flushes, then writes and syncs as many bytes to one file. Meanwhile
//! a second task writes single rows, to see how long the flush holds a write up. Prints one JSON object.

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vectide::{Durability, Error, Metric, Options, Result, Table, TableSchema, Vectide, arrow};

fn batch(first: usize, rows: usize, dim: usize) -> RecordBatch {
    let mut state = first as u64 + 1;
    let mut value = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let values: Vec<f32> = (0..rows * dim).map(|_| value()).collect();
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, dim as i32, Arc::new(Float32Array::from(values)), None);
    let ids = Int64Array::from_iter_values((first..first + rows).map(|id| id as i64));
    let columns: Vec<(&str, ArrayRef)> = vec![("id", Arc::new(ids)), ("vec", Arc::new(vectors))];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn schema(dim: usize) -> Result<TableSchema> {
    let vector = DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Float32, true)), dim as i32);
    let fields = vec![Field::new("id", DataType::Int64, false), Field::new("vec", vector, true)];
    TableSchema::builder(Schema::new(fields)).key("id").vector("vec", Metric::Cosine).build()
}

/// Writes and syncs `bytes` bytes, a mebibyte at a time.
fn plain_write(path: &std::path::Path, bytes: u64) -> std::io::Result<Duration> {
    let piece: Vec<u8> = (0..1 << 20).map(|i: u32| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let started = Instant::now();
    let mut file = std::fs::File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    file.sync_data()?;
    Ok(started.elapsed())
}

/// The longest that a one-row write and a search took until `stop`.
async fn disturb(table: Table, first: usize, dim: usize, stop: Arc<AtomicBool>) -> Result<(Duration, Duration)> {
    let (mut write, mut search) = (Duration::ZERO, Duration::ZERO);
    let mut id = first;
    while !stop.load(Ordering::Relaxed) {
        let row = batch(id, 1, dim);
        let started = Instant::now();
        table.upsert(row).await?;
        write = write.max(started.elapsed());
        let started = Instant::now();
        table.search(&vec![0.1; dim]).k(10).await?;
        search = search.max(started.elapsed());
        id += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok((write, search))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("ROWS and DIM are numbers"));
    let (rows, dim) = (numbers.next().unwrap_or(50_000), numbers.next().unwrap_or(1024));
    let dir = std::env::temp_dir().join(format!("vectide-flush-{}", std::process::id()));
    let options = Options {
        durability: Durability::Buffered,
        memory_bytes: 8 << 30,
        memtable_bytes: 4 << 30,
        memtable_rows: 10_000_000,
        flush_interval_ms: 0,
        ..Options::default()
    };
    let db = Vectide::open(&dir.display().to_string(), options).await?;
    let table = db.create_table("rows", schema(dim)?).await?;
    let mut token = None;
    for first in (0..rows).step_by(1000) {
        token = Some(table.upsert(batch(first, 1000.min(rows - first), dim)).await?.token);
    }
    if let Some(token) = token {
        table.wait_durable(token).await?;
    }
    while table.stats().memtable.tail_rows > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let quiet = Arc::new(AtomicBool::new(false));
    let disturbing = tokio::spawn(disturb(table.clone(), rows, dim, Arc::clone(&quiet)));
    table.flush().await?;
    quiet.store(true, Ordering::Relaxed);
    let (write, search) = disturbing.await.map_err(|e| Error::internal("the second task").with_source(e))??;
    let stats = table.stats().flush;
    let io = |e| Error::io("the plain write", e);
    let plain = plain_write(&dir.join("plain"), stats.bytes).map_err(io)?;
    let plain_ms = plain.as_secs_f64() * 1e3;
    println!(
        "{{\"rows\": {rows}, \"dim\": {dim}, \"bytes\": {}, \"flush_ms\": {:.1}, \"plain_write_ms\": {plain_ms:.1}, \
         \"flush_over_plain\": {:.2}, \"longest_write_ms\": {:.1}, \"longest_search_ms\": {:.1}}}",
        stats.bytes,
        stats.last_ms,
        stats.last_ms / plain_ms,
        write.as_secs_f64() * 1e3,
        search.as_secs_f64() * 1e3,
    );
    db.close().await?;
    std::fs::remove_dir_all(&dir).map_err(io)
}
