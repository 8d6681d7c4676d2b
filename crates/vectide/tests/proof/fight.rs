//! Two writers fight over one shard on the object log: open, write, stall, wake up, with late PUTs; in memory, and over
//! real HTTP.
//!
//! `VECTIDE_FIGHT_SECONDS` says for how long (5 by default).

use crate::arena::{Arena, Writer};
use crate::environment::number;
use crate::support::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vectide::clock::SystemClock;
use vectide::store::RetryOptions;
use vectide::store::fault::FaultOptions;
use vectide::store::fault_fs::Phase;
use vectide::{Durability, ErrorKind, Result};
use vectide_s3_server::{Faults, Latency};

/// Writes that one writer has under way at once.
const AT_ONCE: usize = 4;

/// What lies between the writers and the shard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Medium {
    Memory,
    Http,
}

impl Medium {
    /// Opens a writer with faults of its own.
    async fn open(self, arena: &Arena, rng: &mut Rng) -> Result<Writer> {
        let retries = rng.below(2) == 0;
        match self {
            Self::Memory => arena.open(faults(rng), retries, Arc::new(SystemClock::new())).await,
            Self::Http => {
                let max_attempts = if retries { 5 } else { 1 };
                let patience =
                    RetryOptions { max_attempts, base_delay_ms: 1, max_delay_ms: 8, ..RetryOptions::default() };
                arena.open_line(line_faults(rng), 100 + rng.below(400), patience).await
            }
        }
    }
}

fn faults(rng: &mut Rng) -> FaultOptions {
    let often = |rng: &mut Rng, most: u64| rng.below(most + 1) as u32;
    FaultOptions {
        seed: rng.next(),
        max_delay_us: rng.below(1_500),
        error_before: often(rng, 8),
        error_after: often(rng, 8),
        late: often(rng, 8),
        stale_list: often(rng, 100),
    }
}

fn line_faults(rng: &mut Rng) -> Faults {
    let often = |rng: &mut Rng, most: u64| rng.below(most + 1) as u32;
    Faults {
        seed: rng.next(),
        latency: Latency { median_ms: rng.below(3) as f64, sigma: 1.0, max_ms: 100.0 },
        slow_down: often(rng, 10),
        drop_before: often(rng, 8),
        drop_after: often(rng, 8),
        late: often(rng, 8),
        late_ms: rng.below(300),
        hang_before: often(rng, 2),
        hang_after: often(rng, 2),
        slow_body: 0,
        cut_body: often(rng, 4),
    }
}

/// Writes until an error or the end of the round; whether it was an error.
async fn write_for(writer: &Writer, time: Duration) -> bool {
    let until = Instant::now() + time;
    let tasks = (0..AT_ONCE).map(|_| async {
        while Instant::now() < until {
            if writer.write().await.is_err() {
                return true;
            }
        }
        false
    });
    futures::future::join_all(tasks).await.contains(&true)
}

/// Sleeps on the store for a while, and wakes up to whatever has become of the shard.
async fn stall(writer: &Writer, rng: &mut Rng) {
    tokio::time::sleep(Duration::from_millis(rng.below(30))).await;
    writer.way.stall(if rng.below(2) == 0 { Phase::Before } else { Phase::After });
    tokio::time::sleep(Duration::from_millis(rng.below(250))).await;
    writer.way.release();
}

async fn contestant(medium: Medium, arena: Arena, mut rng: Rng, until: Instant) {
    let mut asleep: Vec<Writer> = Vec::new();
    while Instant::now() < until {
        let writer = match medium.open(&arena, &mut rng).await {
            Ok(writer) => writer,
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced) => {
                // Two that open again at once can shut each other out for ever.
                tokio::time::sleep(Duration::from_millis(rng.below(200))).await;
                continue;
            }
            Err(error) => panic!("opening: {error:?}"),
        };
        let time = Duration::from_millis(20 + rng.below(200));
        let is_stalled = rng.below(2) == 0;
        let mut stalls = Rng(rng.next());
        let stalling = async {
            if is_stalled {
                stall(&writer, &mut stalls).await;
            }
        };
        let (failed, ()) = tokio::join!(write_for(&writer, time), stalling);
        match rng.below(3) {
            0 if !failed => drop(writer.table.close().await),
            // Goes to sleep with everything open, and wakes up later.
            1 => asleep.push(writer),
            _ => {}
        }
        if asleep.len() > 3 {
            let old = asleep.remove(0);
            let _ = write_for(&old, Duration::from_millis(2)).await;
        }
    }
    for old in &asleep {
        let _ = write_for(old, Duration::from_millis(2)).await;
        old.way.settle().await;
    }
}

fn fight(medium: Medium) {
    let seconds = number("VECTIDE_FIGHT_SECONDS").unwrap_or(5);
    let seed = number("VECTIDE_FIGHT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("VECTIDE_FIGHT_SEED={seed}");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let summary = runtime.block_on(async {
        let arena = match medium {
            Medium::Memory => Arena::new(&format!("fight-{seed}"), Durability::Durable).await,
            Medium::Http => Arena::over_http(Durability::Durable).await,
        };
        let until = Instant::now() + Duration::from_secs(seconds);
        let contestants = (0..2).map(|n| tokio::spawn(contestant(medium, arena.clone(), Rng(seed * 2 + n), until)));
        for contestant in futures::future::join_all(contestants).await {
            contestant.expect("no panic");
        }
        arena.judge().await
    });
    println!("{medium:?}, {seconds} s: {summary:?}");
    assert!(summary.opens >= 2 && summary.acknowledged > 0, "{summary:?}");
}

#[test]
fn two_writers_that_fight_lose_nothing_and_acknowledge_nothing_after_the_fence() {
    fight(Medium::Memory);
}

#[test]
fn two_writers_that_fight_over_http_lose_nothing_and_acknowledge_nothing_after_the_fence() {
    fight(Medium::Http);
}
