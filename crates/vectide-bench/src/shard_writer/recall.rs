//! Recall at the end of a run: which share of the exact scan's rows a search through the graph finds.

use super::rows::{KEY, Rows};
use crate::error::Outcome;
use arrow::array::AsArray;
use std::collections::HashSet;
use vectide::Table;

/// Rows that are asked for.
pub(super) const K: usize = 10;
/// Beam width, the engine's default.
pub(super) const EF_SEARCH: usize = 64;
/// Queries that are asked, at most.
const QUERIES: usize = 500;

/// Recall@10 at `ef_search` 64 over the held-out queries, on one state of the table.
pub(super) async fn of(table: &Table, rows: &Rows) -> Outcome<f64> {
    let snapshot = table.snapshot();
    let queries = &rows.queries[..rows.queries.len().min(QUERIES)];
    let search = |exact: bool| snapshot.search_batch(queries).k(K).ef_search(EF_SEARCH).columns([KEY]).exact(exact);
    let (found, truth) = (search(false).await?, search(true).await?);
    let (mut wanted, mut hits) = (0usize, 0usize);
    for (found, truth) in found.iter().zip(&truth) {
        let found: HashSet<&str> = found.column(0).as_string::<i32>().iter().flatten().collect();
        wanted += truth.num_rows();
        hits += truth.column(0).as_string::<i32>().iter().flatten().filter(|id| found.contains(id)).count();
    }
    Ok(if wanted == 0 { 1.0 } else { hits as f64 / wanted as f64 })
}
