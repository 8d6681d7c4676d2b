//! Measures what the engine promises in figures: `cargo run --release --example measure -- NAME [DATA]`.
//!
//! Names: `syncs` (rows per fdatasync at 64 callers), `memory` (bytes per row beside the rows, against the allocator),
//! `flush` (time against a plain write of the same bytes, and what writers and readers feel), `replay` (resident memory
//! while a 1 GiB log is replayed), `recall` (recall and reachability before and after flush), `object-log` (what 30 ms to
//! the object store cost). DATA is the folder with the real data sets where there is one; without it, generated vectors are
//! used and said so. One JSON object a line.

#![allow(clippy::disallowed_methods, reason = "a measure takes real time and starts threads")]

#[path = "measure/object_log.rs"]
mod object_log;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Float16Type, Schema};
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use vectide::schema::{Codes, VectorOptions};
use vectide::{Metric, Options, Table, TableSchema, Vectide};

/// Counts what is allocated.
struct Counting;

static ALLOCATED: AtomicI64 = AtomicI64::new(0);

// SAFETY: 1. every call is passed on to the system allocator unchanged. 2. the counter is no part of it.
#[allow(unsafe_code, reason = "a global allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let data = arguments.next();
    match name.as_str() {
        "syncs" => syncs().await,
        "memory" => memory().await,
        "flush" => flush(data.as_deref()).await,
        "replay" => replay().await,
        "replay-fill" => fill_log(Path::new(data.as_deref().ok_or("name the directory to fill")?)).await,
        "recall" => recall(data.as_deref()).await,
        "object-log" => object_log::object_log().await,
        _ => Err("name one of: syncs, memory, flush, replay, recall, object-log".into()),
    }
}

fn schema(dim: usize, metric: Metric) -> Outcome<TableSchema> {
    let item = Field::new_list_field(DataType::Float32, true);
    let vec = Field::new_fixed_size_list("vec", item, i32::try_from(dim)?, true);
    let arrow = Schema::new(vec![Field::new("id", DataType::Int64, false), vec]);
    Ok(TableSchema::builder(arrow).key("id").vector("vec", metric).build()?)
}

/// A database on a store of its own.
async fn open_store(store: Arc<dyn vectide::store::Store>, options: Options) -> Outcome<Vectide> {
    Ok(Vectide::builder("measured").store(store).options(options).open().await?)
}

fn batch(first: usize, rows: &[f32], dim: usize) -> Outcome<RecordBatch> {
    let count = rows.len() / dim;
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let list =
        FixedSizeListArray::try_new(item, i32::try_from(dim)?, Arc::new(Float32Array::from(rows.to_vec())), None)?;
    let ids: Int64Array = (first as i64..(first + count) as i64).collect();
    Ok(RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("vec", Arc::new(list) as ArrayRef)])?)
}

/// A small generator, so that a run repeats.
#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Rows of a linear map of `inner` random numbers plus noise: an intrinsic dimension of about `inner`.
fn generated(rows: usize, dim: usize, inner: usize) -> Vec<f32> {
    let mut rng = Rng(7);
    let map: Vec<f32> = (0..dim * inner).map(|_| rng.symmetric()).collect();
    let mut out = Vec::with_capacity(rows * dim);
    for _ in 0..rows {
        let hidden: Vec<f32> = (0..inner).map(|_| rng.symmetric() + rng.symmetric()).collect();
        out.extend(
            map.chunks(inner)
                .map(|row| row.iter().zip(&hidden).map(|(a, b)| a * b).sum::<f32>() + 0.1 * rng.symmetric()),
        );
    }
    out
}

/// packages-1024 where the data folder is there, else generated rows of the same shape.
fn packages(data: Option<&str>, rows: usize) -> Outcome<(Vec<f32>, &'static str)> {
    let path = data.map(|d| Path::new(d).join("packages-1024.parquet")).filter(|p| p.exists());
    let Some(path) = path else {
        return Ok((generated(rows, 1024, 32), "generated, intrinsic dimension 32"));
    };
    let builder = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path)?)?;
    let mut out = Vec::with_capacity(rows * 1024);
    for part in builder.build()? {
        let part = part?;
        let list = part.column_by_name("vec").ok_or("no column vec")?.clone();
        let values: ArrayRef = match list.data_type() {
            DataType::FixedSizeList(..) => Arc::clone(list.as_fixed_size_list().values()),
            _ => Arc::clone(list.as_list::<i32>().values()),
        };
        out.extend(values.as_primitive::<Float16Type>().values().iter().map(|v| v.to_f32()));
    }
    // More than there are: the rows again with a little noise.
    let mut rng = Rng(3);
    let have = out.len();
    while out.len() < rows * 1024 {
        let value = out[out.len() - have];
        out.push(value + 0.001 * rng.symmetric());
    }
    out.truncate(rows * 1024);
    Ok((out, "packages-1024"))
}

fn glove(data: Option<&str>) -> Outcome<Vec<f32>> {
    let shipped = "data/glove-100d-25k.arrow".to_owned();
    let path = data.map_or(shipped, |d| format!("{d}/glove-100d-25k.arrow"));
    let mut out = Vec::new();
    for part in arrow::ipc::reader::FileReader::try_new(std::fs::File::open(path)?, None)? {
        let part = part?;
        let list = part.column_by_name("vec").ok_or("no column vec")?.as_fixed_size_list().clone();
        out.extend(list.values().as_primitive::<Float16Type>().values().iter().map(|v| v.to_f32()));
    }
    Ok(out)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn open(path: &Path, options: Options, dim: usize, metric: Metric) -> Outcome<(Vectide, Table)> {
    let db = Vectide::open(path.to_str().ok_or("a path in UTF-8")?, options).await?;
    let table = db.create_table("t", schema(dim, metric)?).await?;
    Ok((db, table))
}

/// Rows per fdatasync with 64 callers that each wait for their one row.
async fn syncs() -> Outcome<()> {
    let dir = tempfile::tempdir_in(".")?;
    let (db, table) = open(dir.path(), Options::default(), 16, Metric::L2).await?;
    let started = Instant::now();
    let until = started + Duration::from_secs(10);
    let callers = (0..64usize).map(|caller| {
        let table = table.clone();
        tokio::spawn(async move {
            let mut waits = Vec::new();
            let mut n = 0;
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
    let wal = table.stats().wal;
    println!(
        "{}",
        json!({"measure": "syncs", "callers": 64, "rows": waits.len(), "rows_per_s": waits.len() as f64 / seconds,
        "syncs": wal.syncs, "rows_per_sync": waits.len() as f64 / wal.syncs as f64, "ack_p50_ms": median(waits)})
    );
    db.close().await?;
    Ok(())
}

/// Bytes per row beside the rows' own, by the table's account and by the allocator's.
async fn memory() -> Outcome<()> {
    let shapes =
        [(100, 10_000, 1), (100, 10_000, 1_000), (100, 50_000, 1_000), (384, 50_000, 100), (1024, 20_000, 1_000)];
    for ((dim, rows, at_once), codes) in
        shapes.into_iter().flat_map(|shape| [(shape, Some(Codes::None)), (shape, None)])
    {
        let data = generated(rows, dim, 24);
        let dir = tempfile::tempdir_in(".")?;
        let options = Options { memory_bytes: 4 << 30, memtable_bytes: 2 << 30, ..Options::default() };
        let db = Vectide::open(dir.path().to_str().ok_or("a path in UTF-8")?, options).await?;
        let vector = VectorOptions { codes, ..VectorOptions::new(Metric::L2) };
        let schema = TableSchema::builder(schema(dim, Metric::L2)?.arrow().as_ref().clone()).key("id");
        let table = db.create_table("t", schema.vector_with("vec", vector).build()).await?;
        let before = ALLOCATED.load(Ordering::Relaxed);
        for (n, chunk) in data.chunks(dim * at_once).enumerate() {
            table.upsert(batch(n * at_once, chunk, dim)?).await?;
        }
        settle(&table).await;
        let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
        let memtable = table.stats().memtable;
        let counted = memtable.rows_bytes
            + memtable.graph_bytes
            + memtable.code_bytes
            + memtable.key_bytes
            + memtable.bookkeeping_bytes;
        let own = (rows * (dim * 4 + 8)) as f64;
        let per_row = |bytes: u64| bytes as f64 / rows as f64;
        println!(
            "{}",
            json!({"measure": "memory", "dim": dim, "rows": rows, "batch": at_once,
            "codes": codes.unwrap_or(Codes::auto(dim as u32, Metric::L2)).name(), "code_bytes": per_row(memtable.code_bytes),
            "beside_rows_bytes_per_row": (allocated as f64 - own) / rows as f64,
            "counted_beside_rows_bytes_per_row": (counted as f64 - own) / rows as f64,
            "graph": per_row(memtable.graph_bytes), "keys": per_row(memtable.key_bytes),
            "bookkeeping": per_row(memtable.bookkeeping_bytes), "rows_bytes": per_row(memtable.rows_bytes),
            "counted_over_allocated": counted as f64 / allocated as f64})
        );
        db.close().await?;
    }
    Ok(())
}

async fn settle(table: &Table) {
    while table.stats().memtable.tail_rows > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// A flush of 50,000 rows of 1024-d against a plain write and sync of the same bytes, and what others feel meanwhile.
async fn flush(data: Option<&str>) -> Outcome<()> {
    const DIM: usize = 1024;
    const ROWS: usize = 50_000;
    let (vectors, source) = packages(data, ROWS)?;
    let mut ratios = Vec::new();
    for round in 0..3 {
        let dir = tempfile::tempdir_in(".")?;
        let options = Options { memory_bytes: 4 << 30, memtable_bytes: 2 << 30, ..Options::default() };
        let (db, table) = open(dir.path(), options, DIM, Metric::Cosine).await?;
        for (n, chunk) in vectors.chunks(DIM * 1_000).enumerate() {
            table.upsert(batch(n * 1_000, chunk, DIM)?).await?;
        }
        settle(&table).await;
        let over = Arc::new(AtomicBool::new(false));
        let writing = feel(Arc::clone(&over), {
            let (table, row) = (table.clone(), vectors[..DIM].to_vec());
            move |n| {
                let (table, batch) = (table.clone(), batch(ROWS + n, &row, DIM));
                async move { table.upsert(batch?).await.map(drop).map_err(Into::into) }
            }
        });
        let searching = feel(Arc::clone(&over), {
            let (table, vectors) = (table.clone(), vectors.clone());
            move |n| {
                let at = (n * 7919 % ROWS) * DIM;
                let search = table.search(&vectors[at..at + DIM]).k(10);
                async move { search.await.map(drop).map_err(Into::into) }
            }
        });
        let syncing = bare_syncs(dir.path().join("bare"), Arc::clone(&over));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started = Instant::now();
        table.flush().await?;
        let flushed = started.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let (mut writes, mut searches, mut syncs) = (writing.await??, searching.await??, joined(syncing)?);
        let bytes = table.stats().segments.bytes;
        let plain = plain_write(dir.path(), bytes)?;
        // And what the disk does to a lone sync while as many bytes are written plainly.
        let over = Arc::new(AtomicBool::new(false));
        let syncing = bare_syncs(dir.path().join("bare"), Arc::clone(&over));
        plain_write(dir.path(), bytes)?;
        over.store(true, Ordering::Relaxed);
        let mut syncs_beside_plain = joined(syncing)?;
        ratios.push(flushed / plain);
        for felt in [&mut writes, &mut searches, &mut syncs, &mut syncs_beside_plain] {
            felt.sort_by(f64::total_cmp);
        }
        println!(
            "{}",
            json!({"measure": "flush", "data": source, "round": round, "rows": ROWS, "dim": DIM, "bytes": bytes,
            "flush_s": flushed, "plain_write_s": plain, "ratio": flushed / plain,
            "write_max_ms": writes.last(), "write_p50_ms": median(writes.clone()),
            "search_max_ms": searches.last(), "search_p50_ms": median(searches.clone()),
            "bare_fdatasync_max_ms": syncs.last(), "bare_fdatasync_p50_ms": median(syncs.clone()),
            "bare_fdatasync_beside_plain_max_ms": syncs_beside_plain.last()})
        );
        db.close().await?;
    }
    println!("{}", json!({"measure": "flush", "median_ratio": median(ratios)}));
    Ok(())
}

/// Repeats `act` until told, and gives each one's milliseconds.
fn feel<F>(
    over: Arc<AtomicBool>,
    act: impl Fn(usize) -> F + Send + 'static,
) -> tokio::task::JoinHandle<Outcome<Vec<f64>>>
where
    F: Future<Output = Outcome<()>> + Send,
{
    tokio::spawn(async move {
        let mut took = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let started = Instant::now();
            act(took.len()).await?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(took)
    })
}

/// Appends a page to a file of its own and syncs it, again and again: what an acknowledgement cannot go below. A thread
/// of its own, and the milliseconds of each sync.
fn bare_syncs(path: std::path::PathBuf, over: Arc<AtomicBool>) -> std::thread::JoinHandle<Outcome<Vec<f64>>> {
    std::thread::spawn(move || {
        let mut file = std::fs::File::create(path)?;
        let mut took = Vec::new();
        while !over.load(Ordering::Relaxed) {
            file.write_all(&[0x5a; 4096])?;
            let started = Instant::now();
            file.sync_data()?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(took)
    })
}

fn joined<T>(thread: std::thread::JoinHandle<Outcome<T>>) -> Outcome<T> {
    thread.join().map_err(|_| "a measuring thread panicked")?
}

fn plain_write(dir: &Path, bytes: u64) -> Outcome<f64> {
    let chunk = vec![0xa5u8; 4 << 20];
    let path = dir.join("plain");
    let started = Instant::now();
    let mut file = std::fs::File::create(&path)?;
    let mut left = bytes;
    while left > 0 {
        let n = left.min(chunk.len() as u64);
        file.write_all(&chunk[..usize::try_from(n)?])?;
        left -= n;
    }
    file.sync_data()?;
    let took = started.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(took)
}

/// Leaves a log of 1 GiB as a crash would: nothing is closed.
async fn fill_log(dir: &Path) -> Outcome<()> {
    const DIM: usize = 256;
    let rows = (1usize << 30) / (DIM * 4);
    let data = generated(20_000, DIM, 16);
    let options = Options {
        memory_bytes: 8 << 30,
        memtable_bytes: 4 << 30,
        memtable_rows: 10_000_000,
        tail_rows: u32::MAX,
        ..Options::default()
    };
    let (_db, table) = open(dir, options, DIM, Metric::L2).await?;
    for n in 0..rows / 1_000 {
        let at = (n * 1_000 % 20_000) * DIM;
        table.upsert(batch(n * 1_000, &data[at..at + 1_000 * DIM], DIM)?).await?;
    }
    println!(
        "{}",
        json!({"measure": "replay", "log_bytes": table.stats().wal.bytes_written, "rows": rows / 1_000 * 1_000})
    );
    std::process::exit(0);
}

/// Resident memory while a 1 GiB log is replayed into memtables of 64 MiB. Another process writes the log: what its heap
/// held must not count.
async fn replay() -> Outcome<()> {
    let dir = tempfile::tempdir_in(".")?;
    let filled = std::process::Command::new(std::env::current_exe()?).arg("replay-fill").arg(dir.path()).status()?;
    if !filled.success() {
        return Err("the log could not be filled".into());
    }
    let limit = 64u64 << 20;
    let rss_before = rss()?;
    let peak = Arc::new(AtomicI64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let watching = std::thread::spawn({
        let (peak, over) = (Arc::clone(&peak), Arc::clone(&over));
        move || {
            let mut rss_peak = 0;
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(ALLOCATED.load(Ordering::Relaxed), Ordering::Relaxed);
                rss_peak = rss_peak.max(rss().unwrap_or(0));
                std::thread::sleep(Duration::from_millis(1));
            }
            rss_peak
        }
    });
    let allocated_before = ALLOCATED.load(Ordering::Relaxed);
    let started = Instant::now();
    let options = Options { memtable_bytes: limit, memory_bytes: 4 * limit, ..Options::default() };
    let db = Vectide::open(dir.path().to_str().ok_or("UTF-8")?, options).await?;
    let table = db.open_table("t").await?;
    let took = started.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let rss_peak = watching.join().map_err(|_| "the watching thread panicked")?;
    let heap = peak.load(Ordering::Relaxed) - allocated_before;
    println!(
        "{}",
        json!({"measure": "replay", "memtable_limit_bytes": limit, "seconds": took, "rows": table.count().await?,
        "heap_peak_bytes": heap, "heap_over_limit": heap as f64 / limit as f64, "flushes": table.stats().recovery.flushes,
        "rss_before_bytes": rss_before, "rss_peak_bytes": rss_peak, "rss_after_bytes": rss()?,
        "rss_peak_over_limit": rss_peak as f64 / limit as f64})
    );
    db.close().await?;
    Ok(())
}

fn rss() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|l| l.starts_with("RssAnon")).ok_or("no RssAnon")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
    Ok(kib * 1024)
}

/// Recall at 10 and reachability, before and after a flush, on real data.
async fn recall(data: Option<&str>) -> Outcome<()> {
    let glove = glove(data)?;
    let (packages, source) = packages(data, 50_000)?;
    let small: Vec<f32> = packages.chunks(1024).flat_map(|row| row[..384].to_vec()).collect();
    let sets = [
        ("glove-100 raw", "l2", glove, 100, Metric::L2, 200),
        (source, "cosine", packages, 1024, Metric::Cosine, 1_000),
        ("packages-384", "cosine", small, 384, Metric::Cosine, 1_000),
    ];
    for (name, metric_name, rows, dim, metric, held_out) in sets {
        // GloVe is indexed whole (its 25,000 rows are the case); its queries are rows of it moved a little.
        let whole = name.starts_with("glove");
        let split = if whole { rows.len() } else { rows.len() - held_out * dim };
        let mut rng = Rng(11);
        let queries: Vec<Vec<f32>> = if whole {
            (0..held_out)
                .map(|n| rows[n * 97 * dim..(n * 97 + 1) * dim].iter().map(|v| v + 0.05 * rng.symmetric()).collect())
                .collect()
        } else {
            rows[split..].chunks(dim).map(<[f32]>::to_vec).collect()
        };
        let dir = tempfile::tempdir_in(".")?;
        let options =
            Options { memory_bytes: 4 << 30, memtable_bytes: 2 << 30, index_threads: 2, ..Options::default() };
        let (db, table) = open(dir.path(), options, dim, metric).await?;
        let started = Instant::now();
        for (n, chunk) in rows[..split].chunks(dim * 1_000).enumerate() {
            table.upsert(batch(n * 1_000, chunk, dim)?).await?;
        }
        settle(&table).await;
        let seconds = started.elapsed().as_secs_f64();
        let before = recall_of(&table, &queries).await?;
        table.flush().await?;
        let after = recall_of(&table, &queries).await?;
        let report = table.verify().await?;
        println!(
            "{}",
            json!({"measure": "recall", "data": name, "metric": metric_name, "dim": dim, "rows": split / dim,
            "rows_per_s_two_index_threads": (split / dim) as f64 / seconds, "recall_at_10_ef64_before_flush": before[0],
            "recall_at_10_ef64_after_flush": after[0], "recall_at_10_ef128_after_flush": after[1],
            "live_rows": report.live_rows, "reachable_nodes": report.reachable_nodes})
        );
        db.close().await?;
    }
    Ok(())
}

async fn recall_of(table: &Table, queries: &[Vec<f32>]) -> Outcome<[f64; 2]> {
    let ids = |batch: &RecordBatch| -> Vec<i64> {
        batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().to_vec()
    };
    let truth = table.search_batch(queries).k(10).exact(true).await?;
    let mut out = [0.0; 2];
    for (recall, ef) in out.iter_mut().zip([64, 128]) {
        let found = table.search_batch(queries).k(10).ef_search(ef).await?;
        let hit: usize =
            truth.iter().zip(&found).map(|(t, f)| ids(t).iter().filter(|id| ids(f).contains(id)).count()).sum();
        *recall = hit as f64 / (10 * queries.len()) as f64;
    }
    Ok(out)
}
