//! The command line of `vectide bench`: a bench's name and its own arguments come in, its report goes out.
//!
//! Every bench takes `--json [FILE]`. Called by the `vectide` command, which hands over everything behind `bench`.

use crate::error::Outcome;
use crate::report::Report;
use crate::{graph, memtable, shard_writer, stream};
use std::path::PathBuf;

/// Measure the engine; every figure comes with its recall, data and machine
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "vectide bench", disable_version_flag = true)]
pub struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Bench {
    Graph(With<graph::Args>),
    Memtable(With<memtable::Args>),
    ShardWriter(With<shard_writer::Args>),
    Stream(With<stream::Args>),
}

/// A bench's own arguments and those of all.
#[derive(Clone, Debug, clap::Args)]
struct With<A: clap::Args> {
    #[command(flatten)]
    own: A,
    /// Write the report as JSON into this file, or to stdout without one
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

/// What a bench has to show.
#[derive(Clone, Debug)]
pub struct Printed {
    /// All of it.
    pub report: Report,
    /// For people.
    pub text: String,
    /// Whether the report, not the text, was asked for on stdout.
    pub as_json: bool,
}

impl Cli {
    /// Runs the bench and writes its report where `--json FILE` says. Needs a Tokio runtime of several threads, and
    /// blocks the one that it is polled on.
    ///
    /// # Errors
    /// The bench's own, and [`crate::Error::Write`].
    pub async fn run(self) -> Outcome<Printed> {
        let (report, text, json) = match self.bench {
            Bench::Graph(with) => {
                let report = graph::run(&with.own)?;
                let text = graph::print(&report);
                (report, text, with.json)
            }
            Bench::Memtable(with) => {
                let report = memtable::run(&with.own).await?;
                let text = memtable::print(&report);
                (report, text, with.json)
            }
            Bench::ShardWriter(with) => {
                let report = shard_writer::run(&with.own).await?;
                let text = shard_writer::print(&report);
                (report, text, with.json)
            }
            Bench::Stream(with) => {
                let report = stream::run(&with.own).await?;
                let text = stream::print(&report);
                (report, text, with.json)
            }
        };
        if let Some(Some(path)) = &json {
            report.write(path)?;
        }
        Ok(Printed { report, text, as_json: json == Some(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn the_command_line_is_well_formed_and_every_bench_has_an_example() {
        Cli::command().debug_assert();
        for bench in Cli::command().get_subcommands() {
            let help = bench.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("vectide bench "), "`{}` has no example", bench.get_name());
        }
    }

    #[test]
    fn a_report_goes_to_a_file_or_to_stdout() {
        let json = |args: &[&str]| match Cli::parse_from(args).bench {
            Bench::Graph(with) => with.json,
            other => panic!("another bench: {other:?}"),
        };
        assert_eq!(json(&["bench", "graph"]), None);
        assert_eq!(json(&["bench", "graph", "--json"]), Some(None));
        assert_eq!(json(&["bench", "graph", "--json", "a.json"]), Some(Some("a.json".into())));
    }
}
