//! One rival's graph, built and searched: `rival-graphs usearch|lance BASE QUERIES DIM METRIC M EFC EFS K BATCH`.
//!
//! BASE and QUERIES are raw little-endian f32, TRUTH raw little-endian u32, `[rows, dim]` and `[queries, k]`. Prints one
//! object as `vectide bench graph` does for each of its settings. One thread; rates are of its processor time.

mod lance;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::Instant;

/// What every rival can do.
trait Rival {
    /// Appends and inserts rows `first..end` of `base`.
    fn insert(&mut self, base: &[f32], first: usize, end: usize);
    /// Ids of the `k` nearest.
    fn search(&mut self, query: &[f32], k: usize, ef: usize) -> Vec<u32>;
    /// Bytes beside the vectors, where the engine tells.
    fn bytes(&self) -> Option<usize>;
}

struct Task {
    base: Vec<f32>,
    queries: Vec<f32>,
    truth: Vec<u32>,
    dim: usize,
    metric: String,
    m: usize,
    ef_construction: usize,
    ef_search: Vec<usize>,
    k: usize,
    batch: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, base, queries, truth, dim, metric, m, efc, efs, k, batch] = arguments.as_slice() else {
        eprintln!("usage: rival-graphs usearch|lance BASE QUERIES TRUTH DIM METRIC M EFC EFS K BATCH");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let task = Task {
        base: floats(base),
        queries: floats(queries),
        truth: floats(truth).iter().map(|f| f.to_bits()).collect(),
        dim: number(dim),
        metric: metric.clone(),
        m: number(m),
        ef_construction: number(efc),
        ef_search: efs.split(',').map(|ef| ef.parse().expect("a number")).collect(),
        k: number(k),
        batch: number(batch),
    };
    let result = match engine.as_str() {
        "usearch" => measure(&task, Usearch::new(&task)),
        "lance" => measure(&task, lance::Lance::new(&task)),
        other => panic!("there is no rival `{other}`"),
    };
    let mut result = result;
    result["engine"] = json!(engine);
    println!("{result}");
}

fn floats(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn measure(task: &Task, mut rival: impl Rival) -> Value {
    let rows = task.base.len() / task.dim;
    let mut seconds = [0.0f64; 4];
    let started = Instant::now();
    for (quarter, seconds) in seconds.iter_mut().enumerate() {
        let cpu = cpu_seconds();
        let end = (quarter + 1) * rows / 4;
        for first in (quarter * rows / 4..end).step_by(task.batch) {
            rival.insert(&task.base, first, (first + task.batch).min(end));
        }
        *seconds = cpu_seconds() - cpu;
    }
    let wall = started.elapsed().as_secs_f64();
    let points: Vec<Value> = task.ef_search.iter().map(|&ef| point(task, &mut rival, ef)).collect();
    json!({
        "index_threads": 1,
        "batch": task.batch,
        "inserts_per_s": rows as f64 / wall,
        "inserts_per_cpu_s": rows as f64 / seconds.iter().sum::<f64>(),
        "last_quarter_inserts_per_cpu_s": (rows - 3 * rows / 4) as f64 / seconds[3],
        "bytes_per_row": {"graph": rival.bytes().map(|bytes| bytes as f64 / rows as f64)},
        "search": points,
    })
}

fn point(task: &Task, rival: &mut impl Rival, ef: usize) -> Value {
    let (mut times, mut found, mut cpu) = (Vec::new(), 0usize, 0.0);
    for (query, truth) in task.queries.chunks_exact(task.dim).zip(task.truth.chunks_exact(task.k)) {
        let (started, before) = (Instant::now(), cpu_seconds());
        let ids = rival.search(query, task.k, ef);
        cpu += cpu_seconds() - before;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        found += ids.iter().filter(|id| truth.contains(id)).count();
    }
    times.sort_unstable_by(f64::total_cmp);
    let count = times.len();
    json!({
        "ef_search": ef,
        "recall": found as f64 / (count * task.k) as f64,
        "searches_per_s": count as f64 / cpu,
        "mean_us": cpu / count as f64 * 1e6,
        "p50_us": times[count / 2],
        "p99_us": times[count * 99 / 100],
    })
}

/// usearch, f32, on the best kernels that its build found.
struct Usearch {
    index: usearch::Index,
    dim: usize,
}

impl Usearch {
    fn new(task: &Task) -> Self {
        let metric = match task.metric.as_str() {
            "cosine" => usearch::MetricKind::Cos,
            "l2" => usearch::MetricKind::L2sq,
            _ => usearch::MetricKind::IP,
        };
        let options = usearch::IndexOptions {
            dimensions: task.dim,
            metric,
            quantization: usearch::ScalarKind::F32,
            connectivity: task.m,
            expansion_add: task.ef_construction,
            expansion_search: 64,
            multi: false,
        };
        let index = usearch::Index::new(&options).expect("valid options");
        index.reserve(task.base.len() / task.dim).expect("memory");
        Self { index, dim: task.dim }
    }
}

impl Rival for Usearch {
    fn insert(&mut self, base: &[f32], first: usize, end: usize) {
        for id in first..end {
            self.index.add(id as u64, &base[id * self.dim..][..self.dim]).expect("a row");
        }
    }

    fn search(&mut self, query: &[f32], k: usize, ef: usize) -> Vec<u32> {
        self.index.change_expansion_search(ef);
        let found = self.index.search(query, k).expect("a query");
        found.keys.iter().map(|key| *key as u32).collect()
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.index.memory_usage().saturating_sub(self.index.size() * self.dim * 4))
    }
}
