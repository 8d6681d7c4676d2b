//! Searching a built graph at several beam widths: recall, mean, p50 and p99.

use super::build::{Built, cpu_seconds};
use crate::dataset::Dataset;
use crate::error::Outcome;
use crate::figures::{percentile, rounded};
use serde::Serialize;
use std::time::Instant;
use vectide_graph::{Compiled, Metric, Query, Scratch, VectorBlock, VectorTable};

/// The exact answers, ids by query.
pub(super) struct Truth {
    pub(super) k: usize,
    pub(super) ids: Vec<Vec<u32>>,
}

impl Truth {
    /// Scans all base rows for each query.
    pub(super) fn of(data: &Dataset, metric: Metric, k: usize) -> Outcome<Self> {
        let table = VectorTable::new(data.dim as u32, metric)?;
        table.append(VectorBlock::borrowed(data.base.clone(), data.dim as u32, metric, None)?)?;
        let rows = data.rows() as u32;
        let mut scratch = Scratch::new();
        let mut ids = Vec::with_capacity(data.queries().len());
        for query in data.queries() {
            let query = Query::new(metric, data.dim as u32, query)?;
            let hits = f32::scan_live(&table, &query, 0..rows, &|_| true, k, &mut scratch);
            ids.push(hits.iter().map(|hit| hit.id).collect());
        }
        Ok(Self { k, ids })
    }

    /// Which share of the true ids is among those found.
    pub(super) fn recall_of(&self, query: usize, found: impl Iterator<Item = u32>) -> f64 {
        let truth = &self.ids[query];
        if truth.is_empty() {
            return 1.0;
        }
        found.filter(|id| truth.contains(id)).count() as f64 / truth.len() as f64
    }
}

/// One beam width.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) ef_search: usize,
    pub(super) recall: f64,
    pub(super) searches_per_s: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Searches for every query at every beam width, on this thread. Rates are of processor time, percentiles of real time.
pub(super) fn run(built: &Built, data: &Dataset, truth: &Truth, widths: &[usize]) -> Outcome<Vec<Point>> {
    let mut scratch = built.setting.scratch();
    let metric = built.setting.params.metric;
    let queries: Vec<Query> =
        data.queries().map(|query| Query::new(metric, data.dim as u32, query)).collect::<Result<_, _>>()?;
    let mut points = Vec::new();
    for &ef_search in widths {
        let mut times = Vec::with_capacity(queries.len());
        let mut recall = 0.0;
        let mut cpu = 0.0;
        for (at, query) in queries.iter().enumerate() {
            let (started, before) = (Instant::now(), cpu_seconds());
            let hits =
                f32::search_live((&built.graph, &built.table), query, truth.k, ef_search, &|_| true, &mut scratch);
            cpu += cpu_seconds() - before;
            times.push(started.elapsed().as_secs_f64() * 1e6);
            recall += truth.recall_of(at, hits.iter().map(|hit| hit.id));
        }
        let count = queries.len().max(1) as f64;
        points.push(Point {
            ef_search,
            recall: rounded(recall / count),
            searches_per_s: rounded(count / cpu),
            mean_us: rounded(cpu / count * 1e6),
            p50_us: rounded(percentile(&times, 50.0)),
            p99_us: rounded(percentile(&times, 99.0)),
        });
    }
    Ok(points)
}
