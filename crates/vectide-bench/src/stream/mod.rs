//! `vectide bench stream`: what searches feel while rows stream in and segments are merged under them.
//!
//! The streaming protocol of VectorDBBench in one process: rows are written at a steady rate; once 20, 50, 80 and 100 per
//! cent of them are acknowledged, and again when everything is merged, all queries are asked one after another. All along,
//! a reader asks on a schedule of its own, and its latency counts from the scheduled time. Truth is computed when all is
//! over, over the rows that were acknowledged when a query began.

mod args;
mod load;
mod truth;

pub use args::Args;

use crate::dataset::Dataset;
use crate::error::Outcome;
use crate::figures::{percentile, rounded};
use crate::plot::{Curve, Plot};
use crate::report::{Report, table};
use load::{Asked, Run};
use serde_json::{Value, json};
use truth::Truth;

/// Runs the bench once for each policy of the node cache that was asked for.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for settings that make no sense, [`Error::Data`](crate::Error::Data) for a
/// file that cannot be read, [`Error::Engine`](crate::Error::Engine) if the engine fails,
/// [`Error::Write`](crate::Error::Write) for a picture that cannot be written.
pub async fn run(args: &Args) -> Outcome<Report> {
    let args = args.checked()?;
    let data = Dataset::load(&args.data, args.dim, Some(args.rows))?;
    let mut report = Report::new("stream", data.describe(), args.describe());
    let mut curves = Vec::new();
    let mut p95_at_80 = Vec::new();
    for &policy in &args.invalidation {
        let run = load::run(&args, &data, policy).await?;
        let truth = Truth::new(&data, args.metric)?;
        for stage in &run.stages {
            let result = describe(policy.name(), &stage.name, &stage.asked, &truth)?;
            if stage.name == "80" {
                p95_at_80.push((policy.name(), result["search_p95_ms"].as_f64().unwrap_or(0.0)));
            }
            report.results.push(result);
        }
        let mut open_loop = describe(policy.name(), "open_loop", &run.open_loop, &truth)?;
        open_loop["windows"] = windows(&run.open_loop);
        report.results.push(open_loop);
        report.results.push(writer(policy.name(), &run));
        curves.extend(curve(policy.name(), &run));
    }
    let of = |name: &str| p95_at_80.iter().find(|(n, _)| *n == name).map(|(_, ms)| *ms);
    for other in ["touched", "all"] {
        if let (Some(dirty), Some(other_ms)) = (of("dirty"), of(other)) {
            report.ratio(format!("stream.p95_at_80.{other}_over_dirty"), other_ms / dirty.max(1e-6));
        }
    }
    if let Some(path) = &args.plot {
        let plot = Plot { title: format!("{}: search latency while rows stream in", data.name) };
        plot.write(path, "seconds", "p99 of a second, ms", &curves)?;
    }
    Ok(report)
}

/// One stage's object.
fn describe(policy: &str, stage: &str, asked: &[Asked], truth: &Truth) -> Outcome<Value> {
    let times: Vec<f64> = asked.iter().map(|a| a.ms).collect();
    let mut result = json!({
        "engine": "vectide",
        "invalidation": policy,
        "stage": stage,
        "searches": asked.len(),
        "rows": asked.iter().map(|a| a.rows).max().unwrap_or(0),
        "search_p50_ms": rounded(percentile(&times, 50.0)),
        "search_p95_ms": rounded(percentile(&times, 95.0)),
        "search_p99_ms": rounded(percentile(&times, 99.0)),
        "search_max_ms": rounded(percentile(&times, 100.0)),
    });
    for k in [10, 100] {
        if let Some(recall) = truth.recall(asked, k)? {
            result[format!("recall_at_{k}")] = json!(rounded(recall));
        }
    }
    Ok(result)
}

/// The open loop in windows of a second.
fn windows(asked: &[Asked]) -> Value {
    let last = asked.iter().map(|a| a.at_s as usize).max().unwrap_or(0);
    let of = |second: usize| -> Vec<f64> { asked.iter().filter(|a| a.at_s as usize == second).map(|a| a.ms).collect() };
    let window = |second: usize| {
        let times = of(second);
        let at = |p: f64| rounded(percentile(&times, p));
        json!({"second": second, "p50_ms": at(50.0), "p95_ms": at(95.0), "p99_ms": at(99.0), "max_ms": at(100.0)})
    };
    (0..=last).map(window).collect()
}

/// What the writer, the merges and the cache did.
fn writer(policy: &str, run: &Run) -> Value {
    let ms: Vec<f64> = run.acks_ms.clone();
    json!({
        "engine": "vectide",
        "invalidation": policy,
        "stage": "writer",
        "rows_per_s": rounded(run.rows_per_s),
        "ack_p50_ms": rounded(percentile(&ms, 50.0)),
        "ack_p99_ms": rounded(percentile(&ms, 99.0)),
        "commits_before_80": run.steps_at_80,
        "drained_s": rounded(run.drained_s),
        "rss_bytes": run.rss_bytes,
        "merge": run.stats.merge,
        "base": run.stats.base,
        "node_cache": run.stats.node_cache,
        "flushes": run.stats.flush.done,
    })
}

fn curve(policy: &str, run: &Run) -> Option<Curve> {
    let last = run.open_loop.iter().map(|a| a.at_s as usize).max()?;
    let p99 = |second: usize| {
        let times: Vec<f64> = run.open_loop.iter().filter(|a| a.at_s as usize == second).map(|a| a.ms).collect();
        (!times.is_empty()).then(|| (second as f64, percentile(&times, 99.0).max(1e-3)))
    };
    Some(Curve::of(policy.to_owned(), (0..=last).filter_map(p99)))
}

/// The results as a table for people.
#[must_use]
pub fn print(report: &Report) -> String {
    let heads = ["policy", "stage", "rows", "p50 ms", "p95 ms", "p99 ms", "max ms", "recall@10", "recall@100"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let mut text = String::new();
    for result in &report.results {
        let figure = |name: &str| result[name].as_f64().map_or_else(|| "-".to_owned(), |n| format!("{n:.3}"));
        let word = |name: &str| result[name].as_str().unwrap_or_default().to_owned();
        if word("stage") == "writer" {
            let (merge, cache) = (&result["merge"], &result["node_cache"]);
            text.push_str(&format!(
                "{}: {} rows/s, ack p99 {} ms; {} steps, {} before 80%, dirty {} of {} touched; cache loads {}, hits {}, \
                 evictions {}, invalidated {}; drained in {} s\n",
                word("invalidation"),
                result["rows_per_s"],
                result["ack_p99_ms"],
                merge["steps"],
                result["commits_before_80"],
                merge["nodes_dirty"],
                merge["nodes_touched"],
                cache["loads"],
                cache["hits"],
                cache["evictions"],
                cache["invalidated"],
                result["drained_s"],
            ));
            continue;
        }
        rows.push(vec![
            word("invalidation"),
            word("stage"),
            result["rows"].to_string(),
            figure("search_p50_ms"),
            figure("search_p95_ms"),
            figure("search_p99_ms"),
            figure("search_max_ms"),
            figure("recall_at_10"),
            figure("recall_at_100"),
        ]);
    }
    let mut all = table(&rows);
    all.push_str(&text);
    for (name, ratio) in &report.ratios {
        all.push_str(&format!("{name} = {ratio}\n"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_stage_of_each_policy_is_in_the_report() {
        let words = "bench --rows 1200 --dim 16 --rate 20000 --queries 6 --qps 100 --memtable-rows 300 --core-pct 100";
        let words = words.split(' ').chain(["--invalidation", "dirty,touched", "--no-publish"]);
        let report = run(&Line::try_parse_from(words).expect("arguments").args).await.expect("runs");
        for policy in ["dirty", "touched"] {
            let of = |stage: &str| report.results.iter().find(|r| r["invalidation"] == policy && r["stage"] == stage);
            for stage in ["20", "50", "80", "100", "merged"] {
                let stage = of(stage).expect("a stage");
                assert!(stage["recall_at_10"].as_f64().is_some_and(|recall| recall > 0.9), "{stage}");
            }
            assert!(of("open_loop").expect("the open loop")["windows"].as_array().is_some_and(|w| !w.is_empty()));
            assert!(of("writer").expect("the writer")["merge"]["steps"].as_u64().is_some_and(|steps| steps > 0));
        }
        assert!(report.ratios.contains_key("stream.p95_at_80.touched_over_dirty"));
        assert!(print(&report).contains("open_loop"));
    }
}
