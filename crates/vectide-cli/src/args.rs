//! The command line as a tree: which commands there are. Each command's own arguments stand beside its code.

use crate::{bench, ingest, maintain, quickstart, rows, search, tables};
use clap::{Parser, Subcommand};

/// Vector tables that never stop being written to: a row is durable, visible and searchable once its write is
/// acknowledged.
#[derive(Debug, Parser)]
#[command(
    name = "vectide",
    version,
    after_help = "\
Start here:
  vectide quickstart                                      the main job on real word vectors, in seconds
  vectide ingest ./db docs docs.parquet --key id --vector vec:cosine
  vectide search ./db docs --like 17 -k 5

A URI is a directory (./db, file:///var/lib/vectide) or an object store (s3://bucket/prefix).
Exit codes: 0 done, 1 error, 2 wrong usage, 3 stored bytes are damaged, 130 stopped by Ctrl-C.
VECTIDE_LOG=info shows the engine's log on stderr."
)]
pub(crate) struct Cli {
    /// Print one JSON object on stdout, and errors as {kind, message, hint} on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One variant a command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stream 25,000 real word vectors through durable writes while searching them, reopen, compare
    Quickstart(quickstart::Args),
    /// Create a table from column declarations or from a file's schema
    Create(tables::CreateArgs),
    /// Write files (Parquet, Arrow IPC, JSON lines) into a table; creates it if absent, resumes where it stopped
    Ingest(ingest::Args),
    /// Find the rows nearest to a vector, to a row, or to each vector of a file
    Search(search::Args),
    /// Print rows by key
    Get(rows::GetArgs),
    /// Delete rows by key
    Delete(rows::DeleteArgs),
    /// Count a table's rows
    Count(rows::CountArgs),
    /// Print or export a table's rows
    Scan(rows::ScanArgs),
    /// List the tables, or print one table's declaration
    Tables(tables::ListArgs),
    /// Show rows, memory, log queue, flushes and health
    Stats(maintain::StatsArgs),
    /// Write what is in memory to a segment now
    Flush(maintain::FlushArgs),
    /// Check every stored part: checksums, reachability, keys, counts
    Verify(maintain::VerifyArgs),
    /// Drop a table and its rows
    Drop(tables::DropArgs),
    /// Measure the engine: `vectide bench NAME --help`
    Bench(bench::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_every_command_has_an_example() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("vectide "), "`{}` has no example", command.get_name());
        }
    }
}
