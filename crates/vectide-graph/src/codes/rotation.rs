//! A fixed random rotation of any dimension. It spreads what a vector holds over
//! all of its elements, so that a few levels per element describe it equally
//! well, whatever the vector looked like: sparse, with constant elements, or with
//! a few large ones. It needs no training, and is the same for every graph of a
//! dimension: codes of one graph can be compared with a query encoded for another.
//!
//! Two rounds of random signs and Hadamard transforms (Ailon & Chazelle, 2006).
//! The transform wants a power of two; where the dimension is none, it runs over
//! the first and then over the last elements, which overlap.

use crate::params::mix;

/// Draws the signs. Part of the stored format: codes on disk are rotated with it.
const SEED: u64 = 0x7665_6374_6964_6531;

/// Sign changes and transforms, twice over the first elements and twice over the
/// last.
const ROUNDS: usize = 4;

/// Elements that a step works on at a time.
const LANES: usize = 16;

/// The rotation of one dimension. `4 * dim` bits.
pub(super) struct Rotation {
    dim: usize,
    /// The largest power of two within the dimension.
    block: usize,
    /// For each round, one bit per element, set where its sign is changed.
    signs: [Vec<u32>; ROUNDS],
}

impl Rotation {
    pub(super) fn new(dim: usize) -> Self {
        let words = |round: u64| {
            let draw = |word: u64| mix(SEED ^ mix(round << 32 | word)) as u32;
            (0..dim.div_ceil(32) as u64).map(draw).collect()
        };
        let signs = std::array::from_fn(|round| words(round as u64));
        Self { dim, block: 1 << dim.ilog2(), signs }
    }

    /// Rotates `values[..dim]` in place; lengths and angles stay.
    #[inline(always)]
    pub(super) fn apply(&self, values: &mut [f32]) {
        let values = &mut values[..self.dim];
        let overlap = self.dim - self.block;
        for signs in self.signs.chunks_exact(2) {
            change_signs(values, &signs[0]);
            transform(&mut values[..self.block]);
            if overlap > 0 {
                change_signs(values, &signs[1]);
                transform(&mut values[overlap..]);
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.signs.iter().map(|words| words.capacity() * 4).sum()
    }
}

#[inline(always)]
fn change_signs(values: &mut [f32], signs: &[u32]) {
    for (run, &word) in values.chunks_mut(32).zip(signs) {
        for (at, value) in run.iter_mut().enumerate() {
            *value = f32::from_bits(value.to_bits() ^ (word >> at) << 31);
        }
    }
}

/// The Walsh-Hadamard transform of a power of two of elements, scaled so that
/// lengths stay.
#[inline(always)]
fn transform(values: &mut [f32]) {
    let len = values.len();
    let scale = 1.0 / (len as f32).sqrt();
    let (runs, rest) = values.as_chunks_mut::<LANES>();
    for run in runs {
        let scaled = run.map(|value| value * scale);
        *run = butterflies::<8>(butterflies::<4>(butterflies::<2>(butterflies::<1>(scaled))));
    }
    // Only dimensions below LANES leave a rest, and then it is everything.
    rest.iter_mut().for_each(|value| *value *= scale);
    let mut half = if len < LANES { 1 } else { LANES };
    while half < len {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// One stage within a run of lanes: sums and differences of elements `HALF` apart.
#[inline(always)]
fn butterflies<const HALF: usize>(x: [f32; LANES]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for at in 0..LANES {
        out[at] = if at & HALF == 0 { x[at] + x[at ^ HALF] } else { x[at ^ HALF] - x[at] };
    }
    out
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn lengths_and_angles_stay(dim in 1usize..1_500, seed: u64) {
            let draw = |n: u64| (0..dim as u64).map(move |i| (mix(seed ^ mix(n << 32 | i)) >> 40) as f32 / 8e6 - 1.0);
            let (mut a, mut b): (Vec<f32>, Vec<f32>) = (draw(1).collect(), draw(2).collect());
            let before = [dot(&a, &a), dot(&b, &b), dot(&a, &b)];
            let rotation = Rotation::new(dim);
            rotation.apply(&mut a);
            rotation.apply(&mut b);
            let slack = 1e-5 * (before[0] + before[1]);
            for (now, before) in [dot(&a, &a), dot(&b, &b), dot(&a, &b)].into_iter().zip(before) {
                prop_assert!((now - before).abs() <= slack, "{} became {}", before, now);
            }
        }
    }

    #[test]
    fn one_element_is_spread_over_all() {
        for dim in [64usize, 100, 384, 768, 1_000] {
            for at in [0, dim / 3, dim - 1] {
                let mut values = vec![0.0; dim];
                values[at] = 1.0;
                Rotation::new(dim).apply(&mut values);
                let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                assert!(largest * (dim as f32).sqrt() < 6.0, "{dim}, {at}: {largest}");
            }
        }
    }
}
