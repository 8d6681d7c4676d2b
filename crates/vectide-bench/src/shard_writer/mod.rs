//! `vectide bench shard-writer`: a shard's writer with its log, memtable and graph, as lance-format/lance#6795 measured
//! Lance's.
//!
//! Every setting is run `--repeat` times, the settings in turn within each repeat, and medians are reported, with the
//! same bytes written plainly to the same disk beside each.

mod args;
mod disk;
mod measure;
mod recall;
mod rows;
mod store;
mod text;
mod write;

pub use args::{Args, CodesArg, Switch};
pub use rows::SchemaShape;
pub use store::StoreKind;

use crate::dataset::{Dataset, Source};
use crate::error::Outcome;
use crate::figures::{median, rounded};
use crate::report::{Report, table};
use args::{Setting, durability_name};
use indicatif::{ProgressBar, ProgressStyle};
use measure::Measured;
use rows::Rows;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Real vectors, where the workspace lies beside them.
const REAL: &str = "../shared/data/packages-1024.parquet";

/// Runs the bench.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for settings that contradict each other,
/// [`Error::Data`](crate::Error::Data) for a file that cannot be read, [`Error::Write`](crate::Error::Write) for a folder
/// that cannot be written to, [`Error::Engine`](crate::Error::Engine) for what the engine refuses.
pub async fn run(args: &Args) -> Outcome<Report> {
    let settings = args.settings()?;
    let data = Dataset::load(&source(args), args.dim, Some(args.rows))?;
    let mut report = Report::new("shard-writer", data.describe(), args.describe());
    let rows = shapes(args, data)?;
    let bar = ProgressBar::new((settings.len() * args.repeat) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} runs  {msg}").expect("the template is valid"));
    let mut runs: Vec<Vec<Measured>> = vec![Vec::new(); settings.len()];
    for repeat in 0..args.repeat {
        for (at, setting) in settings.iter().enumerate() {
            bar.set_message(setting.name());
            let rows = &rows[setting.shape.name()];
            runs[at].push(measure::run(args, setting, rows, repeat * settings.len() + at).await?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    for (setting, runs) in settings.iter().zip(&runs) {
        let rows = &rows[setting.shape.name()];
        report.results.push(result(args, setting, rows, runs));
    }
    compare(&mut report, args, &settings, &runs);
    Ok(report)
}

fn source(args: &Args) -> Source {
    match &args.data {
        Some(source) => source.clone(),
        None if Path::new(REAL).exists() => Source::File(REAL.into()),
        None => Source::Generated,
    }
}

/// The rows of each shape that was asked for, by its name.
fn shapes(args: &Args, data: Dataset) -> Outcome<BTreeMap<&'static str, Arc<Rows>>> {
    let mut shapes = BTreeMap::new();
    for &shape in &args.schema_shape {
        if !shapes.contains_key(shape.name()) {
            shapes.insert(shape.name(), Arc::new(Rows::new(shape, data.clone())?));
        }
    }
    Ok(shapes)
}

fn of(runs: &[Measured], figure: impl Fn(&Measured) -> f64) -> f64 {
    median(&runs.iter().map(figure).collect::<Vec<_>>())
}

/// The median of a figure that not every run has.
fn of_some(runs: &[Measured], figure: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = runs.iter().filter_map(figure).collect();
    (!figures.is_empty()).then(|| rounded(median(&figures)))
}

/// One setting's object.
fn result(args: &Args, setting: &Setting, rows: &Rows, runs: &[Measured]) -> Value {
    let (count, row_mb) = (rows.len() as f64, rows.row_bytes / 1e6);
    let mid = |figure: &dyn Fn(&Measured) -> f64| rounded(of(runs, figure));
    let (acked, indexed) = (of(runs, |run| count / run.acked_s), of(runs, |run| count / run.indexed_s()));
    json!({
        "engine": "vectide",
        "schema_shape": setting.shape.name(),
        "row_bytes": rounded(rows.row_bytes),
        "batch": setting.batch,
        "index": setting.index.is_some(),
        "store": setting.store.to_string(),
        "durability": durability_name(setting.durability),
        "puts_in_flight": setting.puts_in_flight,
        "outstanding_batches": args.outstanding(setting, rows.row_bytes),
        "acked_rows_per_s": rounded(acked),
        "indexed_rows_per_s": rounded(indexed),
        "indexed_rows_per_s_of_each_run": runs.iter().map(|run| rounded(count / run.indexed_s())).collect::<Vec<_>>(),
        "acked_mb_per_s": rounded(acked * row_mb),
        "indexed_mb_per_s": rounded(indexed * row_mb),
        "cpu_us_per_row": mid(&|run| run.cpu_s * 1e6 / count),
        "put_p50_us": mid(&|run| run.put_p50_us),
        "put_p99_us": mid(&|run| run.put_p99_us),
        "queue_final_pct": mid(&|run| run.queue_final_pct),
        "queue_max_pct": mid(&|run| run.stats.wal.wal_queue_max_pct),
        "queue_age_max_ms": mid(&|run| run.stats.wal.queue_age_max_us as f64 / 1e3),
        "tail_rows_max": setting.index.as_ref().map(|_| mid(&|run| run.stats.memtable.tail_rows_max as f64)),
        "tail_max_pct": setting.index.as_ref().map(|_| mid(&|run| run.stats.tail_max_pct)),
        "drain_s": mid(&|run| run.drain_s),
        "close_s": of_some(runs, |run| run.close_s),
        "log_mb_per_s": mid(&Measured::log_mb_per_s),
        "syncs": mid(&|run| run.stats.wal.syncs as f64),
        "rows_per_sync": mid(&|run| run.stats.wal.rows_per_sync),
        "log_bytes_per_sync": mid(&|run| run.stats.wal.bytes_written as f64 / run.stats.wal.syncs.max(1) as f64),
        "flushes": mid(&|run| run.stats.flush.done as f64),
        "recall_at_10": of_some(runs, |run| run.recall),
        "ef_search": recall::EF_SEARCH,
        "disk": disk(runs),
    })
}

/// The bare disk's figures, medians of the runs.
fn disk(runs: &[Measured]) -> Value {
    let Some(first) = runs.iter().find_map(|run| run.disk.as_ref()) else { return Value::Null };
    let mid = |figure: fn(&disk::Disk) -> f64| of_some(runs, |run| run.disk.as_ref().map(figure));
    json!({
        "file_system": runs.iter().find_map(|run| run.file_system.as_deref()),
        "one_sync_mb_per_s": mid(|disk| disk.one_sync_mb_per_s),
        "sync_each_mb_per_s": mid(|disk| disk.sync_each_mb_per_s),
        "group_bytes": first.group_bytes,
        "fdatasync_p50_us": mid(|disk| disk.fdatasync_p50_us),
        "fdatasync_p99_us": mid(|disk| disk.fdatasync_p99_us),
        "syncs": first.syncs,
    })
}

/// Ratios between settings of this run, and to the bare disk.
fn compare(report: &mut Report, args: &Args, settings: &[Setting], runs: &[Vec<Measured>]) {
    let acked = |at: usize| 1.0 / of(&runs[at], |run| run.acked_s);
    for (at, setting) in settings.iter().enumerate() {
        let (work, store, puts) = (setting.work_name(), setting.store_name(), setting.puts_in_flight);
        let is_alike = |other: &Setting| other.work_name() == work;
        let local = settings.iter().position(|other| other.store == StoreKind::Local && is_alike(other));
        let one = settings.iter().position(|other| *other == Setting { puts_in_flight: 1, ..setting.clone() });
        if let (true, Some(local)) = (setting.store != StoreKind::Local, local) {
            report.ratio(format!("shard_writer.{work}.acked.{store}_puts{puts}_over_local"), acked(at) / acked(local));
        }
        if let (true, Some(one)) = (setting.store != StoreKind::Local && puts > 1, one) {
            report.ratio(format!("shard_writer.{work}.{store}.acked.puts{puts}_over_puts1"), acked(at) / acked(one));
        }
        if setting.index.is_none() {
            compare_with_disk(report, setting, &runs[at]);
        }
        if let (true, Some(age)) = (args.target_rows_per_s > 0.0, of_some(&runs[at], Measured::age_limit_over_age_max))
        {
            report.ratio(format!("shard_writer.{}.paced.age_limit_over_age_max", setting.name()), age);
        }
    }
}

/// The log's bytes a second over those of the two plain ways to write them; nothing without a disk.
fn compare_with_disk(report: &mut Report, setting: &Setting, runs: &[Measured]) {
    let over =
        |plain: fn(&disk::Disk) -> f64| of_some(runs, |run| Some(run.log_mb_per_s() / plain(run.disk.as_ref()?)));
    let ways = [("one_sync", over(|disk| disk.one_sync_mb_per_s)), ("sync_each", over(|disk| disk.sync_each_mb_per_s))];
    for (way, over) in ways {
        if let Some(over) = over {
            report.ratio(format!("shard_writer.{}.log_over_{way}", setting.name()), over);
        }
    }
}

/// The results as a table for people.
#[must_use]
pub fn print(report: &Report) -> String {
    let heads = [
        "shape",
        "batch",
        "index",
        "store",
        "durability",
        "acked/s",
        "indexed/s",
        "MB/s",
        "put p50 us",
        "p99 us",
        "queue end %",
        "max %",
        "age ms",
        "tail",
        "drain s",
        "rows/sync",
        "recall@10",
        "log MB/s",
        "disk MB/s",
        "fdatasync p50 us",
        "p99 us",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for result in &report.results {
        let number = |value: &Value, digits: usize| {
            value.as_f64().map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        let text = |name: &str| result[name].as_str().unwrap_or_default().to_owned();
        let puts = if result["store"] != "local" { format!(" x{}", result["puts_in_flight"]) } else { String::new() };
        rows.push(vec![
            text("schema_shape"),
            number(&result["batch"], 0),
            if result["index"] == true { "on" } else { "off" }.to_owned(),
            format!("{}{puts}", text("store")),
            text("durability"),
            number(&result["acked_rows_per_s"], 0),
            number(&result["indexed_rows_per_s"], 0),
            number(&result["indexed_mb_per_s"], 1),
            number(&result["put_p50_us"], 0),
            number(&result["put_p99_us"], 0),
            number(&result["queue_final_pct"], 2),
            number(&result["queue_max_pct"], 2),
            number(&result["queue_age_max_ms"], 1),
            number(&result["tail_rows_max"], 0),
            number(&result["drain_s"], 3),
            number(&result["rows_per_sync"], 1),
            number(&result["recall_at_10"], 4),
            number(&result["log_mb_per_s"], 0),
            number(&result["disk"]["one_sync_mb_per_s"], 0),
            number(&result["disk"]["fdatasync_p50_us"], 0),
            number(&result["disk"]["fdatasync_p99_us"], 0),
        ]);
    }
    let mut text = table(&without_empty_columns(&rows));
    for (name, ratio) in &report.ratios {
        text.push_str(&format!("{name} = {ratio}\n"));
    }
    text
}

/// Leaves out what no setting has, such as recall without an index.
fn without_empty_columns(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let is_kept = |at: usize| rows[1..].iter().any(|row| row[at] != "-");
    let kept: Vec<usize> = (0..rows[0].len()).filter(|&at| is_kept(at)).collect();
    rows.iter().map(|row| kept.iter().map(|&at| row[at].clone()).collect()).collect()
}

#[cfg(test)]
mod tests;
