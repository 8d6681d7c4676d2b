//! A seed goes in, a stream of numbers comes out that is the same on every machine.
//!
//! Jitter, injected faults and simulated power cuts draw from here, so that a run can be replayed from its seed. Not for
//! secrets. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (SplitMix64), 2014.

/// A SplitMix64 stream.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    /// The stream of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0. The bias of the modulo does not matter here.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// True in `per_mille` of 1000 draws.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn hits(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_stream() {
        let mut rng = SplitMix::new(1234567);
        assert_eq!(rng.next(), 6457827717110365317);
        assert_eq!(rng.next(), 3203168211198807973);
    }
}
