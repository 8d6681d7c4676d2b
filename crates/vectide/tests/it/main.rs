//! The engine through its public API: one binary, a module per promise.

mod appender;
mod bad_input;
mod merging;
mod newest_wins;
mod operations;
mod readers;
mod recall;
mod recovery;
mod support;
