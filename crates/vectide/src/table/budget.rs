//! The memory that all memtables of a database share.
//!
//! `table/writer` asks before it publishes ([`Budget::admit`]); tables register what they hold. From three quarters of
//! the budget on writers are delayed, the more the fuller it is; at its end they wait, and after the stall timeout they
//! are refused. Invariant: nothing is dropped, and what is admitted is at most one batch per writer above the budget.

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::memtable::ChunkPool;
use parking_lot::RwLock;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Somebody whose memory counts.
pub(crate) trait Holder: Send + Sync + Debug {
    /// Bytes held by all memtables.
    fn memory_bytes(&self) -> u64;
    /// Bytes held by the active memtable.
    fn active_bytes(&self) -> u64;
    /// Seals the active memtable so that it can be flushed.
    fn seal(&self);
}

/// The shared budget.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    stall_timeout: Duration,
    clock: Arc<dyn Clock>,
    holders: RwLock<Vec<Weak<dyn Holder>>>,
    /// Admitted, not linked yet.
    in_flight: AtomicU64,
    /// Memory of memtables that are gone, kept for the next ones.
    pool: Arc<ChunkPool>,
    freed: Notify,
}

/// Of the budget, this part at most is kept for the chunks of the next memtables.
const POOL_SHARE: u64 = 8;
/// Longest delay of one batch before the end of the budget.
const MAX_DELAY: Duration = Duration::from_millis(20);

/// How a batch was let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stall {
    /// How long it was held up.
    pub(crate) waited: Duration,
}

/// A batch's bytes between admission and linking.
#[derive(Debug)]
pub(crate) struct Admitted {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        // ORDERING: Relaxed: a sum that gates nothing but admission.
        self.budget.in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    pub(crate) fn new(limit: u64, stall_timeout: Duration, clock: Arc<dyn Clock>) -> Arc<Self> {
        let holders = RwLock::new(Vec::new());
        let (in_flight, pool) = (AtomicU64::new(0), Arc::new(ChunkPool::new(limit / POOL_SHARE)));
        Arc::new(Self { limit, stall_timeout, clock, holders, in_flight, pool, freed: Notify::new() })
    }

    pub(crate) fn register(&self, holder: Weak<dyn Holder>) {
        let mut holders = self.holders.write();
        holders.retain(|h| h.strong_count() > 0);
        holders.push(holder);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Where appenders get their chunks from.
    pub(crate) fn pool(&self) -> &Arc<ChunkPool> {
        &self.pool
    }

    /// Bytes held by all memtables, by batches on their way into one, and by chunks kept for the next ones.
    pub(crate) fn used(&self) -> u64 {
        let held: u64 = self.holders.read().iter().filter_map(Weak::upgrade).map(|h| h.memory_bytes()).sum();
        held + self.in_flight.load(Ordering::Relaxed) + self.pool.free_bytes()
    }

    /// A memtable is gone: takes its chunks back and tells waiting writers that memory was freed.
    pub(crate) fn freed(&self) {
        self.pool.collect();
        self.freed.notify_waiters();
    }

    /// Gives back what is kept for later; if there is nothing, seals the largest active memtable if more than half of the
    /// budget is used and nothing else would free it.
    pub(crate) fn relieve(&self) {
        if self.pool.release() > 0 {
            return;
        }
        let holders: Vec<_> = self.holders.read().iter().filter_map(Weak::upgrade).collect();
        let active: u64 = holders.iter().map(|h| h.active_bytes()).sum();
        if active <= self.limit / 2 {
            return;
        }
        if let Some(largest) = holders.iter().max_by_key(|h| h.active_bytes()) {
            largest.seal();
        }
    }

    /// Lets a batch of `bytes` in if nothing has to be slowed for it: a few atomic loads a memtable, no wait.
    pub(crate) fn try_admit(self: &Arc<Self>, bytes: u64) -> Option<Admitted> {
        if self.used().saturating_add(bytes) > self.soft_limit() {
            return None;
        }
        // ORDERING: Relaxed: see `Admitted::drop`.
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
        Some(Admitted { budget: Arc::clone(self), bytes })
    }

    /// From here on writers are delayed.
    fn soft_limit(&self) -> u64 {
        self.limit / 4 * 3
    }

    /// Lets a batch of `bytes` in, delaying it as the budget fills. `urgent` batches (deletes) are never held up: they
    /// are what frees a full database.
    ///
    /// # Errors
    /// `Unavailable` if the budget stayed full for the stall timeout; nothing was written.
    pub(crate) async fn admit(self: &Arc<Self>, bytes: u64, urgent: bool) -> Result<(Admitted, Stall)> {
        let started = self.clock.now();
        let soft = self.soft_limit();
        // A batch larger than the whole budget is let in alone rather than never.
        let has_room = || self.used().saturating_add(bytes) <= self.limit || self.used() < soft / 2;
        while !(urgent || has_room()) {
            let freed = self.freed.notified();
            self.relieve();
            if self.clock.now().saturating_sub(started) >= self.stall_timeout {
                return Err(Error::unavailable(format!(
                    "the memory budget ({} bytes) has been full for {} ms and flushing does not free it; nothing was \
                     written: look at the table's health, free disk space or raise `memory_bytes`, then write again",
                    self.limit,
                    self.stall_timeout.as_millis()
                )));
            }
            // A lost notification costs one round, not the stall timeout.
            let _ = tokio::time::timeout(Duration::from_millis(10), freed).await;
        }
        let used = self.used();
        if !urgent && used > soft {
            self.relieve();
            let fullness = (used - soft) as f64 / (self.limit - soft).max(1) as f64;
            let share = (bytes as f64 / (64 << 10) as f64).clamp(0.01, 1.0);
            tokio::time::sleep(MAX_DELAY.mul_f64(fullness.min(1.0) * share)).await;
        }
        // ORDERING: Relaxed: see `Admitted::drop`.
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
        let waited = self.clock.now().saturating_sub(started);
        Ok((Admitted { budget: Arc::clone(self), bytes }, Stall { waited }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use std::sync::atomic::AtomicBool;

    #[derive(Debug, Default)]
    struct Held {
        bytes: AtomicU64,
        sealed: AtomicBool,
    }

    impl Holder for Held {
        fn memory_bytes(&self) -> u64 {
            self.bytes.load(Ordering::Relaxed)
        }
        fn active_bytes(&self) -> u64 {
            self.memory_bytes()
        }
        fn seal(&self) {
            self.sealed.store(true, Ordering::Relaxed);
        }
    }

    fn budget(limit: u64, timeout_ms: u64) -> (Arc<Budget>, Arc<Held>) {
        let budget = Budget::new(limit, Duration::from_millis(timeout_ms), Arc::new(SystemClock::new()));
        let held = Arc::new(Held::default());
        let weak: Weak<dyn Holder> = Arc::downgrade(&(Arc::clone(&held) as Arc<dyn Holder>));
        budget.register(weak);
        (budget, held)
    }

    #[tokio::test]
    async fn a_full_budget_refuses_after_the_timeout_and_lets_deletes_through() {
        let (budget, held) = budget(1_000, 30);
        held.bytes.store(1_000, Ordering::Relaxed);
        let error = budget.admit(10, false).await.expect_err("full");
        assert_eq!(error.kind(), crate::ErrorKind::Unavailable);
        assert!(held.sealed.load(Ordering::Relaxed), "asked for room");
        assert!(budget.admit(10, true).await.is_ok());
    }

    #[tokio::test]
    async fn a_waiting_writer_goes_on_when_memory_is_freed() {
        let (budget, held) = budget(1_000, 60_000);
        held.bytes.store(1_000, Ordering::Relaxed);
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.admit(10, false).await.map(|(_, stall)| stall) }
        });
        tokio::task::yield_now().await;
        held.bytes.store(0, Ordering::Relaxed);
        budget.freed();
        assert!(waiting.await.expect("joins").is_ok());
    }

    #[tokio::test]
    async fn chunks_that_are_kept_count_and_go_first_when_memory_runs_low() {
        let (budget, held) = budget(16 << 20, 30);
        drop(budget.pool().lend(1 << 20));
        budget.freed();
        assert_eq!(budget.used(), 1 << 20);
        held.bytes.store(12 << 20, Ordering::Relaxed);
        assert!(budget.admit(10, false).await.is_ok());
        assert_eq!(budget.used(), 12 << 20);
        assert!(!held.sealed.load(Ordering::Relaxed), "that was enough");
    }

    #[tokio::test]
    async fn an_admitted_batch_counts_until_it_is_linked() {
        let (budget, _held) = budget(1_000, 10);
        let (admitted, _) = budget.admit(400, false).await.expect("room");
        assert_eq!(budget.used(), 400);
        drop(admitted);
        assert_eq!(budget.used(), 0);
        assert!(budget.admit(5_000, false).await.is_ok(), "larger than all of it, but alone");
    }
}
