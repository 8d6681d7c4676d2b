//! Filling memtables: threads with appenders write random rows, and the time of all of them is taken.
//!
//! Invariant: the memtable holds every row at the end, and nothing was flushed meanwhile.

use super::args::visibility_name;
use crate::cpu::process_seconds;
use crate::error::{Error, Outcome};
use arrow::datatypes::{DataType, Field, Schema};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use vectide::{Durability, Options, Table, TableSchema, Value, Vectide, Visibility};

pub(super) const KEY_BYTES: usize = 16;
pub(super) const VALUE_BYTES: usize = 100;

/// A dropped table's background task gives the memory back within this time; it would disturb the next run.
const PARTING: Duration = Duration::from_millis(100);

/// One combination of what `bench memtable` varies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    /// Whether the first column is the table's key.
    pub(super) keyed: bool,
    /// Rows a commit.
    pub(super) batch: usize,
    pub(super) threads: usize,
    pub(super) visibility: Visibility,
}

impl Setting {
    pub(super) fn label(&self) -> String {
        let table = if self.keyed { "keyed" } else { "key-less" };
        let visibility = visibility_name(self.visibility);
        format!("{table}, {visibility}, {} threads, batch {}", self.threads, self.batch)
    }
}

/// What filling two memtables of one database, one after the other, showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// Into memory that nobody has touched.
    pub(super) first: Speed,
    /// After the first is gone: into memory that the database keeps for the next memtable.
    pub(super) next: Speed,
    pub(super) bytes_per_row: f64,
}

/// Rows a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) ops_per_s: f64,
    /// Of processor time, of all threads together.
    pub(super) ops_per_cpu_s: f64,
}

/// Opens a new database and fills two memtables, each with `rows` rows, as many of each thread.
pub(super) async fn fill(setting: &Setting, rows: usize) -> Outcome<Filled> {
    let db = Vectide::open("memory://", options(setting, rows)).await?;
    let (first, bytes_per_row) = fill_table(&db, "first", setting, rows).await?;
    let (next, _) = fill_table(&db, "next", setting, rows).await?;
    db.close().await?;
    Ok(Filled { first, next, bytes_per_row })
}

/// Fills one table's memtable and drops the table, whose rows nobody reads; also its bytes a row.
async fn fill_table(db: &Vectide, name: &str, setting: &Setting, rows: usize) -> Outcome<(Speed, f64)> {
    let table = db.create_table(name, schema(setting.keyed)?).await?;
    let each = rows / setting.threads;
    let ready = Barrier::new(setting.threads + 1);
    let (took, cpu) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..setting.threads)
            .map(|thread| {
                let (table, ready) = (&table, &ready);
                scope.spawn(move || {
                    ready.wait();
                    write(table, thread, each, setting.batch)
                })
            })
            .collect();
        ready.wait();
        let (started, before) = (Instant::now(), process_seconds());
        writers.into_iter().try_for_each(|writer| writer.join().expect("a write does not panic"))?;
        Ok::<_, Error>((started.elapsed().as_secs_f64(), process_seconds() - before))
    })?;
    let (stats, rows) = (table.stats(), (each * setting.threads) as u64);
    if stats.memtable.rows != rows || table.count().await? != rows {
        return Err(Error::check(format!("{rows} rows were written and the memtable holds {}", stats.memtable.rows)));
    }
    let memory = stats.memtable;
    let bytes = memory.rows_bytes + memory.key_bytes + memory.bookkeeping_bytes;
    drop(table);
    db.drop_table(name).await?;
    tokio::time::sleep(PARTING).await;
    let rows = rows as f64;
    Ok((Speed { ops_per_s: rows / took, ops_per_cpu_s: rows / cpu }, bytes as f64 / rows))
}

/// One thread's share of the rows.
fn write(table: &Table, thread: usize, rows: usize, batch: usize) -> Outcome {
    let mut appender = table.appender();
    let mut random = Random::of(thread);
    let value = [b'v'; VALUE_BYTES];
    for first in (0..rows).step_by(batch) {
        for _ in 0..batch.min(rows - first) {
            appender.append_row(&[Value::Bytes(&random.key()), Value::Bytes(&value)])?;
        }
        appender.commit_blocking()?;
    }
    Ok(())
}

/// xorshift64 (Marsaglia, 2003): cheaper than what it feeds, and other keys for each thread.
struct Random(u64);

impl Random {
    fn of(thread: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread as u64 + 1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn key(&mut self) -> [u8; KEY_BYTES] {
        let mut key = [0u8; KEY_BYTES];
        key[..8].copy_from_slice(&self.next().to_le_bytes());
        key[8..].copy_from_slice(&self.next().to_le_bytes());
        key
    }
}

/// No log, and room for every row in one memtable.
fn options(setting: &Setting, rows: usize) -> Options {
    // A row takes up to 145 bytes with a key index; a table of few rows has a chunk for each thread all the same.
    let memtable_bytes = rows as u64 * 256 + (1 << 30);
    Options {
        durability: Durability::None,
        visibility: setting.visibility,
        memory_bytes: 2 * memtable_bytes,
        memtable_bytes,
        memtable_rows: 1 << 30,
        flush_interval_ms: 0,
        ..Options::default()
    }
}

fn schema(keyed: bool) -> Outcome<TableSchema> {
    let schema = Schema::new(vec![
        Field::new("key", DataType::FixedSizeBinary(KEY_BYTES as i32), false),
        Field::new("value", DataType::Binary, false),
    ]);
    let schema = TableSchema::builder(schema);
    Ok(if keyed { schema.key("key") } else { schema }.build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_row_is_in_both_memtables_at_the_end() {
        use Visibility::{Ordered, Unordered};
        let settings =
            [(false, 1, 1, Ordered), (false, 100, 3, Unordered), (true, 7, 2, Ordered), (true, 7, 2, Unordered)];
        for (keyed, batch, threads, visibility) in settings {
            let setting = Setting { keyed, batch, threads, visibility };
            let filled = fill(&setting, 3_000).await.expect("filled");
            // Chunks are larger than so few rows: what matters is that the rows' own bytes are counted.
            assert!(filled.bytes_per_row >= (KEY_BYTES + VALUE_BYTES) as f64, "{filled:?}");
            for speed in [filled.first, filled.next] {
                assert!(speed.ops_per_s > 0.0 && speed.ops_per_cpu_s > 0.0, "{filled:?}");
            }
        }
    }

    #[test]
    fn threads_write_other_keys_than_each_other() {
        let keys_of = |thread| {
            let mut random = Random::of(thread);
            (0..100).map(move |_| random.key())
        };
        let keys: std::collections::HashSet<_> = (0..8).flat_map(keys_of).collect();
        assert_eq!(keys.len(), 800);
    }
}
