//! One run of one setting: open, write, wait until everything is indexed and drained, search, close, and write the same
//! bytes plainly.

use super::args::{Args, Setting};
use super::disk::{self, Disk};
use super::recall;
use super::rows::Rows;
use super::write::{self, Plan};
use crate::cpu::process_seconds;
use crate::error::{Error, Outcome};
use crate::figures::percentile;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vectide::stats::TableStats;
use vectide::{Durability, Table};

/// How often it is looked whether everything is indexed and drained.
const LOOK: Duration = Duration::from_millis(1);

/// What one run showed.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// From the first put to the last acknowledgement.
    pub(super) acked_s: f64,
    /// From the last acknowledgement until every row is in the graph and the log has nothing queued.
    pub(super) drain_s: f64,
    /// Of the table, after the drain and the searches; nothing where it was left open.
    pub(super) close_s: Option<f64>,
    /// Processor seconds of all threads, up to the end of the drain.
    pub(super) cpu_s: f64,
    pub(super) put_p50_us: f64,
    pub(super) put_p99_us: f64,
    /// Rows queued for the log at the last acknowledgement, as a percentage of all.
    pub(super) queue_final_pct: f64,
    /// The table's figures after the drain.
    pub(super) stats: TableStats,
    /// Nothing without an index.
    pub(super) recall: Option<f64>,
    /// Nothing but for a local directory with a log.
    pub(super) disk: Option<Disk>,
    pub(super) file_system: Option<String>,
}

/// Runs one setting once.
pub(super) async fn run(args: &Args, setting: &Setting, rows: &Arc<Rows>, number: usize) -> Outcome<Measured> {
    let opened = setting.store.open(args.dir.as_deref(), args.options(setting, rows.row_bytes)).await?;
    // A bucket may hold what another run left behind.
    let name = format!("bench-{}-{number}", std::process::id());
    let table = opened.db.create_table(&name, rows.schema(setting.index.clone())?).await?;
    let plan = Plan {
        batch: setting.batch,
        outstanding: args.outstanding(setting, rows.row_bytes),
        rows_per_s: args.target_rows_per_s,
        callers: args.callers,
    };
    let cpu = process_seconds();
    let written = write::run(&table, rows, plan).await?;
    let queue_rows = table.stats().wal.queue_rows;
    let stats = drained(&table, setting.index.is_some(), rows.len() as u64).await?;
    let drain_s = (written.started.elapsed() - written.acked).as_secs_f64();
    let cpu_s = process_seconds() - cpu;
    let recall = match setting.index {
        Some(_) => Some(recall::of(&table, rows).await?),
        None => None,
    };
    let closing = Instant::now();
    let close_s = match args.skip_close {
        true => None,
        false => {
            table.close().await?;
            Some(closing.elapsed().as_secs_f64())
        }
    };
    if args.skip_close {
        drop(table);
    } else {
        opened.db.drop_table(&name).await?;
    }
    drop(opened.db);
    let (mut disk, mut file_system) = (None, None);
    if let (Some(folder), true) = (&opened.folder, setting.durability != Durability::None) {
        disk = Some(disk::measure(folder.path(), stats.wal.bytes_written, stats.wal.groups)?);
        file_system = Some(disk::file_system(folder.path()));
    }
    Ok(Measured {
        acked_s: written.acked.as_secs_f64(),
        drain_s,
        close_s,
        cpu_s,
        put_p50_us: percentile(&written.put_us, 50.0),
        put_p99_us: percentile(&written.put_us, 99.0),
        queue_final_pct: queue_rows as f64 / rows.len() as f64 * 100.0,
        stats,
        recall,
        disk,
        file_system,
    })
}

/// Waits until every row is in the graph and the log has nothing queued, and checks that every row is there.
async fn drained(table: &Table, is_indexed: bool, rows: u64) -> Outcome<TableStats> {
    loop {
        let stats = table.stats();
        if let Some(reason) = stats.health.reason.as_deref().filter(|_| stats.wal.queue_rows > 0) {
            return Err(Error::check(format!("the log does not drain: {reason}")));
        }
        // Without a graph, every row is "not in the graph".
        let is_tail_done = !is_indexed || stats.memtable.tail_rows == 0;
        if is_tail_done && stats.wal.queue_rows == 0 {
            if stats.live_rows != rows {
                return Err(Error::check(format!("{rows} rows were written and {} are visible", stats.live_rows)));
            }
            return Ok(stats);
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Measured {
    /// From the first put until everything was indexed and drained.
    pub(super) fn indexed_s(&self) -> f64 {
        self.acked_s + self.drain_s
    }

    /// Log bytes a second, until nothing was queued.
    pub(super) fn log_mb_per_s(&self) -> f64 {
        self.stats.wal.bytes_written as f64 / 1e6 / self.indexed_s()
    }

    /// The promise of a paced run (three bare syncs, or 20 ms if that is more), over the oldest that a queued row became.
    pub(super) fn age_limit_over_age_max(&self) -> Option<f64> {
        let limit_us = (3.0 * self.disk.as_ref()?.fdatasync_p50_us).max(20_000.0);
        Some(limit_us / (self.stats.wal.queue_age_max_us as f64).max(1.0))
    }
}
