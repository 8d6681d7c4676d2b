//! `vectide bench graph`: how fast a graph takes rows, and what searching it gives for what time.
//!
//! One table of vectors and one graph a run, as a memtable has them. Every setting is built `--repeat` times, the
//! settings in turn within each repeat, and medians are reported; recall is against the exact scan over the same rows.

mod args;
mod beside;
mod build;
mod sweep;

pub use args::Args;

use crate::dataset::Dataset;
use crate::error::Outcome;
use crate::figures::{median, rounded};
use crate::plot::{Curve, Plot};
use crate::report::{Report, table};
use build::{Built, Setting, Speed};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sweep::{Point, Truth};

/// Runs the bench.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for settings that the graph refuses, [`Error::Data`](crate::Error::Data) for a file that cannot be read,
/// [`Error::Write`](crate::Error::Write) for a picture that cannot be written.
pub fn run(args: &Args) -> Outcome<Report> {
    let data = Dataset::load(&args.data, args.dim, args.rows)?;
    let settings = args.settings(&data)?;
    let truth = Truth::of(&data, args.metric, args.k)?;
    let bar = ProgressBar::new((settings.len() * args.repeat) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} builds  {msg}").expect("the template is valid"));
    let mut report = Report::new("graph", data.describe(), args.describe());
    let mut speeds: Vec<Vec<Speed>> = vec![Vec::new(); settings.len()];
    let mut curves = Vec::new();
    for repeat in 0..args.repeat {
        for (at, setting) in settings.iter().enumerate() {
            bar.set_message(setting.label());
            let built = Built::new(&data, setting)?;
            speeds[at].push(built.speed.clone());
            if repeat + 1 == args.repeat {
                let points = sweep::run(&built, &data, &truth, &args.ef_search)?;
                report.results.push(result(setting, &speeds[at], &built, &points));
                curves.push(Curve::of(setting.label(), points.iter().map(|p| (p.recall, p.searches_per_s))));
                if let (Some(last), true) = (report.results.last_mut(), args.while_inserting) {
                    last["while_inserting"] = beside::run(&data, setting, args.k)?;
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    compare(&mut report, &data.name, &settings, &speeds);
    if let Some(path) = &args.plot {
        let plot = Plot { title: format!("{}: recall@{} against searches per second", data.name, args.k) };
        plot.write(path, "recall", "searches per second, one thread", &curves)?;
    }
    Ok(report)
}

/// One setting's object.
fn result(setting: &Setting, speeds: &[Speed], built: &Built, points: &[Point]) -> Value {
    let of = |figure: fn(&Speed) -> f64| rounded(median(&speeds.iter().map(figure).collect::<Vec<_>>()));
    json!({
        "engine": "vectide",
        "codes": setting.codes_name(),
        "kernels": setting.kernels_name(),
        "index_threads": setting.threads,
        "batch": setting.batch,
        "inserts_per_s": of(Speed::rows_per_s),
        "inserts_per_cpu_s": of(Speed::rows_per_cpu_s),
        "last_quarter_inserts_per_cpu_s": of(Speed::last_quarter_rows_per_cpu_s),
        "evaluations_per_insert": built.evaluations_per_insert().map(rounded),
        "bytes_per_row": built.bytes_per_row(),
        "unreachable": built.unreachable(),
        "search": points,
    })
}

/// Ratios between settings of this run.
fn compare(report: &mut Report, data: &str, settings: &[Setting], speeds: &[Vec<Speed>]) {
    let speed = |at: usize, figure: fn(&Speed) -> f64| median(&speeds[at].iter().map(figure).collect::<Vec<_>>());
    for (at, setting) in settings.iter().enumerate() {
        let like = |other: &Setting| settings.iter().position(|s| s == other);
        let prefix = format!("graph.{data}.{}", setting.codes_name());
        if let (true, Some(one)) = (setting.threads > 1, like(&Setting { threads: 1, ..setting.clone() })) {
            let ratio = speed(at, Speed::rows_per_s) / speed(one, Speed::rows_per_s);
            report.ratio(format!("{prefix}.insert.threads{}_over_threads1", setting.threads), ratio);
        }
        if let (true, Some(large)) = (setting.batch < 1_000, like(&Setting { batch: 1_000, ..setting.clone() })) {
            let ratio = speed(at, Speed::rows_per_cpu_s) / speed(large, Speed::rows_per_cpu_s);
            report.ratio(format!("{prefix}.insert.batch{}_over_batch1000", setting.batch), ratio);
        }
    }
}

/// The results as a table for people.
#[must_use]
pub fn print(report: &Report) -> String {
    let heads = ["codes", "threads", "batch", "inserts/s", "/cpu s", "last quarter", "B/row", "recall@ef (us)"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for result in &report.results {
        let number = |name: &str| result[name].as_f64().map_or_else(String::new, |n| format!("{n:.0}"));
        let text = |name: &str| result[name].as_str().unwrap_or_default().to_owned();
        let points = result["search"].as_array().into_iter().flatten().map(|p| {
            format!(
                "{:.4}@{} ({:.0})",
                p["recall"].as_f64().unwrap_or(0.0),
                p["ef_search"],
                p["mean_us"].as_f64().unwrap_or(0.0)
            )
        });
        rows.push(vec![
            text("codes"),
            number("index_threads"),
            number("batch"),
            number("inserts_per_s"),
            number("inserts_per_cpu_s"),
            number("last_quarter_inserts_per_cpu_s"),
            result["bytes_per_row"]["graph"].as_f64().map_or_else(String::new, |n| format!("{n:.0}")),
            points.collect::<Vec<_>>().join(" "),
        ]);
    }
    let mut text = table(&rows);
    for (name, ratio) in &report.ratios {
        text.push_str(&format!("{name} = {ratio}\n"));
    }
    text
}
