//! One load: a writer at a steady rate, queries at each stage, and a reader that asks on a schedule.
//!
//! Invariant: a query's answer is kept with the number of rows that were acknowledged before it began and after it ended.

use super::args::{Args, Policy};
use crate::dataset::Dataset;
use crate::error::{Error, Outcome};
use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vectide::schema::VectorOptions;
use vectide::{Table, TableSchema, TableStats, Vectide};

/// Shares of the load at which queries are asked, in per cent.
const STAGES: [usize; 4] = [20, 50, 80, 100];
/// How long a drain may take before the bench gives up on it.
const DRAIN: Duration = Duration::from_secs(600);

/// One answered query.
pub(super) struct Asked {
    /// Which query.
    pub(super) query: usize,
    /// Rows wanted.
    pub(super) k: usize,
    /// Rows that were acknowledged when it began.
    pub(super) rows: usize,
    /// The rows that came.
    pub(super) ids: Vec<u32>,
    /// How long it took; in the open loop, from the scheduled time.
    pub(super) ms: f64,
    /// When it was due, in seconds since the load began.
    pub(super) at_s: f64,
}

/// The queries of a stage.
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) asked: Vec<Asked>,
}

/// What one load showed.
pub(super) struct Run {
    pub(super) stages: Vec<Stage>,
    pub(super) open_loop: Vec<Asked>,
    pub(super) acks_ms: Vec<f64>,
    pub(super) rows_per_s: f64,
    /// Steps that were committed before the stage at 80% began.
    pub(super) steps_at_80: u64,
    /// From the last acknowledgement until nothing was left to merge.
    pub(super) drained_s: f64,
    pub(super) rss_bytes: u64,
    pub(super) stats: TableStats,
}

fn panicked(error: tokio::task::JoinError) -> Error {
    Error::check(format!("a task of the load panicked: {error}"))
}

/// What writer, stages and reader share.
struct Shared {
    table: Table,
    data: Arc<Dataset>,
    acknowledged: AtomicUsize,
    is_over: AtomicBool,
    began: Instant,
    ef: usize,
}

pub(super) async fn run(args: &Args, data: &Dataset, policy: Policy) -> Outcome<Run> {
    let dir = std::env::temp_dir().join(format!("vectide-bench-stream-{}-{}", std::process::id(), policy.name()));
    let path = dir.to_string_lossy().into_owned();
    let result = loaded(args, data, policy, &path).await;
    // What is left behind is in the system's folder for such things.
    let _ = std::fs::remove_dir_all(&dir);
    result
}

async fn loaded(args: &Args, data: &Dataset, policy: Policy, path: &str) -> Outcome<Run> {
    let db = Vectide::open(path, args.options(policy)).await?;
    let vec = Field::new_fixed_size_list("vec", Field::new_list_field(DataType::Float32, true), data.dim as i32, true);
    let arrow = Schema::new(vec![Field::new("id", DataType::Int64, false), vec]);
    let schema = TableSchema::builder(arrow).key("id").vector_with("vec", VectorOptions::new(args.metric));
    let table = db.create_table("t", schema.build()?).await?;
    let shared = Arc::new(Shared {
        table,
        data: Arc::new(data.clone()),
        acknowledged: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        began: Instant::now(),
        ef: args.ef_search,
    });
    let writer = tokio::spawn(write(Arc::clone(&shared), args.batch, args.rate));
    let reader = tokio::spawn(read(Arc::clone(&shared), args.qps));
    let (mut stages, mut steps_at_80) = (Vec::new(), 0);
    for pct in STAGES {
        let from = data.rows() * pct / 100;
        while shared.acknowledged.load(Ordering::SeqCst) < from && !writer.is_finished() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if pct == 80 {
            steps_at_80 = shared.table.stats().merge.steps;
        }
        stages.push(Stage { name: pct.to_string(), asked: shared.ask_all(args.queries).await? });
    }
    let (acks_ms, took) = writer.await.map_err(panicked)??;
    let since = Instant::now();
    shared.table.flush().await?;
    drain(&shared.table).await?;
    let drained_s = since.elapsed().as_secs_f64();
    shared.is_over.store(true, Ordering::SeqCst);
    let open_loop = reader.await.map_err(panicked)??;
    stages.push(Stage { name: "merged".into(), asked: shared.ask_all(args.queries).await? });
    let stats = shared.table.stats();
    db.close().await?;
    let rows_per_s = data.rows() as f64 / took.as_secs_f64();
    Ok(Run { stages, open_loop, acks_ms, rows_per_s, steps_at_80, drained_s, rss_bytes: rss_bytes(), stats })
}

/// Waits until nothing is left to flush or to merge.
async fn drain(table: &Table) -> Outcome {
    let since = Instant::now();
    loop {
        let stats = table.stats();
        if stats.sealed.count == 0 && stats.merge.backlog_segments == 0 && stats.merge.backlog_ms == 0 {
            return Ok(());
        }
        if since.elapsed() > DRAIN {
            return Err(Error::check(format!("merging did not end: {:?}, {:?}", stats.merge, stats.health)));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Writes all rows; a batch that is late is written at once, and the next ones keep to the schedule.
async fn write(shared: Arc<Shared>, batch: usize, rate: f64) -> Outcome<(Vec<f64>, Duration)> {
    let mut acks = Vec::new();
    let rows = shared.data.rows();
    for (n, first) in (0..rows).step_by(batch).enumerate() {
        let due = shared.began + Duration::from_secs_f64(n as f64 * batch as f64 / rate);
        tokio::time::sleep_until(due.into()).await;
        let last = (first + batch).min(rows);
        let rows = rows_of(&shared.data, first, last)?;
        let started = Instant::now();
        shared.table.upsert(rows).await?;
        acks.push(started.elapsed().as_secs_f64() * 1e3);
        shared.acknowledged.store(last, Ordering::SeqCst);
    }
    Ok((acks, shared.began.elapsed()))
}

fn rows_of(data: &Dataset, first: usize, last: usize) -> Outcome<RecordBatch> {
    let values = Float32Array::from(data.base[first * data.dim..last * data.dim].to_vec());
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let list = FixedSizeListArray::try_new(item, data.dim as i32, Arc::new(values), None)?;
    let ids: Int64Array = (first as i64..last as i64).collect();
    Ok(RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("vec", Arc::new(list) as ArrayRef)])?)
}

/// Asks `qps` times a second, whether the last answer is there or not.
async fn read(shared: Arc<Shared>, qps: f64) -> Outcome<Vec<Asked>> {
    let mut answers = tokio::task::JoinSet::new();
    for n in 0u64.. {
        let due = shared.began + Duration::from_secs_f64(n as f64 / qps);
        tokio::time::sleep_until(due.into()).await;
        if shared.is_over.load(Ordering::SeqCst) {
            break;
        }
        let (shared, query) = (Arc::clone(&shared), n as usize % shared.data.queries().len());
        answers.spawn(async move { shared.ask(query, 10, due).await });
    }
    let mut asked = Vec::with_capacity(answers.len());
    while let Some(answer) = answers.join_next().await {
        asked.push(answer.map_err(panicked)??);
    }
    Ok(asked)
}

impl Shared {
    /// All queries one after another, for each k.
    async fn ask_all(&self, queries: usize) -> Outcome<Vec<Asked>> {
        let mut asked = Vec::new();
        for k in [100, 10] {
            for query in 0..queries.min(self.data.queries().len()) {
                asked.push(self.ask(query, k, Instant::now()).await?);
            }
        }
        Ok(asked)
    }

    async fn ask(&self, query: usize, k: usize, due: Instant) -> Outcome<Asked> {
        let rows = self.acknowledged.load(Ordering::SeqCst);
        let vector = &self.data.queries[query * self.data.dim..][..self.data.dim];
        let hits = self.table.search(vector).k(k).ef_search(self.ef.max(k)).columns(["id"]).await?;
        let ms = due.elapsed().as_secs_f64() * 1e3;
        let ids = hits.column(0).as_primitive::<Int64Type>().values().iter().map(|id| *id as u32).collect();
        let at_s = due.saturating_duration_since(self.began).as_secs_f64();
        Ok(Asked { query, k, rows, ids, ms, at_s })
    }
}

/// This process's resident memory; 0 where the system does not say.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
