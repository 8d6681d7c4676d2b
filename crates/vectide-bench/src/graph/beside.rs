//! Searching while another thread inserts at full speed: what the reader feels, and what it finds.
//!
//! Four fifths of the rows are there before; recall is over those rows alone, so that idle and busy figures are of the
//! same task.

use super::build::{Built, Setting};
use super::sweep::Truth;
use crate::dataset::Dataset;
use crate::error::Outcome;
use crate::figures::{percentile, rounded};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use vectide_graph::{Compiled, Query};

/// Beam width of the reader, the engine's default.
const EF_SEARCH: usize = 64;

/// Measures one reader, idle and beside one inserting thread.
pub(super) fn run(data: &Dataset, setting: &Setting, k: usize) -> Outcome<Value> {
    let setting = Setting { threads: 1, ..setting.clone() };
    let before = data.rows() / 5 * 4;
    let first = Dataset { base: data.base[..before * data.dim].to_vec(), ..data.clone() };
    let truth = Truth::of(&first, setting.params.metric, k)?;
    let built = Built::new(&first, &setting)?;
    built.append_all(data, before)?;
    let reader = Reader { built: &built, data, truth: &truth, before: before as u32 };
    let idle = reader.read(|round| round < 3)?;
    let done = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| -> Outcome<Felt> {
        let writer = scope.spawn(|| {
            let mut scratch = setting.scratch();
            for id in before..data.rows() {
                f32::insert(&built.graph, &built.table, id as u32, &mut scratch)?;
            }
            // ORDERING: Relaxed: only ends the reader's loop.
            done.store(true, Ordering::Relaxed);
            Ok::<_, vectide_graph::GraphError>(())
        });
        let felt = reader.read(|_| !done.load(Ordering::Relaxed));
        writer.join().expect("an insert does not panic")?;
        felt
    })?;
    Ok(json!({ "ef_search": EF_SEARCH, "idle": idle.describe(), "inserting": busy.describe() }))
}

struct Reader<'a> {
    built: &'a Built,
    data: &'a Dataset,
    truth: &'a Truth,
    before: u32,
}

/// What a reader felt.
#[derive(Default)]
struct Felt {
    times_us: Vec<f64>,
    recall: f64,
    empty: usize,
}

impl Reader<'_> {
    /// Asks all queries again and again while `more` says so.
    fn read(&self, more: impl Fn(usize) -> bool) -> Outcome<Felt> {
        let mut scratch = self.built.setting.scratch();
        let metric = self.built.setting.params.metric;
        let mut felt = Felt::default();
        let queries: Vec<Query> = self
            .data
            .queries()
            .map(|query| Query::new(metric, self.data.dim as u32, query))
            .collect::<Result<_, _>>()?;
        let old = |id: u32| id < self.before;
        for round in 0.. {
            for (at, query) in queries.iter().enumerate() {
                if !more(round) {
                    return Ok(felt);
                }
                let started = Instant::now();
                let of = (&self.built.graph, &self.built.table);
                let hits = f32::search_live(of, query, self.truth.k, EF_SEARCH, &old, &mut scratch);
                felt.times_us.push(started.elapsed().as_secs_f64() * 1e6);
                felt.recall += self.truth.recall_of(at, hits.iter().map(|hit| hit.id));
                felt.empty += usize::from(hits.is_empty());
            }
        }
        unreachable!("the rounds do not end by themselves")
    }
}

impl Felt {
    fn describe(&self) -> Value {
        json!({
            "searches": self.times_us.len(),
            "recall": rounded(self.recall / self.times_us.len().max(1) as f64),
            "empty": self.empty,
            "p50_us": rounded(percentile(&self.times_us, 50.0)),
            "p99_us": rounded(percentile(&self.times_us, 99.0)),
        })
    }
}
