//! Latencies: collected one by one, read as percentiles.

use std::time::Duration;

/// All latencies of one kind, and the newest ones for the live line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    us: Vec<u64>,
}

/// How many of the newest latencies the live line looks at.
const NEWEST: usize = 1_000;

impl Latencies {
    /// Adds one.
    pub(crate) fn add(&mut self, elapsed: Duration) {
        self.us.push(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.us.len()
    }

    /// The percentile in milliseconds, nearest rank; 0 without any latency.
    pub(crate) fn percentile_ms(&self, percentile: f64) -> f64 {
        percentile_ms(&self.us, percentile)
    }

    /// The percentile of the newest thousand.
    pub(crate) fn newest_ms(&self, percentile: f64) -> f64 {
        percentile_ms(&self.us[self.us.len().saturating_sub(NEWEST)..], percentile)
    }
}

fn percentile_ms(us: &[u64], percentile: f64) -> f64 {
    if us.is_empty() {
        return 0.0;
    }
    let mut sorted = us.to_vec();
    let rank = (percentile / 100.0 * sorted.len() as f64).ceil() as usize;
    let (_, value, _) = sorted.select_nth_unstable(rank.clamp(1, us.len()) - 1);
    *value as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_ms(99.0), 0.0);
        for ms in (1..=100).rev() {
            latencies.add(Duration::from_millis(ms));
        }
        assert_eq!((latencies.percentile_ms(50.0), latencies.percentile_ms(99.0)), (50.0, 99.0));
        assert_eq!(latencies.percentile_ms(100.0), 100.0);
    }
}
