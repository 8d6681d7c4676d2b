//! `vectide bench NAME`: hands over to the bench crate and prints what it gives.

use crate::error::{Failure, Outcome};
use crate::output::Out;
use clap::Parser as _;
use std::ffi::OsString;

/// The arguments of `vectide bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Benches:
  graph         the live graph alone: insert rate, recall against search time, bytes a row
  memtable      the memtable at memory speed: rows a second by threads and batch, bytes a row
  shard-writer  log, memtable and graph together: rows a second acknowledged and indexed, queue, recall
  stream        searches while rows stream in and segments are merged: latency, recall, what the node cache does

Examples:
  vectide bench graph --help
  vectide bench graph --data data/glove-100d-25k.arrow --codes none,auto --json graph.json
  vectide bench stream --quick")]
pub(crate) struct Args {
    /// A bench and its own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "NAME [ARGS]")]
    bench: Vec<OsString>,
}

pub(crate) async fn run(args: Args, out: &Out) -> Outcome {
    let words = std::iter::once(OsString::from("vectide bench")).chain(args.bench);
    let bench = match vectide_bench::Cli::try_parse_from(words) {
        Ok(bench) => bench,
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            return Err(Failure::usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end()));
        }
        Err(help) => return Ok(help.print()?),
    };
    let printed = bench.run().await?;
    if printed.as_json || out.json() {
        return Out::new(true).object(&printed.report);
    }
    out.line(printed.text.trim_end())
}

impl From<vectide_bench::Error> for Failure {
    fn from(error: vectide_bench::Error) -> Self {
        match error {
            vectide_bench::Error::Argument(text) => Self::usage(text),
            vectide_bench::Error::Engine(error) => Self::from(error),
            vectide_bench::Error::Check(text) => Self::check_failed(text),
            other => Self::invalid(other.to_string()),
        }
    }
}
