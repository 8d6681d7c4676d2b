//! Four bits per element: sixteen levels, evenly spaced around zero, over 2.7
//! standard deviations to either side, which is the best even spacing for the
//! normal distribution that rotated elements follow (Max, 1960).
//!
//! Byte `i` of line `l` holds element `128 l + i` in its low half and element
//! `128 l + 64 + i` in its high half, so that a load of bytes, masked and shifted,
//! gives two runs of neighbouring elements.

use super::query::CodeQuery;
use super::{Code, LINE, Tail};
use crate::distance::Kernel;

/// [`Codes::Int4`](super::Codes::Int4).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Int4;

/// Elements in a line of packed codes.
const RUN: usize = 2 * LINE;
/// Standard deviations from zero to the outer edge of the levels.
const REACH: f32 = 2.7;
const LANES: usize = 16;

/// Twice a level's distance from zero: odd numbers from -15 to 15.
#[inline(always)]
fn doubled(level: u8) -> i32 {
    2 * i32::from(level) - 15
}

/// Rounds one run of elements to levels 0 to 15.
#[inline(always)]
fn round_run(values: &[f32; LANES], inverse: f32, products: &mut [f32; LANES], sums: &mut [i32; LANES]) -> [u8; LANES] {
    let mut levels = [0u8; LANES];
    for lane in 0..LANES {
        // NaN, which no table holds, becomes a number here: clamp would keep it.
        #[allow(clippy::manual_clamp, reason = "the cast below must see no NaN")]
        let shifted = (values[lane] * inverse + 8.0).max(0.0).min(15.0);
        // SAFETY: the value is within 0..=15.
        let level = unsafe { shifted.to_int_unchecked::<i32>() };
        let doubled = 2 * level - 15;
        products[lane] += values[lane] * doubled as f32;
        sums[lane] += doubled;
        levels[lane] = level as u8;
    }
    levels
}

impl Code for Int4 {
    const UNIT: i32 = 2;

    fn element_bytes(dim: usize) -> usize {
        dim.div_ceil(RUN) * LINE
    }

    fn query_bytes(dim: usize) -> usize {
        2 * Self::element_bytes(dim)
    }

    fn used_bytes(dim: usize) -> usize {
        Self::element_bytes(dim)
    }

    #[inline(always)]
    fn shift(query_sum: i32) -> i32 {
        15 * query_sum
    }

    #[inline(always)]
    fn encode(rotated: &[f32], square: f32, out: &mut [u8]) -> Tail {
        let deviation = (square / rotated.len() as f32).sqrt();
        let inverse = if deviation > 0.0 { 16.0 / (2.0 * REACH * deviation) } else { 0.0 };
        let (mut products, mut sums) = ([0.0f32; LANES], [0i32; LANES]);
        for (values, line) in rotated.chunks(RUN).zip(out.as_chunks_mut::<LINE>().0) {
            let mut levels = [0u8; RUN];
            let (runs, rest) = values.as_chunks::<LANES>();
            for (run, levels) in runs.iter().zip(levels.as_chunks_mut::<LANES>().0) {
                *levels = round_run(run, inverse, &mut products, &mut sums);
            }
            if !rest.is_empty() {
                let mut padded = [0.0; LANES];
                padded[..rest.len()].copy_from_slice(rest);
                let mut partial = [0; LANES];
                let rounded = round_run(&padded, inverse, &mut products, &mut partial);
                for lane in 0..rest.len() {
                    sums[lane] += partial[lane];
                    levels[runs.len() * LANES + lane] = rounded[lane];
                }
            }
            for at in 0..LINE {
                line[at] = levels[at] | levels[LINE + at] << 4;
            }
        }
        let product: f32 = products.iter().sum();
        // Per doubled level, as products and sums are.
        let scale = if product > 0.0 { square / product } else { 0.0 };
        Tail { scale, base: 0.0, sum: sums.iter().sum() }
    }

    #[inline(always)]
    fn hold(row: &[u8], tail: Tail, dim: usize, query: &mut CodeQuery) {
        let bytes = query.resize(Self::query_bytes(dim));
        for (line, out) in row.as_chunks::<LINE>().0.iter().zip(bytes.as_chunks_mut::<RUN>().0) {
            for at in 0..LINE {
                out[at] = doubled(line[at] & 15) as u8;
                out[LINE + at] = doubled(line[at] >> 4) as u8;
            }
        }
        bytes[dim..].fill(0);
        query.scale = tail.scale;
    }

    #[inline(always)]
    unsafe fn dot<K: Kernel>(k: K, query: &CodeQuery, row: *const u8, bytes: usize) -> i32 {
        let query = query.bytes().as_ptr();
        let mut sums = k.no_sums();
        let mut line = 0;
        while line < bytes {
            let mut at = 0;
            while at < LINE {
                // SAFETY: `bytes` of codes and twice as many of the query are
                // readable, says the caller; BYTES divides a line.
                unsafe {
                    let low = k.load_bytes(query.add(2 * line + at));
                    let high = k.load_bytes(query.add(2 * line + LINE + at));
                    sums = k.dot_nibbles(k.load_bytes(row.add(line + at)), low, high, sums);
                }
                at += K::BYTES;
            }
            line += LINE;
        }
        k.total(sums)
    }

    #[inline(always)]
    unsafe fn dot_four<K: Kernel>(k: K, query: &CodeQuery, rows: [*const u8; 4], bytes: usize) -> [i32; 4] {
        let query = query.bytes().as_ptr();
        let mut sums = [k.no_sums(); 4];
        let mut line = 0;
        while line < bytes {
            let mut at = 0;
            while at < LINE {
                // SAFETY: as in `dot`.
                unsafe {
                    let low = k.load_bytes(query.add(2 * line + at));
                    let high = k.load_bytes(query.add(2 * line + LINE + at));
                    for row in 0..4 {
                        let packed = k.load_bytes(rows[row].add(line + at));
                        sums[row] = k.dot_nibbles(packed, low, high, sums[row]);
                    }
                }
                at += K::BYTES;
            }
            line += LINE;
        }
        k.totals(sums)
    }
}
