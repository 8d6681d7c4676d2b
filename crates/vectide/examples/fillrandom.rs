//! The memtable at memory speed: RocksDB's `fillrandom` shape, rows of a 16-byte random key and a 100-byte value, without
//! a log and without a vector column.
//!
//! `cargo run --release -p vectide --example fillrandom [-- --threads 1,2 --batch 1,100,1000 --rows N --keyed]`. Each
//! thread has an appender and commits every `batch` rows. Prints one JSON object per combination: rows a second over all
//! threads, bytes a row by `stats()`, and the ratio to one thread of the same batch.

#![allow(clippy::disallowed_methods, reason = "measures real time with threads of its own")]

use arrow::datatypes::{DataType, Field, Schema};
use std::collections::HashMap;
use std::time::Instant;
use vectide::{Durability, Options, Result, TableSchema, Value, Vectide, arrow};

struct Arguments {
    threads: Vec<usize>,
    batches: Vec<u64>,
    rows: u64,
    keyed: bool,
}

fn arguments() -> Arguments {
    let mut out = Arguments { threads: vec![1, 2, 4, 8], batches: vec![1, 100, 1_000], rows: 4_000_000, keyed: false };
    let mut rest = std::env::args().skip(1);
    let list = |text: String| text.split(',').map(|n| n.parse().expect("a number")).collect::<Vec<u64>>();
    while let Some(name) = rest.next() {
        let mut value = || rest.next().expect("a value");
        match name.as_str() {
            "--threads" => out.threads = list(value()).into_iter().map(|n| n as usize).collect(),
            "--batch" => out.batches = list(value()),
            "--rows" => out.rows = value().parse().expect("a number"),
            "--keyed" => out.keyed = true,
            other => panic!("unknown argument {other}"),
        }
    }
    out
}

/// xorshift: cheaper than what it feeds.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn fill(table: &vectide::Table, thread: usize, rows: u64, batch: u64) -> Result<()> {
    let mut appender = table.appender();
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread as u64 + 1);
    let value = [b'v'; 100];
    for first in (0..rows).step_by(batch as usize) {
        for _ in 0..batch.min(rows - first) {
            let mut key = [0u8; 16];
            key[..8].copy_from_slice(&random(&mut state).to_le_bytes());
            key[8..].copy_from_slice(&random(&mut state).to_le_bytes());
            appender.append_row(&[Value::Bytes(&key), Value::Bytes(&value)])?;
        }
        appender.commit_blocking()?;
    }
    Ok(())
}

async fn measure(arguments: &Arguments, threads: usize, batch: u64) -> Result<(f64, f64)> {
    let options = Options {
        durability: Durability::None,
        memory_bytes: 12 << 30,
        memtable_bytes: 8 << 30,
        memtable_rows: 1 << 30,
        flush_interval_ms: 0,
        ..Options::default()
    };
    let db = Vectide::open("memory://", options).await?;
    let schema = Schema::new(vec![
        Field::new("key", DataType::FixedSizeBinary(16), false),
        Field::new("value", DataType::Binary, false),
    ]);
    let schema = TableSchema::builder(schema);
    let schema = if arguments.keyed { schema.key("key") } else { schema };
    let table = db.create_table("fill", schema.build()?).await?;
    let each = arguments.rows / threads as u64;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|n| {
                let table = table.clone();
                scope.spawn(move || fill(&table, n, each, batch))
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))
    })?;
    let took = started.elapsed().as_secs_f64();
    let rows = each * threads as u64;
    assert_eq!(table.count().await?, rows);
    let memtable = table.stats().memtable;
    let bytes = memtable.rows_bytes + memtable.key_bytes + memtable.bookkeeping_bytes;
    Ok((rows as f64 / took, bytes as f64 / rows as f64))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = arguments();
    let mut alone: HashMap<u64, f64> = HashMap::new();
    for &batch in &arguments.batches {
        for &threads in &arguments.threads {
            let (speed, bytes) = measure(&arguments, threads, batch).await?;
            let one = *alone.entry(batch).or_insert(speed);
            let keyed = arguments.keyed;
            println!(
                "{{\"threads\": {threads}, \"batch\": {batch}, \"keyed\": {keyed}, \"rows_per_s\": {speed:.0}, \
                 \"scaling\": {:.2}, \"bytes_per_row\": {bytes:.1}}}",
                speed / one
            );
        }
    }
    Ok(())
}
