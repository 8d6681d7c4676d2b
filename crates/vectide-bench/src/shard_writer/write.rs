//! Writing all rows of a run: by one caller with some batches unacknowledged, at a pace or without one, or by callers that
//! wait for each of their rows.
//!
//! Out: how long each put took, from when it was due to its acknowledgement, so that a writer that falls behind its pace
//! does not hide it.

use super::rows::Rows;
use crate::error::Outcome;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vectide::Table;

/// How a writer writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Rows a put.
    pub(super) batch: usize,
    /// Batches not acknowledged yet, at most.
    pub(super) outstanding: usize,
    /// Rows a second; 0 is as fast as it goes.
    pub(super) rows_per_s: f64,
    /// Callers of single rows instead; 0 for the one writer.
    pub(super) callers: usize,
}

/// What writing showed.
#[derive(Clone, Debug)]
pub(super) struct Written {
    /// When the first put began.
    pub(super) started: Instant,
    /// From then to the last acknowledgement.
    pub(super) acked: Duration,
    /// Of each put.
    pub(super) put_us: Vec<f64>,
}

/// Writes all rows.
pub(super) async fn run(table: &Table, rows: &Arc<Rows>, plan: Plan) -> Outcome<Written> {
    let started = Instant::now();
    let put_us = match plan.callers {
        0 => one_writer(table, rows, plan, started).await?,
        callers => closed_loops(table, rows, callers).await?,
    };
    Ok(Written { started, acked: started.elapsed(), put_us })
}

async fn one_writer(table: &Table, rows: &Rows, plan: Plan, started: Instant) -> Outcome<Vec<f64>> {
    let mut times = Vec::with_capacity(rows.len() / plan.batch + 1);
    let mut under_way = FuturesUnordered::new();
    for first in (0..rows.len()).step_by(plan.batch) {
        let due = match plan.rows_per_s {
            0.0 => None,
            pace => Some(started + Duration::from_secs_f64(first as f64 / pace)),
        };
        while let Some(wait) =
            due.map(|due| due.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
        {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Some(done) = under_way.next(), if !under_way.is_empty() => times.push(done?),
            }
        }
        while under_way.len() >= plan.outstanding {
            times.extend(under_way.try_next().await?);
        }
        under_way.push(put(table, rows, first, plan.batch, due.unwrap_or_else(Instant::now)));
        // Begins the new one, and takes in what was acknowledged meanwhile.
        while let Some(Some(done)) = under_way.next().now_or_never() {
            times.push(done?);
        }
    }
    while let Some(done) = under_way.try_next().await? {
        times.push(done);
    }
    Ok(times)
}

/// Microseconds from `since` to the acknowledgement.
async fn put(table: &Table, rows: &Rows, first: usize, count: usize, since: Instant) -> Outcome<f64> {
    table.upsert(rows.batch(first, count)).await?;
    Ok(since.elapsed().as_secs_f64() * 1e6)
}

async fn closed_loops(table: &Table, rows: &Arc<Rows>, callers: usize) -> Outcome<Vec<f64>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (table, rows, next) = (table.clone(), Arc::clone(rows), Arc::clone(&next));
        running.spawn(async move {
            let mut times = Vec::new();
            loop {
                // ORDERING: Relaxed: hands out rows, which were there before the callers.
                let row = next.fetch_add(1, Ordering::Relaxed);
                if row >= rows.len() {
                    return Ok(times);
                }
                times.push(put(&table, &rows, row, 1, Instant::now()).await?);
            }
        });
    }
    let mut times = Vec::with_capacity(rows.len());
    while let Some(joined) = running.join_next().await {
        let of_one: Outcome<Vec<f64>> = joined.expect("a caller does not panic");
        times.extend(of_one?);
    }
    Ok(times)
}
