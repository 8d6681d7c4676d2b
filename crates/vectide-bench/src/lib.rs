//! The workloads behind `vectide bench NAME`: what is measured, on which data, and what is printed.
//!
//! Each bench takes its own clap arguments, runs the engine's public API, and gives one [`Report`]: the same object for
//! every bench, ours and the rivals'. Invariant: no speed without its recall, data set, dimension and machine beside it.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time and starts threads")]

// The command line of `vectide bench`.
mod cli;
// Processor time.
mod cpu;
// What can go wrong.
mod error;
// Medians and percentiles.
mod figures;

// Real vectors, or generated ones.
pub mod dataset;
// What every bench writes.
pub mod report;

// Pictures of results.
mod plot;

// The live graph alone: insert rate, recall against search rate, bytes.
pub mod graph;
// The memtable alone, without vectors: rows a second by threads.
pub mod memtable;
// A shard's writer with log, memtable and graph.
pub mod shard_writer;

// Searches while rows stream in and segments are merged.
pub mod stream;

pub use cli::{Cli, Printed};
pub use error::{Error, Outcome};
pub use report::Report;
