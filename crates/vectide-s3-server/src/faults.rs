//! What a test wants to go wrong goes in, what becomes of one request comes out.
//!
//! `line` draws one [`Fate`] per request. Invariant: a fate follows from the seed and the number of requests drawn before.

use std::time::Duration;

/// How the answers to one access key go wrong. The default is not at all. Shares are per mille of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Decides everything below.
    pub seed: u64,
    /// How long each request takes: some of it passes before the effect, the rest after it, so that concurrent requests
    /// change places.
    pub latency: Latency,
    /// Answered `503 SlowDown`, without effect. (Completing an upload: half of them as S3 does it, with status 200.)
    pub slow_down: u32,
    /// The connection is closed without an answer and without effect.
    pub drop_before: u32,
    /// The connection is closed without an answer although the effect took place.
    pub drop_after: u32,
    /// The connection is closed at once; the effect takes place up to `late_ms` later. Not for requests that only read.
    pub late: u32,
    /// See `late`.
    pub late_ms: u64,
    /// The answer never comes; no effect.
    pub hang_before: u32,
    /// The answer never comes; the effect took place.
    pub hang_after: u32,
    /// A body comes in pieces with pauses between.
    pub slow_body: u32,
    /// A body breaks off half way.
    pub cut_body: u32,
}

/// A log-normal delay: half of the requests take longer than the median, few take many times as long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// In milliseconds; 0 for no delay.
    pub median_ms: f64,
    /// Standard deviation of the logarithm: at 0.6 one request in a hundred takes 4 times the median, one in a thousand
    /// more than 6 times.
    pub sigma: f64,
    /// No request takes longer, in milliseconds; 0 for no limit.
    pub max_ms: f64,
}

impl Latency {
    /// What a busy S3 in the same region is like: a median of 30 ms and a heavy tail, up to a second.
    pub const S3: Self = Self { median_ms: 30.0, sigma: 0.6, max_ms: 1_000.0 };

    fn draw(&self, rng: &mut Rng) -> Duration {
        if self.median_ms <= 0.0 {
            return Duration::ZERO;
        }
        // Box and Muller's normal deviate.
        let (u, v) = (1.0 - rng.unit(), rng.unit());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let ms = self.median_ms * (self.sigma * normal).exp();
        let ms = if self.max_ms > 0.0 { ms.min(self.max_ms) } else { ms };
        Duration::from_secs_f64(ms / 1e3)
    }
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fate {
    pub(crate) before: Duration,
    pub(crate) after: Duration,
    pub(crate) fault: Option<Fault>,
    /// Answers with an error in a body of status 200, where S3 does that.
    pub(crate) is_disguised: bool,
}

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    SlowDown,
    DropBefore,
    DropAfter,
    Late(Duration),
    HangBefore,
    HangAfter,
    SlowBody,
    CutBody,
}

impl Fault {
    /// For counting.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SlowDown => "slow_down",
            Self::DropBefore => "drop_before",
            Self::DropAfter => "drop_after",
            Self::Late(_) => "late",
            Self::HangBefore => "hang_before",
            Self::HangAfter => "hang_after",
            Self::SlowBody => "slow_body",
            Self::CutBody => "cut_body",
        }
    }
}

impl Faults {
    /// The fate of the next request; `writes` if it is to change something.
    pub(crate) fn draw(&self, rng: &mut Rng, writes: bool) -> Fate {
        let latency = self.latency.draw(rng);
        let before = latency.mul_f64(rng.unit());
        let late = Fault::Late(Duration::from_millis(rng.below(self.late_ms + 1)));
        let is_disguised = rng.below(2) == 0;
        let mut roll = rng.below(1_000);
        let shares = [
            (self.slow_down, Fault::SlowDown),
            (self.drop_before, Fault::DropBefore),
            (self.drop_after, Fault::DropAfter),
            (self.late, late),
            (self.hang_before, Fault::HangBefore),
            (self.hang_after, Fault::HangAfter),
            (self.slow_body, Fault::SlowBody),
            (self.cut_body, Fault::CutBody),
        ];
        let mut fault = None;
        for (share, candidate) in shares {
            if roll < u64::from(share) {
                fault = Some(candidate);
                break;
            }
            roll -= u64::from(share);
        }
        let fault = fault.filter(|fault| writes || !matches!(fault, Fault::Late(_)));
        Fate { before, after: latency - before, fault, is_disguised }
    }
}

/// A small generator (SplitMix64), so that a seed replays.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from 0 to 1, 1 excluded.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_delays_are_those_asked_for_and_a_seed_replays() {
        let faults = Faults { latency: Latency::S3, drop_after: 250, late: 250, late_ms: 5, ..Faults::default() };
        let draw = |writes| {
            let mut rng = Rng(7);
            (0..20_000).map(|_| faults.draw(&mut rng, writes)).collect::<Vec<_>>()
        };
        let fates = draw(true);
        assert_eq!(fates, draw(true));
        let share = |wanted: fn(&Fault) -> bool| fates.iter().filter(|f| f.fault.as_ref().is_some_and(wanted)).count();
        assert!((4_700..5_300).contains(&share(|fault| *fault == Fault::DropAfter)));
        assert!((4_700..5_300).contains(&share(|fault| matches!(fault, Fault::Late(_)))));
        assert!(draw(false).iter().all(|fate| !matches!(fate.fault, Some(Fault::Late(_)))), "reads are never late");
        let mut latencies: Vec<Duration> = fates.iter().map(|fate| fate.before + fate.after).collect();
        latencies.sort_unstable();
        let at = |share: f64| latencies[(share * latencies.len() as f64) as usize].as_secs_f64() * 1e3;
        assert!((28.0..32.0).contains(&at(0.5)), "median {}", at(0.5));
        assert!((100.0..150.0).contains(&at(0.99)), "p99 {}", at(0.99));
        assert_eq!(
            Faults::default().draw(&mut Rng(1), true),
            Fate { is_disguised: Faults::default().draw(&mut Rng(1), true).is_disguised, ..Fate::default() }
        );
    }
}
