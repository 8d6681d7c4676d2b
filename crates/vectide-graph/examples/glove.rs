//! Builds graphs over real and generated vectors and prints what they cost:
//! insert rate, recall@10 and search time over a sweep of `ef`, bytes per row.
//!
//! `cargo run --release -p vectide-graph --example glove [-- OPTIONS] [SET…]`
//!
//! A set is `glove`, `glove-l2`, `generated` or `generated-1024`, or a file of raw
//! little-endian rows: `f32:PATH:DIM` or `f16:PATH:DIM`, whose last 1,000 rows are
//! the queries. Options:
//!
//! - `--codes none,int8,int4`: the kinds to measure one after the other; `auto`
//! - `--metric l2|cosine|dot`: for files; cosine
//! - `--m`, `--ef-construction`: 16, 100
//! - `--ef 16,32,…`: the sweep
//! - `--threads 1,2`: threads that insert
//! - `--rows N`: only the first N rows
//! - `--queries N`: 1,000; 0 builds only

#![allow(clippy::disallowed_methods, reason = "an example measures real time")]

#[path = "../tests/graph/common.rs"]
mod common;

use common::Rows;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vectide_graph::{Codes, Compiled, Graph, Metric, Params, Query, Scratch, VectorTable, Vectors};

const QUERIES: usize = 1_000;

/// What the command line asked for.
struct Options {
    codes: Vec<String>,
    metric: Metric,
    m: u16,
    ef_construction: u32,
    efs: Vec<usize>,
    threads: Vec<usize>,
    rows: usize,
    queries: usize,
    sets: Vec<String>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Self {
        let mut options = Self {
            codes: vec!["none".into(), "auto".into()],
            metric: Metric::Cosine,
            m: 16,
            ef_construction: 100,
            efs: vec![16, 32, 64, 128, 256],
            threads: vec![1],
            rows: usize::MAX,
            queries: QUERIES,
            sets: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
            match arg.as_str() {
                "--codes" => options.codes = value().split(',').map(String::from).collect(),
                "--metric" => options.metric = metric(&value()),
                "--m" => options.m = value().parse().expect("a number"),
                "--ef-construction" => options.ef_construction = value().parse().expect("a number"),
                "--ef" => options.efs = numbers(&value()),
                "--threads" => options.threads = numbers(&value()),
                "--queries" => options.queries = value().parse().expect("a number"),
                "--rows" => options.rows = value().parse().expect("a number"),
                _ => options.sets.push(arg),
            }
        }
        if options.sets.is_empty() {
            options.sets = ["glove", "glove-l2", "generated-1024"].map(String::from).to_vec();
        }
        options
    }
}

fn numbers(list: &str) -> Vec<usize> {
    list.split(',').map(|number| number.parse().expect("a number")).collect()
}

fn metric(name: &str) -> Metric {
    match name {
        "l2" => Metric::L2,
        "cosine" => Metric::Cosine,
        "dot" => Metric::Dot,
        other => panic!("no metric {other}"),
    }
}

fn main() {
    let options = Options::parse(std::env::args().skip(1));
    for set in &options.sets {
        let (mut rows, metric) = load(set, options.metric);
        let base = (rows.len() - QUERIES).min(options.rows);
        let queries = rows.values.split_off((rows.len() - QUERIES) * rows.dim);
        rows.values.truncate(base * rows.dim);
        let table = rows.table(metric);
        let queries: Vec<Query> = queries
            .chunks(rows.dim)
            .take(options.queries)
            .map(|row| Query::new(metric, rows.dim as u32, row).expect("a query"))
            .collect();
        let truth = truth(&table, &queries);
        for codes in &options.codes {
            for &threads in &options.threads {
                let codes = match codes.as_str() {
                    "auto" => Codes::auto(rows.dim as u32, metric),
                    name => Codes::from_name(name).unwrap_or_else(|| panic!("no codes {name}")),
                };
                let params = Params {
                    m: options.m,
                    ef_construction: options.ef_construction,
                    codes,
                    ..Params::new(rows.dim as u32, metric)
                };
                let graph = build(set, &table, params, threads);
                let efs = if queries.is_empty() { &[] } else { &options.efs[..] };
                sweep(&graph, &table, &queries, &truth, efs);
            }
        }
    }
}

fn load(set: &str, metric: Metric) -> (Rows, Metric) {
    let file = |rest: &str, read: &dyn Fn(&[u8]) -> Vec<f32>| {
        let (path, dim) = rest.rsplit_once(':').expect("PATH:DIM");
        let values = read(&std::fs::read(path).expect("the file is there"));
        (Rows { dim: dim.parse().expect("a dimension"), values }, metric)
    };
    if let Some(rest) = set.strip_prefix("f32:") {
        return file(rest, &|bytes| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
    }
    if let Some(rest) = set.strip_prefix("f16:") {
        return file(rest, &|bytes| {
            bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()
        });
    }
    match set {
        "glove" => (common::glove(), Metric::Cosine),
        "glove-l2" => (common::glove(), Metric::L2),
        "generated" => (common::clustered(21_000, 128, 200, 12, 7), Metric::L2),
        "generated-1024" => (common::clustered(11_000, 1_024, 400, 24, 7), Metric::Cosine),
        other => panic!("no set {other}"),
    }
}

fn truth(table: &VectorTable<f32>, queries: &[Query]) -> Vec<Vec<u32>> {
    let mut scratch = Scratch::new();
    let nearest = |query| f32::scan_live(table, query, 0..table.len(), &|_| true, 10, &mut scratch);
    queries.iter().map(nearest).map(|hits| hits.iter().map(|hit| hit.id).collect()).collect()
}

/// Inserts every row, quarter by quarter.
fn build(name: &str, table: &VectorTable<f32>, params: Params, threads: usize) -> Graph {
    let graph = Graph::new(params).expect("valid settings");
    let base = table.len() as usize;
    let mut quarters = [0.0; 4];
    let evaluations = AtomicU64::new(0);
    for (quarter, seconds) in quarters.iter_mut().enumerate() {
        let ids = quarter * base / 4..(quarter + 1) * base / 4;
        let insert = |thread: usize| {
            let mut scratch = Scratch::new();
            let start = cpu_seconds();
            for id in ids.clone().skip(thread).step_by(threads) {
                f32::insert(&graph, table, id as u32, &mut scratch).expect("a row");
            }
            evaluations.fetch_add(scratch.evaluations(), Ordering::Relaxed);
            cpu_seconds() - start
        };
        let clock = Instant::now();
        let own = std::thread::scope(|scope| {
            for thread in 1..threads {
                let insert = &insert;
                scope.spawn(move || insert(thread));
            }
            insert(0)
        });
        *seconds = if threads == 1 { own } else { clock.elapsed().as_secs_f64() };
    }
    println!(
        "{name}: {base} rows, {:?}, codes {}, {threads} threads: {:.0} inserts/s ({}), {:.0} in the last quarter; \
         {:.0} evaluations/insert, {:.1} bytes/row, {} unreachable",
        params.metric,
        params.codes.name(),
        base as f64 / quarters.iter().sum::<f64>(),
        if threads == 1 { "CPU time" } else { "clock" },
        base as f64 / 4.0 / quarters[3],
        evaluations.into_inner() as f64 / base as f64,
        graph.memory_bytes() as f64 / base as f64,
        graph.unreachable().len(),
    );
    graph
}

fn sweep(graph: &Graph, table: &VectorTable<f32>, queries: &[Query], truth: &[Vec<u32>], efs: &[usize]) {
    let mut scratch = Scratch::new();
    for &ef in efs {
        let mut times = Vec::new();
        let mut found = 0;
        let mut best = f64::MAX;
        for _ in 0..3 {
            (found, times) = (0, Vec::new());
            let cpu = cpu_seconds();
            for (query, truth) in queries.iter().zip(truth) {
                let start = Instant::now();
                let hits = f32::search_live((graph, table), query, 10, ef, &|_| true, &mut scratch);
                times.push(start.elapsed());
                found += hits.iter().filter(|hit| truth.contains(&hit.id)).count();
            }
            best = best.min((cpu_seconds() - cpu) / queries.len() as f64);
        }
        times.sort_unstable();
        println!(
            "  ef {ef:>3}: recall@10 {:.4}, mean {:>6.1} us of CPU time, p50 {:>6.1} us, p99 {:>6.1} us",
            found as f64 / (10 * queries.len()) as f64,
            best * 1e6,
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
