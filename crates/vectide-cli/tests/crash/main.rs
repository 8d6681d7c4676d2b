//! What survives: the real binary killed at random and at every named point, also over HTTP, and a simulated disk whose
//! power is cut.
//!
//! All write through the engine, stop it in the middle, open it again and compare with [`model`]. How much is done comes
//! from `VECTIDE_CRASH_ROUNDS`, `VECTIDE_CRASH_S3_ROUNDS` and `VECTIDE_POWER_CUTS` (0 leaves one out); a failure prints the seed that it came from.
//! Run with `--nocapture` to see what was reached.
#![allow(clippy::disallowed_methods, reason = "processes are killed after real time, from seeds that are printed")]

mod home;
mod kill;
mod model;
mod points;
mod power_cut;
#[path = "../../src/torture/rows.rs"]
#[allow(dead_code, reason = "shared with the worker, which uses other parts of it")]
mod rows;
mod syncs;
mod worker;

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, which is no number")),
        Err(_) => default,
    }
}

/// The seed to run from: the one asked for, or one of its own, which is printed.
fn seed(name: &str) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number(name, now.as_nanos() as u64 % 1_000_000);
    println!("{name}={seed}");
    seed
}
