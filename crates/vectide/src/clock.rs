//! The one source of time: ages, stalls and intervals are measured against a [`Clock`], never against the wall.
//!
//! Handed down from the builder to the log, the flush and the collector. Invariant: `now` never goes backwards. Tests
//! use [`ManualClock`], so that a seed replays.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock.
pub trait Clock: Send + Sync + Debug {
    /// Time since some fixed moment, never less than an earlier answer.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock, counted from its own creation.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that starts at zero now.
    #[must_use]
    pub fn new() -> Self {
        #[allow(clippy::disallowed_methods, reason = "this is the seam")]
        let origin = Instant::now();
        Self { origin }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A clock that stands still until it is moved: for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// Moves the clock on by `step`.
    pub fn advance(&self, step: Duration) {
        let nanos = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed: the counter is the only datum, and it publishes nothing else.
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        // ORDERING: Relaxed: see `advance`.
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::default();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_millis(7));
        assert_eq!(clock.now(), Duration::from_millis(7));
    }
}
