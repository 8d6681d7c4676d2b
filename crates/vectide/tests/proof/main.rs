//! Proofs that need stores and disks that fail on purpose (feature `testing`): two writers over one shard, a clock that
//! jumps, a disk that is full, a flush that cannot succeed, a log that stalls; the same over real HTTP, against a server
//! that fails too.
#![allow(clippy::disallowed_methods, reason = "writers fight in real time, from seeds that are printed")]

mod arena;
mod buffered;
mod busy;
mod disk_full;
mod environment;
mod fight;
mod flushes;
mod history;
mod moto;
mod s3;
mod s3_store;
mod simulation;
mod stalled;
#[path = "../it/support.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use other parts of it")]
mod support;
