//! The real binary, run as users run it: each command's results, its words when something is wrong, and what a second
//! process sees. One binary; a file per subject.

#![allow(clippy::disallowed_methods, reason = "the tests wait for real processes, up to a limit")]

mod ingest;
mod quickstart;
mod rows;
mod run;
mod tables;
mod together;
