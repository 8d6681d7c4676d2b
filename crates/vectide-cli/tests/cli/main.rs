//! The real binary, run as users run it: each command's results, its words when something is wrong, and what a second
//! process sees. One binary; a file per subject.

mod ingest;
mod quickstart;
mod rows;
mod run;
mod tables;
mod together;
