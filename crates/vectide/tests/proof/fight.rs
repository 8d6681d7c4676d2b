//! Two writers fight over one shard on the object log: open, write, stall, wake up, with late PUTs.
//!
//! `VECTIDE_FIGHT_SECONDS` says for how long (5 by default).

use crate::arena::{Arena, Writer};
use crate::environment::number;
use crate::support::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vectide::ErrorKind;
use vectide::clock::SystemClock;
use vectide::store::fault::FaultOptions;
use vectide::store::fault_fs::Phase;

/// Writes that one writer has under way at once.
const AT_ONCE: usize = 4;

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
    writer.store.stall(if rng.below(2) == 0 { Phase::Before } else { Phase::After });
    tokio::time::sleep(Duration::from_millis(rng.below(250))).await;
    writer.store.release();
}

async fn contestant(arena: Arena, mut rng: Rng, until: Instant) {
    let mut asleep: Vec<Writer> = Vec::new();
    while Instant::now() < until {
        let retries = rng.below(2) == 0;
        let opened = arena.open(faults(&mut rng), retries, Arc::new(SystemClock::new())).await;
        let writer = match opened {
            Ok(writer) => writer,
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced) => continue,
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
        old.store.settle().await;
    }
}

#[test]
fn two_writers_that_fight_lose_nothing_and_acknowledge_nothing_after_the_fence() {
    let seconds = number("VECTIDE_FIGHT_SECONDS").unwrap_or(5);
    let seed = number("VECTIDE_FIGHT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("VECTIDE_FIGHT_SEED={seed}");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let summary = runtime.block_on(async {
        let arena = Arena::new(&format!("fight-{seed}")).await;
        let until = Instant::now() + Duration::from_secs(seconds);
        let contestants = (0..2).map(|n| tokio::spawn(contestant(arena.clone(), Rng(seed * 2 + n), until)));
        for contestant in futures::future::join_all(contestants).await {
            contestant.expect("no panic");
        }
        arena.judge().await
    });
    println!("{seconds} s: {summary:?}");
    assert!(summary.opens >= 2 && summary.acknowledged > 0, "{summary:?}");
}
