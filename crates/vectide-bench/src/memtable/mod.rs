//! `vectide bench memtable`: rows a second into one memtable by several threads, RocksDB's `fillrandom` shape.
//!
//! facebook/rocksdb#13675 gives the shape: 16-byte random keys, 100-byte values, no log. A run fills two memtables of a
//! new database, one after the other: the first into memory that nobody touched, which the kernel clears meanwhile, the
//! next into what the database kept of the first. Every setting is run `--repeat` times, the settings in turn within each
//! repeat, and medians are reported.

mod args;
mod fill;

pub use args::Args;

use crate::error::Outcome;
use crate::figures::{median, rounded};
use crate::report::{Report, table};
use args::visibility_name;
use fill::{Filled, Setting};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

/// Rows a commit that a ratio without a batch in its name is of.
const USUAL_BATCH: usize = 100;

/// Runs the bench.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for counts of 0, [`Error::Engine`](crate::Error::Engine) if memory does
/// not suffice.
pub async fn run(args: &Args) -> Outcome<Report> {
    let settings = args.settings()?;
    let bar = ProgressBar::new((settings.len() * args.repeat) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} runs  {msg}").expect("the template is valid"));
    let dataset = json!({
        "name": "fillrandom", "rows": args.rows, "key_bytes": fill::KEY_BYTES, "value_bytes": fill::VALUE_BYTES,
        "origin": "random keys, xorshift64 seeded by the thread; values all alike",
    });
    let mut report = Report::new("memtable", dataset, args.describe());
    let mut runs: Vec<Vec<Filled>> = vec![Vec::new(); settings.len()];
    for _ in 0..args.repeat {
        for (at, setting) in settings.iter().enumerate() {
            bar.set_message(setting.label());
            runs[at].push(fill::fill(setting, args.rows).await?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let speeds: Vec<f64> = runs.iter().map(|runs| of(runs, |run| run.first.ops_per_s)).collect();
    let next: Vec<f64> = runs.iter().map(|runs| of(runs, |run| run.next.ops_per_s)).collect();
    for (at, setting) in settings.iter().enumerate() {
        let one = settings.iter().position(|s| *s == Setting { threads: 1, ..setting.clone() });
        let scaling = one.map(|one| speeds[at] / speeds[one]);
        let next_scaling = one.map(|one| next[at] / next[one]);
        if let (true, Some(scaling), Some(next_scaling)) = (setting.threads > 1, scaling, next_scaling) {
            report.ratio(scaling_name("", setting), scaling);
            report.ratio(scaling_name(".next", setting), next_scaling);
        }
        report.results.push(result(setting, &runs[at], scaling, next_scaling));
    }
    Ok(report)
}

fn of(runs: &[Filled], figure: fn(&Filled) -> f64) -> f64 {
    median(&runs.iter().map(figure).collect::<Vec<_>>())
}

/// `memtable.scaling.threads2.unordered`, of the usual batch; another batch and a key are named.
fn scaling_name(which: &str, setting: &Setting) -> String {
    let keyed = if setting.keyed { ".keyed" } else { "" };
    let batch = match setting.batch {
        USUAL_BATCH => String::new(),
        batch => format!(".batch{batch}"),
    };
    format!("memtable{keyed}{which}.scaling{batch}.threads{}.{}", setting.threads, visibility_name(setting.visibility))
}

/// One setting's object.
fn result(setting: &Setting, runs: &[Filled], scaling: Option<f64>, next_scaling: Option<f64>) -> Value {
    json!({
        "engine": "vectide",
        "keyed": setting.keyed,
        "batch": setting.batch,
        "threads": setting.threads,
        "visibility": visibility_name(setting.visibility),
        "ops_per_s": rounded(of(runs, |run| run.first.ops_per_s)),
        "ops_per_s_of_each_run": runs.iter().map(|run| rounded(run.first.ops_per_s)).collect::<Vec<_>>(),
        "ops_per_cpu_s": rounded(of(runs, |run| run.first.ops_per_cpu_s)),
        "next_ops_per_s": rounded(of(runs, |run| run.next.ops_per_s)),
        "next_ops_per_cpu_s": rounded(of(runs, |run| run.next.ops_per_cpu_s)),
        "next_scaling": next_scaling.map(rounded),
        "scaling": scaling.map(rounded),
        "bytes_per_row": rounded(of(runs, |run| run.bytes_per_row)),
    })
}

/// The results as a table for people.
#[must_use]
pub fn print(report: &Report) -> String {
    let heads =
        ["table", "visibility", "batch", "threads", "ops/s", "scaling", "next ops/s", "scaling", "ops/cpu s", "B/row"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for result in &report.results {
        let number = |name: &str, digits: usize| {
            result[name].as_f64().map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        rows.push(vec![
            if result["keyed"] == true { "keyed" } else { "key-less" }.to_owned(),
            result["visibility"].as_str().unwrap_or_default().to_owned(),
            number("batch", 0),
            number("threads", 0),
            number("ops_per_s", 0),
            number("scaling", 2),
            number("next_ops_per_s", 0),
            number("next_scaling", 2),
            number("ops_per_cpu_s", 0),
            number("bytes_per_row", 1),
        ]);
    }
    let mut text = table(&rows);
    for (name, ratio) in &report.ratios {
        text.push_str(&format!("{name} = {ratio}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &str) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::try_parse_from(std::iter::once("bench").chain(words.split(' ')));
        line.unwrap_or_else(|e| panic!("{e}")).args
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_report_has_every_setting_and_its_scaling() {
        let report = run(&args("--threads 1,2 --batch 1,100 --rows 2000 --repeat 2 --keyed --visibility unordered"))
            .await
            .expect("run");
        assert_eq!((report.bench.as_str(), report.results.len()), ("memtable", 8));
        for result in &report.results {
            assert_eq!(
                (result["engine"].as_str(), result["ops_per_s_of_each_run"].as_array().map(Vec::len)),
                (Some("vectide"), Some(2))
            );
            assert!(result["bytes_per_row"].as_f64().is_some_and(|bytes| bytes >= 116.0), "{result}");
            assert!(result["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{result}");
        }
        let names: Vec<&str> = report.ratios.keys().map(String::as_str).collect();
        let expected = [
            "memtable.keyed.scaling.batch1.threads2.unordered",
            "memtable.keyed.scaling.threads2.unordered",
            "memtable.scaling.batch1.threads2.unordered",
            "memtable.scaling.threads2.unordered",
        ];
        for name in expected {
            let next = name.replace(".scaling", ".next.scaling");
            assert!(names.contains(&name) && names.contains(&next.as_str()), "{name}: {names:?}");
        }
        assert_eq!(names.len(), 2 * expected.len());
        let text = print(&report);
        assert_eq!(text.lines().count(), 1 + 8 + 8, "{text}");
    }

    #[tokio::test]
    async fn counts_of_nothing_are_refused() {
        for words in ["--threads 0", "--batch 0", "--repeat 0", "--rows 3 --threads 4"] {
            let error = run(&args(words)).await.expect_err(words);
            assert!(matches!(error, crate::Error::Argument(_)), "{words}: {error}");
        }
    }
}
