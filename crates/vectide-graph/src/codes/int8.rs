//! Eight bits per element: the largest element of the row sets the scale. Stored
//! as unsigned bytes around 128, since the instructions multiply unsigned bytes
//! with signed ones.

use super::query::CodeQuery;
use super::{Code, LINE, Tail};
use crate::distance::Kernel;

/// [`Codes::Int8`](super::Codes::Int8).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Int8;

const CENTRE: f32 = 128.0;
const LANES: usize = 16;

/// Rounds `values` to -127..=127 and writes them plus 128. Returns the factor that
/// makes the product of the row with its rounded form exact, and the sum of the
/// rounded elements.
#[inline(always)]
pub(super) fn round(values: &[f32], square: f32, out: &mut [u8]) -> (f32, i32) {
    let mut most = [0.0f32; LANES];
    let (runs, rest) = values.as_chunks::<LANES>();
    for run in runs {
        for lane in 0..LANES {
            most[lane] = most[lane].max(run[lane].abs());
        }
    }
    let mut largest = rest.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for most in most {
        largest = largest.max(most);
    }
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let (mut products, mut sums) = ([0.0f32; LANES], [0i32; LANES]);
    let (outs, out_rest) = out[..values.len()].as_chunks_mut::<LANES>();
    for (run, out) in runs.iter().zip(outs) {
        for lane in 0..LANES {
            let (level, byte) = round_one(run[lane], inverse);
            products[lane] += run[lane] * level as f32;
            sums[lane] += level;
            out[lane] = byte;
        }
    }
    for (lane, (value, out)) in rest.iter().zip(out_rest).enumerate() {
        let (level, byte) = round_one(*value, inverse);
        products[lane] += value * level as f32;
        sums[lane] += level;
        *out = byte;
    }
    let product: f32 = products.iter().sum();
    let scale = if product > 0.0 { square / product } else { 0.0 };
    (scale, sums.iter().sum())
}

#[inline(always)]
fn round_one(value: f32, inverse: f32) -> (i32, u8) {
    // NaN, which no table holds, becomes a number here: clamp would keep it.
    #[allow(clippy::manual_clamp, reason = "the cast below must see no NaN")]
    let shifted = (value * inverse + (CENTRE + 0.5)).max(1.0).min(255.0);
    // SAFETY: the value is within 1..=255.
    let level = unsafe { shifted.to_int_unchecked::<i32>() };
    (level - CENTRE as i32, level as u8)
}

/// A rotated query as bytes: rounded like a row of [`Int8`], but signed. Serves
/// every kind of whole-number code.
#[inline(always)]
pub(super) fn prepare(rotated: &[f32], square: f32, len: usize, query: &mut CodeQuery) -> i32 {
    let bytes = query.resize(len);
    let (scale, sum) = round(rotated, square, bytes);
    for byte in &mut bytes[..rotated.len()] {
        *byte ^= 0x80;
    }
    bytes[rotated.len()..].fill(0);
    query.scale = scale;
    sum
}

impl Code for Int8 {
    const UNIT: i32 = 1;

    fn element_bytes(dim: usize) -> usize {
        dim.next_multiple_of(LINE)
    }

    fn query_bytes(dim: usize) -> usize {
        Self::element_bytes(dim)
    }

    fn used_bytes(dim: usize) -> usize {
        dim
    }

    #[inline(always)]
    fn shift(query_sum: i32) -> i32 {
        CENTRE as i32 * query_sum
    }

    #[inline(always)]
    fn encode(rotated: &[f32], square: f32, out: &mut [u8]) -> Tail {
        let (scale, sum) = round(rotated, square, out);
        Tail { scale, base: 0.0, sum }
    }

    #[inline(always)]
    fn hold(row: &[u8], tail: Tail, dim: usize, query: &mut CodeQuery) {
        let bytes = query.resize(Self::query_bytes(dim));
        let (used, padding) = bytes.split_at_mut(dim);
        for (byte, code) in used.iter_mut().zip(row) {
            *byte = code ^ 0x80;
        }
        // Where the row has padding, or its tail.
        padding.fill(0);
        query.scale = tail.scale;
    }

    #[inline(always)]
    unsafe fn dot<K: Kernel>(k: K, query: &CodeQuery, row: *const u8, bytes: usize) -> i32 {
        let query = query.bytes().as_ptr();
        let mut sums = k.no_sums();
        let mut at = 0;
        while at < bytes {
            // SAFETY: `bytes` are readable on both sides, says the caller, and a
            // multiple of 64, which BYTES divides.
            let (codes, query) = unsafe { (k.load_bytes(row.add(at)), k.load_bytes(query.add(at))) };
            sums = k.dot_bytes(codes, query, sums);
            at += K::BYTES;
        }
        k.total(sums)
    }

    #[inline(always)]
    unsafe fn dot_four<K: Kernel>(k: K, query: &CodeQuery, rows: [*const u8; 4], bytes: usize) -> [i32; 4] {
        let query = query.bytes().as_ptr();
        let mut sums = [k.no_sums(); 4];
        let mut at = 0;
        while at < bytes {
            // SAFETY: as in `dot`.
            let query = unsafe { k.load_bytes(query.add(at)) };
            for row in 0..4 {
                // SAFETY: as in `dot`.
                let codes = unsafe { k.load_bytes(rows[row].add(at)) };
                sums[row] = k.dot_bytes(codes, query, sums[row]);
            }
            at += K::BYTES;
        }
        k.totals(sums)
    }
}
