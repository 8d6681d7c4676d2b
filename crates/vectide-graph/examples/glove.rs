//! Builds graphs over real and generated vectors and prints what they cost:
//! insert rate, recall@10 and search time at three `ef`, bytes per row.
//!
//! `cargo run --release -p vectide-graph --example glove [-- SET…]`, where a set
//! is `glove`, `glove-l2`, `generated` or `generated-1024` (all by default), or
//! `file:PATH` of raw little-endian f16 rows with `:DIM` behind it.

#[path = "../tests/graph/common.rs"]
mod common;

use common::Rows;
use std::time::Instant;
use vectide_graph::{Graph, Metric, Params, Query, Scratch, Vectors, exact, search};

fn main() {
    let mut sets: Vec<String> = std::env::args().skip(1).collect();
    if sets.is_empty() {
        sets = ["glove", "glove-l2", "generated-1024"].map(String::from).to_vec();
    }
    for set in sets {
        let (rows, metric) = load(&set);
        measure(&set, rows, metric);
    }
}

fn load(set: &str) -> (Rows, Metric) {
    if let Some(file) = set.strip_prefix("file:") {
        let (path, dim) = file.rsplit_once(':').expect("file:PATH:DIM");
        let bytes = std::fs::read(path).expect("the file is there");
        let halves = bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32());
        return (Rows { dim: dim.parse().expect("a dimension"), values: halves.collect() }, Metric::Cosine);
    }
    match set {
        "glove" => (common::glove(), Metric::Cosine),
        "glove-l2" => (common::glove(), Metric::L2),
        "generated" => (common::clustered(21_000, 128, 200, 12, 7), Metric::L2),
        "generated-1024" => (common::clustered(11_000, 1_024, 400, 24, 7), Metric::Cosine),
        other => panic!("no set {other}"),
    }
}

fn measure(name: &str, rows: Rows, metric: Metric) {
    let base = rows.len() - 1_000;
    let (rows, queries) = rows.split(base);
    let table = rows.table(metric);
    let params = Params::new(rows.dim as u32, metric);
    let graph = Graph::new(params).expect("valid settings");
    let mut scratch = Scratch::new();
    let mut seconds = [0.0; 4];
    for (quarter, seconds) in seconds.iter_mut().enumerate() {
        let start = cpu_seconds();
        for id in quarter * base / 4..(quarter + 1) * base / 4 {
            graph.insert(&table, id as u32, &mut scratch).expect("a row");
        }
        *seconds = cpu_seconds() - start;
    }
    println!(
        "{name}: {base} rows, {}-d, {metric:?}: {:.0} inserts/s of CPU time, {:.0} in the last \
         quarter; {:.1} + {:.1} bytes/row, {} unreachable",
        rows.dim,
        base as f64 / seconds.iter().sum::<f64>(),
        base as f64 / 4.0 / seconds[3],
        graph.memory_bytes() as f64 / base as f64,
        table.memory_bytes().bookkeeping as f64 / base as f64,
        graph.unreachable().len(),
    );
    let queries: Vec<Query> =
        (0..queries.len()).map(|n| Query::new(metric, params.dim, queries.row(n)).expect("a query")).collect();
    let truth: Vec<Vec<u32>> = queries
        .iter()
        .map(|q| {
            let hits = exact(&table, q, 0..table.len(), &|_| true, 10, &mut scratch);
            hits.iter().map(|h| h.id).collect()
        })
        .collect();
    for ef in [32, 64, 128] {
        let mut times = Vec::new();
        let mut found = 0;
        let cpu = cpu_seconds();
        for (query, truth) in queries.iter().zip(&truth) {
            let start = Instant::now();
            let hits = search(&graph, &table, query, 10, ef, &|_| true, &mut scratch);
            times.push(start.elapsed());
            found += hits.iter().filter(|h| truth.contains(&h.id)).count();
        }
        let cpu = (cpu_seconds() - cpu) / queries.len() as f64;
        times.sort_unstable();
        println!(
            "  ef {ef:>3}: recall@10 {:.4}, mean {:>6.1} us of CPU time, p50 {:>6.1} us, p99 {:>6.1} us",
            found as f64 / (10 * queries.len()) as f64,
            cpu * 1e6,
            times[times.len() / 2].as_secs_f64() * 1e6,
            times[times.len() * 99 / 100].as_secs_f64() * 1e6,
        );
    }
}

/// CPU time of this thread, which says more than the clock on a shared machine;
/// the clock where there is no /proc.
fn cpu_seconds() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let clock = START.get_or_init(Instant::now).elapsed().as_secs_f64();
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|stat| stat.split(' ').next()?.parse::<f64>().ok())
        .map_or(clock, |nanos| nanos / 1e9)
}
