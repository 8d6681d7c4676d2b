//! The `vectide` command.
//!
//! In: the command line. Out: results on stdout, progress and errors on stderr, an exit code. Each command lives in a
//! file of its own and is thin over the engine's public API: nothing here knows how rows are kept.
//!
//! Exit codes: 0 done, 1 error, 2 wrong usage, 3 stored bytes are damaged, 130 stopped by Ctrl-C.

mod args;
mod bench;
mod clock;
mod database;
mod declare;
mod error;
mod ingest;
mod interrupt;
mod keys;
mod maintain;
mod npy;
mod output;
mod progress;
mod quickstart;
mod render;
mod rows;
mod search;
mod tables;
#[cfg(feature = "testing")]
mod torture;
mod vectors;

use crate::args::{Cli, Command};
use crate::error::{Failure, Outcome};
use crate::output::Out;
use clap::Parser;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    #[cfg(feature = "testing")]
    if let Some(code) = torture::run_if_asked() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_usage(&error),
    };
    let out = Out::new(cli.json);
    log_to_stderr(cli.json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return out.fail(&Failure::from(error)),
    };
    match runtime.block_on(run(cli.command, &out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => out.fail(&failure),
    }
}

async fn run(command: Command, out: &Out) -> Outcome {
    match command {
        Command::Quickstart(args) => quickstart::run(args, out).await,
        Command::Create(args) => tables::create(args, out).await,
        Command::Ingest(args) => ingest::run(args, out).await,
        Command::Search(args) => search::run(args, out).await,
        Command::Get(args) => rows::get(args, out).await,
        Command::Delete(args) => rows::delete(args, out).await,
        Command::Count(args) => rows::count(args, out).await,
        Command::Scan(args) => rows::scan(args, out).await,
        Command::Tables(args) => tables::list(args, out).await,
        Command::Stats(args) => maintain::stats(args, out).await,
        Command::Flush(args) => maintain::flush(args, out).await,
        Command::Verify(args) => maintain::verify(args, out).await,
        Command::Drop(args) => tables::drop(args, out).await,
        Command::Bench(args) => bench::run(args, out).await,
    }
}

/// Help and version go to stdout as clap has them; anything else is wrong usage, as JSON where `--json` was given.
fn refuse_usage(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|arg| arg == "--json");
    if json && error.use_stderr() {
        let text = error.render().to_string();
        let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        return Out::new(true).fail(&Failure::usage(message));
    }
    if let Err(unprintable) = error.print() {
        return Out::new(json).fail(&Failure::from(unprintable));
    }
    if error.use_stderr() { ExitCode::from(error::EXIT_USAGE) } else { ExitCode::SUCCESS }
}

/// `VECTIDE_LOG` filters the engine's log (`info`, `vectide=debug`, …). Warnings by default; with `--json` none, so that
/// stderr holds nothing but the error object.
fn log_to_stderr(json: bool) {
    let default = if json { "off" } else { "warn" };
    let filter = EnvFilter::try_from_env("VECTIDE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
