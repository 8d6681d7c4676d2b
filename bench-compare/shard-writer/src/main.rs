//! Lance's `ShardWriter`, written to: `rival-shard-writer DIR VECTORS QUERIES TRUTH DIM SHAPE BATCH M EFC DURABLE OUTSTANDING INDEX`.
//!
//! VECTORS and QUERIES are raw little-endian f32, TRUTH raw little-endian u32: `[rows, dim]`, `[queries, dim]` and
//! `[queries, 10]`. SHAPE is fineweb or vector_only, DURABLE durable or buffered, INDEX on or off. Prints one object as
//! `vectide bench shard-writer` does for each of its settings. Set up as Lance's own bench of its shard writer is, with
//! the cosine metric, these vectors, and one memtable for all rows; batches are made before anything is timed.

#[path = "../../../crates/vectide-bench/src/shard_writer/text.rs"]
mod text;

use arrow_array::cast::AsArray;
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{DataType, Field, Schema};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardWriter, ShardWriterConfig};
use lance::dataset::{Dataset, WriteParams};
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance_core::Result;
use lance_file::version::LanceFileVersion;
use lance_index::IndexType;
use lance_index::vector::hnsw::builder::HnswBuildParams;
use lance_index::vector::ivf::IvfBuildParams;
use lance_index::vector::pq::builder::PQBuildParams;
use lance_linalg::distance::DistanceType;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const INDEX_NAME: &str = "vec_idx";
const K: usize = 10;
const EF_SEARCH: usize = 64;
/// Rows of the base table, which the writer takes its index from: the fewest that product quantization trains on, and
/// some more. Not counted.
const SEED_ROWS: usize = 1_024;
/// How often the log's queue is looked at, as in Lance's bench.
const SAMPLE: Duration = Duration::from_millis(100);

struct Task {
    dir: String,
    vectors: Vec<f32>,
    queries: Vec<f32>,
    truth: Vec<u32>,
    dim: usize,
    is_fineweb: bool,
    batch: usize,
    m: usize,
    ef_construction: usize,
    is_durable: bool,
    /// Puts not acknowledged yet, at most.
    outstanding: usize,
    is_indexed: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, vectors, queries, truth, dim, shape, batch, m, efc, durability, outstanding, index] =
        arguments.as_slice()
    else {
        eprintln!(
            "usage: rival-shard-writer DIR VECTORS QUERIES TRUTH DIM SHAPE BATCH M EFC DURABLE OUTSTANDING INDEX"
        );
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let task = Task {
        dir: dir.clone(),
        vectors: floats(vectors),
        queries: floats(queries),
        truth: floats(truth).iter().map(|f| f.to_bits()).collect(),
        dim: number(dim),
        is_fineweb: shape == "fineweb",
        batch: number(batch),
        m: number(m),
        ef_construction: number(efc),
        is_durable: durability == "durable",
        outstanding: number(outstanding),
        is_indexed: index == "on",
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores).enable_all().build();
    let mut result = runtime.expect("a runtime").block_on(measure(&task))?;
    result["schema_shape"] = json!(shape);
    result["durability"] = json!(durability);
    println!("{result}");
    Ok(())
}

fn floats(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

async fn measure(task: &Task) -> Result<Value> {
    let rows = task.vectors.len() / task.dim;
    let writer = open(task, rows).await?;
    let firsts: Vec<usize> = (0..rows).step_by(task.batch).collect();
    let batches: Vec<RecordBatch> =
        firsts.iter().map(|&first| rows_of(task, "row", first, task.batch.min(rows - first))).collect();
    let (started, cpu) = (Instant::now(), process_seconds());
    let (put_us, queue_rows_max) = put_all(&writer, batches, task).await?;
    let acked_s = started.elapsed().as_secs_f64();
    let queue_rows_final = writer.memtable_stats().await?.pending_wal_row_count;
    drained(&writer, rows, firsts.len(), task).await?;
    let indexed_s = started.elapsed().as_secs_f64();
    let cpu_s = process_seconds() - cpu;
    let recall = if task.is_indexed { Some(recall(&writer, task).await?) } else { None };
    let closing = Instant::now();
    writer.close().await?;
    let share = |rows_queued: usize| rows_queued as f64 / rows as f64 * 100.0;
    Ok(json!({
        "engine": "lance",
        "batch": task.batch,
        "index": task.is_indexed,
        "outstanding_batches": task.outstanding,
        "acked_rows_per_s": rows as f64 / acked_s,
        "indexed_rows_per_s": rows as f64 / indexed_s,
        "cpu_us_per_row": cpu_s * 1e6 / rows as f64,
        "put_p50_us": percentile(&put_us, 50),
        "put_p99_us": percentile(&put_us, 99),
        "queue_final_pct": share(queue_rows_final),
        "queue_max_pct": share(queue_rows_max.max(queue_rows_final)),
        "drain_s": indexed_s - acked_s,
        "close_s": closing.elapsed().as_secs_f64(),
        "recall_at_10": recall,
        "ef_search": EF_SEARCH,
    }))
}

/// A table of seed rows with a vector index, and a writer that keeps an HNSW graph for it in memory.
async fn open(task: &Task, rows: usize) -> Result<ShardWriter> {
    let seed = rows_of(task, "seed", 0, SEED_ROWS.min(rows));
    let schema = seed.schema();
    let params = WriteParams { data_storage_version: Some(LanceFileVersion::V2_2), ..Default::default() };
    let mut dataset = Dataset::write(RecordBatchIterator::new([Ok(seed)], schema), &task.dir, Some(params)).await?;
    if task.is_indexed {
        let (ivf, pq) = (IvfBuildParams::new(1), PQBuildParams::new(8, 8));
        let params = VectorIndexParams::with_ivf_pq_params(DistanceType::Cosine, ivf, pq);
        dataset.create_index(&["vec"], IndexType::IvfPq, Some(INDEX_NAME.to_owned()), &params, true).await?;
    }
    let kept = if task.is_indexed { vec![INDEX_NAME.to_owned()] } else { Vec::new() };
    dataset.initialize_mem_wal().maintained_indexes(kept).execute().await?;
    let shard = Uuid::new_v4();
    let mut config = ShardWriterConfig::new(shard)
        .with_durable_write(task.is_durable)
        // Nothing is flushed and nobody is held back while rows are put; the caps are preallocated, so they are close.
        .with_max_memtable_size(rows * 64 * 1_024)
        .with_max_unflushed_memtable_bytes(rows * 256 * 1_024)
        .with_max_memtable_rows(rows + task.batch)
        .with_max_memtable_batches(rows.div_ceil(task.batch) + 64);
    if task.is_indexed {
        let params = HnswBuildParams::default().num_edges(task.m).ef_construction(task.ef_construction);
        config = config.with_hnsw_params(INDEX_NAME, params);
    }
    dataset.mem_wal_writer(shard, config).await
}

/// Puts all batches in order; microseconds of each put, and the most rows seen in the log's queue.
async fn put_all(writer: &ShardWriter, batches: Vec<RecordBatch>, task: &Task) -> Result<(Vec<f64>, usize)> {
    let mut times = Vec::with_capacity(batches.len());
    let mut under_way = FuturesUnordered::new();
    let (mut queue_rows_max, mut sampled) = (0, Instant::now());
    for batch in batches {
        while under_way.len() >= task.outstanding {
            times.extend(under_way.next().await.transpose()?);
        }
        under_way.push(async move {
            let since = Instant::now();
            writer.put(vec![batch]).await?;
            Ok::<f64, lance_core::Error>(since.elapsed().as_secs_f64() * 1e6)
        });
        while let Some(Some(done)) = under_way.next().now_or_never() {
            times.push(done?);
        }
        if sampled.elapsed() >= SAMPLE {
            queue_rows_max = queue_rows_max.max(writer.memtable_stats().await?.pending_wal_row_count);
            sampled = Instant::now();
        }
    }
    while let Some(done) = under_way.next().await {
        times.push(done?);
    }
    Ok((times, queue_rows_max))
}

/// Waits until the index holds every batch and the log has nothing queued.
async fn drained(writer: &ShardWriter, rows: usize, batches: usize, task: &Task) -> Result<()> {
    loop {
        let stats = writer.memtable_stats().await?;
        assert_eq!((stats.row_count, stats.frozen_count), (rows, 0), "one memtable holds all rows");
        let active = writer.active_memtable_ref().await?;
        if stats.pending_wal_row_count == 0 && (!task.is_indexed || active.index_store.indexed_count() >= batches) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Recall@10 through the memtable's graph.
async fn recall(writer: &ShardWriter, task: &Task) -> Result<f64> {
    let mut hits = 0;
    for (query, truth) in task.queries.chunks_exact(task.dim).zip(task.truth.chunks_exact(K)) {
        let mut scan = writer.scan().await?;
        scan.project(&["id"])?.nearest("vec", &Float32Array::from(query.to_vec()), K)?.ef(EF_SEARCH);
        scan.distance_metric(DistanceType::Cosine);
        let found = scan.try_into_batch().await?;
        let ids = found.column_by_name("id").expect("was asked for").as_string::<i32>();
        let rows = ids.iter().flatten().filter_map(|id| id.strip_prefix("row-")?.parse::<u32>().ok());
        hits += rows.filter(|row| truth.contains(row)).count();
    }
    Ok(hits as f64 / task.truth.len() as f64)
}

/// Rows as Vectide gets them, in arrays of their own.
fn rows_of(task: &Task, prefix: &str, first: usize, rows: usize) -> RecordBatch {
    let strings = |of: &dyn Fn(usize) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((first..first + rows).map(of)))
    };
    let id = strings(&|row| text::id(row).replacen("row", prefix, 1));
    let mut columns: Vec<(&str, ArrayRef)> = vec![("id", id)];
    if task.is_fineweb {
        columns.push(("text", strings(&text::text)));
        columns.push(("dump", strings(&|row| text::dump(row).to_owned())));
        columns.push(("url", strings(&text::url)));
        columns.push(("file_path", strings(&text::file_path)));
        columns.push(("language", strings(&|_| "en".to_owned())));
        let score = (first..first + rows).map(text::language_score);
        columns.push(("language_score", Arc::new(Float64Array::from_iter_values(score))));
        let count = (first..first + rows).map(text::token_count);
        columns.push(("token_count", Arc::new(Int64Array::from_iter_values(count))));
    }
    let values = Float32Array::from(task.vectors[first * task.dim..(first + rows) * task.dim].to_vec());
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let vectors = FixedSizeListArray::try_new(item, task.dim as i32, Arc::new(values), None).expect("whole rows");
    columns.push(("vec", Arc::new(vectors)));
    let fields = columns.iter().map(|(name, column)| {
        let field = Field::new(*name, column.data_type().clone(), false);
        let key = ("lance-schema:unenforced-primary-key".to_owned(), "true".to_owned());
        if *name == "id" { field.with_metadata(HashMap::from([key])) } else { field }
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, column)| column).collect())
        .expect("columns of one length")
}

fn percentile(figures: &[f64], percent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn process_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
