//! A seed decides everything: two writers, a store that delays, reorders, fails and forgets, and a clock that jumps.
//!
//! The engine's clock is a `ManualClock` that jumps by up to hours: memtables age, stalls run out, ages lie. Waits are
//! real and short: flushes encode on blocking threads, which hold a paused Tokio clock still for ever. What is checked is what holds whatever the order; see `history`.
//! The index workers are real threads, so that a seed replays its faults and steps, not every interleaving.

use crate::arena::{Arena, Writer};
use crate::environment::number;
use crate::support::Rng;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use vectide::clock::ManualClock;
use vectide::store::fault::FaultOptions;
use vectide::store::fault_fs::Phase;
use vectide::{Durability, ErrorKind};

const STEPS: u64 = 120;

struct Simulation {
    arena: Arena,
    rng: Rng,
    clock: Arc<ManualClock>,
    /// Two writers, each of which may be an old one.
    writers: [Option<Writer>; 2],
    writes: JoinSet<()>,
}

impl Simulation {
    async fn open(&mut self, who: usize) {
        let rng = &mut self.rng;
        let rare = |rng: &mut Rng, most: u64| if rng.below(2) == 0 { 0 } else { rng.below(most) as u32 };
        let faults = FaultOptions {
            seed: rng.next(),
            max_delay_us: rng.below(200_000),
            error_before: rare(rng, 20),
            error_after: rare(rng, 20),
            late: rare(rng, 20),
            stale_list: rare(rng, 300),
        };
        let retries = rng.below(3) > 0;
        match self.arena.open(faults, retries, self.clock.clone()).await {
            Ok(writer) => drop(self.writers[who].replace(writer)),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced) => {}
            Err(error) => panic!("opening: {error:?}"),
        }
    }

    async fn step(&mut self) {
        let who = self.rng.below(2) as usize;
        let Some(writer) = self.writers[who].clone() else { return self.open(who).await };
        match self.rng.below(20) {
            0 => self.open(who).await,
            1 => {
                writer.way.stall(if self.rng.below(2) == 0 { Phase::Before } else { Phase::After });
            }
            2 | 3 => writer.way.release(),
            4 => self.clock.advance(Duration::from_secs(self.rng.below(10_000))),
            5 => _ = self.writes.spawn(async move { drop(writer.table.flush().await) }),
            6 => _ = self.writes.spawn(async move { drop(writer.table.close().await) }),
            7 | 8 => tokio::time::sleep(Duration::from_millis(self.rng.below(20))).await,
            _ => {
                _ = self.writes.spawn(async move {
                    _ = writer.write().await;
                })
            }
        }
        tokio::time::sleep(Duration::from_micros(self.rng.below(2_000))).await;
    }

    /// Everybody wakes up; what is under way ends.
    async fn finish(mut self) -> crate::history::Summary {
        for writer in self.writers.iter().flatten() {
            writer.way.release();
            writer.way.settle().await;
        }
        // A writer that is gone can leave writes that nobody answers any more.
        while tokio::time::timeout(Duration::from_secs(5), self.writes.join_next()).await.is_ok_and(|one| one.is_some())
        {
        }
        self.arena.judge().await
    }
}

#[test]
fn whatever_the_order_nothing_is_lost_and_no_fenced_writer_acknowledges() {
    let first = number("VECTIDE_SIMULATION_SEED").unwrap_or(1);
    let seeds = number("VECTIDE_SIMULATIONS").unwrap_or(1);
    for seed in first..first + seeds {
        println!("VECTIDE_SIMULATION_SEED={seed}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let summary = runtime.block_on(async {
            let arena = Arena::new(&format!("simulation-{seed}"), Durability::Durable).await;
            let clock = Arc::new(ManualClock::default());
            let mut simulation =
                Simulation { arena, rng: Rng(seed), clock, writers: [None, None], writes: JoinSet::new() };
            for _ in 0..STEPS {
                simulation.step().await;
            }
            simulation.finish().await
        });
        println!("{summary:?}");
    }
}
