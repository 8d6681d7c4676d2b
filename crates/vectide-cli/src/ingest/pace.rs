//! A steady rate: waits so that rows do not leave faster than asked.

use crate::clock;
use std::time::{Duration, Instant};

/// Spreads rows over time.
#[derive(Debug)]
pub(crate) struct Pace {
    rows_per_s: Option<u64>,
    since: Instant,
    rows: u64,
}

impl Pace {
    /// Starts now; without a rate it never waits.
    pub(crate) fn new(rows_per_s: Option<u64>) -> Self {
        Self { rows_per_s, since: clock::now(), rows: 0 }
    }

    /// Waits until `rows` more are due.
    pub(crate) async fn wait(&mut self, rows: u64) {
        self.rows += rows;
        if let Some(due) = self.due() {
            tokio::time::sleep(due.saturating_sub(self.since.elapsed())).await;
        }
    }

    fn due(&self) -> Option<Duration> {
        self.rows_per_s.map(|rate| Duration::from_secs_f64(self.rows as f64 / rate as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_due_by_the_rate_from_the_start() {
        let pace = Pace { rows: 500, ..Pace::new(Some(1_000)) };
        assert_eq!(pace.due(), Some(Duration::from_millis(500)));
        assert_eq!(Pace::new(None).due(), None);
    }
}
