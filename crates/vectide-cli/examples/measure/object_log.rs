//! The object log over a store in memory that answers after 30 ms, exactly or with a heavy tail.
//!
//! Three questions: does a buffered writer notice the latency, does a window of PUTs hide it, and do small durable writers
//! share objects. Latency is waited for, not computed, so that the answers hold on a busy machine too; the load is printed.

use crate::{Outcome, Rng, batch, median, open_store, schema};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vectide::store::{LocalDir, ObjectBackend, ObjectMeta, ObjectWriter, PutOutcome, Store, Written};
use vectide::{Durability, Metric, Options, Table, TableSchema, Vectide, WalOptions};

const MEDIAN_MS: f64 = 30.0;
/// Of the logarithm of a heavy-tailed latency: one call in a hundred takes four times the median.
const SIGMA: f64 = 0.6;
/// Text beside the key: about what a paragraph takes.
const TEXT_BYTES: usize = 1_024;

/// A store whose every call takes its time first.
#[derive(Debug)]
struct Slow {
    inner: ObjectBackend,
    sigma: f64,
    rng: Mutex<Rng>,
}

impl Slow {
    fn store(sigma: f64) -> Arc<dyn Store> {
        Arc::new(Self { inner: ObjectBackend::memory(), sigma, rng: Mutex::new(Rng(11)) })
    }

    async fn wait(&self) {
        let ms = {
            let mut rng = self.rng.lock();
            let mut unit = || (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
            let normal = (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
            MEDIAN_MS * (self.sigma * normal).exp()
        };
        tokio::time::sleep(Duration::from_secs_f64(ms / 1e3)).await;
    }
}

#[async_trait::async_trait]
impl Store for Slow {
    async fn put(&self, path: &str, bytes: Bytes) -> vectide::Result<()> {
        self.wait().await;
        self.inner.put(path, bytes).await
    }
    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> vectide::Result<PutOutcome> {
        self.wait().await;
        self.inner.put_if_absent(path, bytes).await
    }
    async fn get(&self, path: &str) -> vectide::Result<Bytes> {
        self.wait().await;
        self.inner.get(path).await
    }
    async fn list(&self, prefix: &str) -> vectide::Result<Vec<ObjectMeta>> {
        self.wait().await;
        self.inner.list(prefix).await
    }
    async fn delete(&self, path: &str) -> vectide::Result<()> {
        self.wait().await;
        self.inner.delete(path).await
    }
    async fn create(&self, path: &str) -> vectide::Result<Box<dyn ObjectWriter>> {
        self.wait().await;
        Ok(Box::new(SlowWriter(self.inner.create(path).await?)))
    }
    async fn map(&self, path: &str, len: u64) -> vectide::Result<Bytes> {
        self.wait().await;
        self.inner.map(path, len).await
    }
    fn local(&self) -> Option<LocalDir> {
        None
    }
}

struct SlowWriter(Box<dyn ObjectWriter>);

#[async_trait::async_trait]
impl ObjectWriter for SlowWriter {
    async fn write(&mut self, bytes: Bytes) -> vectide::Result<()> {
        self.0.write(bytes).await
    }
    async fn finish(self: Box<Self>) -> vectide::Result<Written> {
        tokio::time::sleep(Duration::from_secs_f64(MEDIAN_MS / 1e3)).await;
        self.0.finish().await
    }
}

/// All three, on a steady line and on one with a heavy tail.
pub(crate) async fn object_log() -> Outcome<()> {
    println!("{}", json!({"measure": "object-log", "load_average": std::fs::read_to_string("/proc/loadavg")?.trim()}));
    for (latency, sigma) in [("30 ms", 0.0), ("30 ms at the median, 120 ms at p99", SIGMA)] {
        buffered(latency, sigma).await?;
        window(latency, sigma).await?;
        sharing(latency, sigma).await?;
        takeover(latency, sigma).await?;
    }
    println!("{}", json!({"measure": "object-log", "load_average": std::fs::read_to_string("/proc/loadavg")?.trim()}));
    Ok(())
}

fn text_schema() -> Outcome<TableSchema> {
    let arrow = Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("text", DataType::Utf8, false)]);
    Ok(TableSchema::builder(arrow).key("id").build()?)
}

fn text_batch(first: i64, rows: usize) -> Outcome<RecordBatch> {
    let ids: Int64Array = (first..first + rows as i64).collect();
    let texts: StringArray = (0..rows).map(|row| Some(format!("{row:0TEXT_BYTES$}"))).collect();
    Ok(RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("text", Arc::new(texts) as ArrayRef)])?)
}

/// Writes batches of `rows` rows until `bytes` are in, and waits for the last to be durable; seconds.
async fn fill(table: &Table, rows: usize, bytes: usize) -> Outcome<f64> {
    let started = Instant::now();
    let mut last = None;
    for n in 0..bytes / (rows * TEXT_BYTES) {
        last = Some(table.upsert(text_batch((n * rows) as i64, rows)?).await?.token);
    }
    table.wait_durable(last.ok_or("nothing was written")?).await?;
    Ok(started.elapsed().as_secs_f64())
}

/// A buffered writer on a local directory against the same one on the slow store, in turns; the median of the turns'
/// ratios, since what else runs on the machine changes from one to the next.
async fn buffered(latency: &str, sigma: f64) -> Outcome<()> {
    const BYTES: usize = 192 << 20;
    let options = Options { durability: Durability::Buffered, memory_bytes: 2 << 30, ..Options::default() };
    let (mut local, mut slow, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..7 {
        let dir = tempfile::tempdir_in(".")?;
        let db = Vectide::open(dir.path().to_str().ok_or("a path in UTF-8")?, options.clone()).await?;
        local.push(buffered_rate(db, BYTES).await?);
        let db = open_store(Slow::store(sigma), options.clone()).await?;
        slow.push(buffered_rate(db, BYTES).await?);
        ratios.push(slow[slow.len() - 1] / local[local.len() - 1]);
    }
    println!(
        "{}",
        json!({"measure": "object-log buffered", "latency": latency, "batch": 100, "row_bytes": TEXT_BYTES,
        "local_mb_per_s": median(local), "object_mb_per_s": median(slow), "object_over_local": median(ratios)})
    );
    Ok(())
}

/// MB/s until everything is durable.
async fn buffered_rate(db: Vectide, bytes: usize) -> Outcome<f64> {
    let table = db.create_table("t", text_schema()?).await?;
    let seconds = fill(&table, 100, bytes).await?;
    db.close().await?;
    Ok(bytes as f64 / seconds / 1e6)
}

/// The same rows through a window of one PUT and of eight, in objects of one size.
async fn window(latency: &str, sigma: f64) -> Outcome<()> {
    const BYTES: usize = 12 << 20;
    let mut rates = [Vec::new(), Vec::new()];
    let mut sizes = [0.0, 0.0];
    for _ in 0..3 {
        for (n, puts_in_flight) in [1, 8].into_iter().enumerate() {
            let wal = WalOptions { puts_in_flight, object_bytes: 64 << 10, ..WalOptions::default() };
            let options = Options { durability: Durability::Buffered, wal, ..Options::default() };
            let db = open_store(Slow::store(sigma), options).await?;
            let table = db.create_table("t", text_schema()?).await?;
            let seconds = fill(&table, 20, BYTES).await?;
            let log = table.stats().wal;
            rates[n].push(BYTES as f64 / seconds / 1e6);
            sizes[n] = log.bytes_written as f64 / log.syncs as f64;
            db.close().await?;
        }
    }
    let [one, eight] = rates.map(median);
    println!(
        "{}",
        json!({"measure": "object-log window", "latency": latency, "mb_per_s_window_1": one, "mb_per_s_window_8": eight,
        "bytes_per_put_window_1": sizes[0], "bytes_per_put_window_8": sizes[1], "window_8_over_1": eight / one})
    );
    Ok(())
}

/// 64 callers that each wait for their row before they write the next.
async fn sharing(latency: &str, sigma: f64) -> Outcome<()> {
    const CALLERS: usize = 64;
    let db = open_store(Slow::store(sigma), Options::default()).await?;
    let table = db.create_table("t", schema(16, Metric::L2)?).await?;
    let started = Instant::now();
    let until = started + Duration::from_secs(6);
    let callers = (0..CALLERS).map(|caller| {
        let table = table.clone();
        tokio::spawn(async move {
            let (mut waits, mut n) = (Vec::new(), 0);
            while Instant::now() < until {
                let row = vec![caller as f32 + n as f32 * 1e-3; 16];
                let asked = Instant::now();
                table.upsert(batch(caller * 1_000_000 + n, &row, 16)?).await?;
                waits.push(asked.elapsed().as_secs_f64() * 1e3);
                n += 1;
            }
            Outcome::Ok(waits)
        })
    });
    let mut waits = Vec::new();
    for caller in futures::future::join_all(callers).await {
        waits.extend(caller??);
    }
    let seconds = started.elapsed().as_secs_f64();
    waits.sort_by(f64::total_cmp);
    let log = table.stats().wal;
    println!(
        "{}",
        json!({"measure": "object-log sharing", "latency": latency, "callers": CALLERS,
        "rows_per_s": waits.len() as f64 / seconds, "puts_per_s": log.syncs as f64 / seconds,
        "rows_per_put": log.rows_per_sync, "ack_p50_ms": waits[waits.len() / 2], "ack_p99_ms": waits[waits.len() * 99 / 100]})
    );
    db.close().await?;
    Ok(())
}

/// How long a new writer takes to shut the old one out and read its log of many small objects.
async fn takeover(latency: &str, sigma: f64) -> Outcome<()> {
    const OBJECTS: usize = 600;
    let store = Slow::store(sigma);
    let wal = WalOptions { puts_in_flight: 64, object_bytes: 4 << 10, ..WalOptions::default() };
    let options = Options { durability: Durability::Buffered, wal, memtable_log_objects: 10_000, ..Options::default() };
    let db = open_store(Arc::clone(&store), options.clone()).await?;
    let table = db.create_table("t", text_schema()?).await?;
    fill(&table, 4, OBJECTS * 4 * TEXT_BYTES).await?;
    let objects = table.stats().wal.objects;
    // Nothing is closed, as after a crash.
    std::mem::forget((db, table));
    let started = Instant::now();
    let db = open_store(store, options).await?;
    let table = db.open_table("t").await?;
    println!(
        "{}",
        json!({"measure": "object-log takeover", "latency": latency, "objects": objects,
        "seconds": started.elapsed().as_secs_f64(), "rows": table.count().await?})
    );
    db.close().await?;
    Ok(())
}
