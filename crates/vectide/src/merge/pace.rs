//! How fast a merge may go: work is followed by a pause in proportion.
//!
//! A step calls [`Pace::rest`] after each row. Invariant: over any second, the work takes at most its share of a core.

use crate::clock::Clock;
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// Work between two pauses: short beside a search, so that nobody waits long for the core.
const WORK: Duration = Duration::from_micros(500);
/// The longest pause, whatever a clock says.
const LONGEST: Duration = Duration::from_millis(50);

/// Ends pauses, and the work, when a table is closed.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    set: Condvar,
}

impl Stop {
    /// Says that it is over.
    pub(crate) fn set(&self) {
        *self.is_set.lock() = true;
        self.set.notify_all();
    }

    /// Waits at most so long; `Closed` if it is over.
    fn wait(&self, pause: Duration) -> Result<()> {
        let mut is_set = self.is_set.lock();
        if !*is_set && !pause.is_zero() {
            let _ = self.set.wait_for(&mut is_set, pause);
        }
        if *is_set { Err(Error::closed("the table was closed")) } else { Ok(()) }
    }
}

/// The pace of one step.
pub(crate) struct Pace {
    clock: Arc<dyn Clock>,
    stop: Arc<Stop>,
    core_pct: u32,
    began: Duration,
    /// Time that was worked, pauses excluded.
    busy: Duration,
}

impl Pace {
    pub(crate) fn new(clock: Arc<dyn Clock>, stop: Arc<Stop>, core_pct: u32) -> Self {
        let began = clock.now();
        Self { clock, stop, core_pct, began, busy: Duration::ZERO }
    }

    /// Pauses if enough was worked since the last pause.
    ///
    /// # Errors
    /// `Closed` once it is over.
    pub(crate) fn rest(&mut self) -> Result<()> {
        let worked = self.clock.now().saturating_sub(self.began);
        if worked < WORK {
            return Ok(());
        }
        self.busy += worked;
        self.stop.wait((worked * (100 - self.core_pct) / self.core_pct).min(LONGEST))?;
        self.began = self.clock.now();
        Ok(())
    }

    /// Time that was worked.
    pub(crate) fn busy(&self) -> Duration {
        self.busy + self.clock.now().saturating_sub(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_stop_ends_the_work_at_its_next_pause() {
        let clock = Arc::new(ManualClock::default());
        let stop = Arc::new(Stop::default());
        let mut pace = Pace::new(Arc::clone(&clock) as Arc<dyn Clock>, Arc::clone(&stop), 50);
        assert!(pace.rest().is_ok());
        clock.advance(Duration::from_millis(1));
        assert!(pace.rest().is_ok());
        assert_eq!(pace.busy(), Duration::from_millis(1));
        stop.set();
        assert!(pace.rest().is_ok(), "not yet");
        clock.advance(Duration::from_secs(3600));
        assert_eq!(pace.rest().expect_err("closed").kind(), crate::ErrorKind::Closed);
    }
}
