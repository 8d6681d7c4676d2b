//! Distances over codes, for traversal and selection.

use super::query::CodeQuery;
use super::{Code, Encoder, Tail};
use crate::distance::{Kernel, finite, prefetch_slice};
use crate::search::sealed::View;
use crate::space::Space;
use std::marker::PhantomData;

/// The codes of a graph, of a kind that is known when this is compiled.
pub(crate) struct Coded<'a, K, C, G> {
    kernel: K,
    graph: &'a G,
    encoder: &'a Encoder,
    /// Bytes of a row that are compared.
    bytes: usize,
    /// Rows asked for ahead.
    ahead: usize,
    code: PhantomData<C>,
}

impl<K: Copy, C, G> Clone for Coded<'_, K, C, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Copy, C, G> Copy for Coded<'_, K, C, G> {}

/// Bytes of codes on their way at a time: about what the memory system takes.
const AHEAD_BYTES: usize = 9 << 10;

impl<'a, K: Kernel, C: Code, G: View> Coded<'a, K, C, G> {
    #[inline(always)]
    pub(crate) fn new(kernel: K, graph: &'a G, encoder: &'a Encoder) -> Self {
        let ahead = (AHEAD_BYTES / encoder.row_bytes()).clamp(4, 32);
        Self { kernel, graph, encoder, bytes: C::element_bytes(encoder.dim()), ahead, code: PhantomData }
    }

    /// The formula at the top of `codes`.
    #[inline(always)]
    fn finish(query: &CodeQuery, row: &[u8], sum: i32) -> f32 {
        let tail = Tail::read(row);
        let product = (C::UNIT.wrapping_mul(sum).wrapping_sub(query.shift)) as f32;
        // Only rows near the ends of f32's range overflow; no result is NaN.
        finite((query.base + tail.base - query.scale * tail.scale * product).max(f32::MIN))
    }
}

impl<'a, K: Kernel, C: Code, G: View> Space for Coded<'a, K, C, G> {
    type Query = CodeQuery;
    /// A row's code, as long as the encoder says.
    type Row = &'a [u8];

    #[inline(always)]
    fn ahead(&self) -> usize {
        self.ahead
    }

    #[inline(always)]
    fn row(&self, id: u32) -> Option<&'a [u8]> {
        self.graph.code(id)
    }

    #[inline(always)]
    fn prefetch(&self, row: &'a [u8]) {
        prefetch_slice(row, usize::MAX);
    }

    #[inline(always)]
    fn distance(&self, query: &CodeQuery, row: &'a [u8]) -> f32 {
        debug_assert!(row.len() >= self.bytes && query.bytes().len() == C::query_bytes(self.encoder.dim()));
        // SAFETY: 1. a row of code is at least `bytes` long (`row_bytes`), and
        // graphs give out no shorter ones; 2. the query was prepared or held by
        // an encoder of the same kind and dimension.
        let sum = unsafe { C::dot(self.kernel, query, row.as_ptr(), self.bytes) };
        Self::finish(query, row, sum)
    }

    #[inline(always)]
    fn distance_four(&self, query: &CodeQuery, rows: [&'a [u8]; 4]) -> [f32; 4] {
        let at = rows.map(<[u8]>::as_ptr);
        // SAFETY: as in `distance`.
        let sums = unsafe { C::dot_four(self.kernel, query, at, self.bytes) };
        let mut out = [0.0; 4];
        for lane in 0..4 {
            out[lane] = Self::finish(query, rows[lane], sums[lane]);
        }
        out
    }

    #[inline(always)]
    fn any_nearer(&self, row: &'a [u8], than: f32, others: &[&'a [u8]], buffer: &mut CodeQuery) -> bool {
        self.encoder.hold::<C>(row, buffer);
        let (fours, rest) = others.as_chunks::<4>();
        for four in fours {
            let [a, b, c, d] = self.distance_four(buffer, *four);
            if a.min(b).min(c.min(d)) < than {
                return true;
            }
        }
        for other in rest {
            if self.distance(buffer, other) < than {
                return true;
            }
        }
        false
    }

    #[inline(always)]
    fn distances_from(
        &self,
        row: &'a [u8],
        others: &[&'a [u8]],
        buffer: &mut CodeQuery,
        mut each: impl FnMut(usize, f32),
    ) {
        self.encoder.hold::<C>(row, buffer);
        let (fours, rest) = others.as_chunks::<4>();
        for (at, four) in fours.iter().enumerate() {
            for (lane, distance) in self.distance_four(buffer, *four).into_iter().enumerate() {
                each(4 * at + lane, distance);
            }
        }
        for (at, other) in rest.iter().enumerate() {
            each(4 * fours.len() + at, self.distance(buffer, other));
        }
    }
}
