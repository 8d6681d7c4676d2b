//! What traversal and selection measure distances with. Traversal, selection and
//! pruning are generic over [`Space`]: [`Exact`], over the rows themselves, or
//! [`Coded`](crate::codes::Coded), over their compact codes.

use crate::codes::CodeQuery;
use crate::distance::{Kernel, distance, distance_four, prefetch_slice};
use crate::params::Metric;
use crate::vectors::{VectorRow, Vectors};

/// Distances from a query to nodes, and between nodes, in one representation of
/// the vectors. Never NaN; smaller is nearer.
pub(crate) trait Space: Copy {
    /// A query in this representation.
    type Query: ?Sized;
    /// Where a node's representation lies: found once per node and hop, then
    /// prefetched and compared without another look-up.
    type Row: Copy + Default;
    /// How many rows are asked for ahead of the one that is compared.
    fn ahead(&self) -> usize;
    /// `None` for a node without a vector, which is then passed over.
    fn row(&self, id: u32) -> Option<Self::Row>;
    fn prefetch(&self, row: Self::Row);
    fn distance(&self, query: &Self::Query, row: Self::Row) -> f32;
    fn distance_four(&self, query: &Self::Query, rows: [Self::Row; 4]) -> [f32; 4];
    /// Whether one of `others` is nearer to `row` than `distance`. `buffer` holds
    /// the row in the form of a query, where that pays.
    fn any_nearer(&self, row: Self::Row, distance: f32, others: &[Self::Row], buffer: &mut CodeQuery) -> bool;
    /// How far each of `others` is from `row`, with its place among them.
    fn distances_from(
        &self,
        row: Self::Row,
        others: &[Self::Row],
        buffer: &mut CodeQuery,
        each: impl FnMut(usize, f32),
    );
}

/// Exact distances, from the rows as they were written.
pub(crate) struct Exact<'a, K, V> {
    kernel: K,
    metric: Metric,
    vectors: &'a V,
}

impl<'a, K: Kernel, V: Vectors> Exact<'a, K, V> {
    #[inline(always)]
    pub(crate) fn new(kernel: K, metric: Metric, vectors: &'a V) -> Self {
        Self { kernel, metric, vectors }
    }
}

impl<K: Copy, V> Clone for Exact<'_, K, V> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Copy, V> Copy for Exact<'_, K, V> {}

/// Lines of a row that are asked for ahead; the hardware follows on from there.
const PREFETCH_LINES: usize = 8;
/// Rows that are asked for ahead.
const AHEAD: usize = 4;

impl<'a, K: Kernel, V: Vectors> Space for Exact<'a, K, V> {
    /// As [`Query::values`](crate::Query) prepares it.
    type Query = [f32];
    type Row = VectorRow<'a, V::Elem>;

    #[inline(always)]
    fn ahead(&self) -> usize {
        AHEAD
    }

    #[inline(always)]
    fn row(&self, id: u32) -> Option<Self::Row> {
        self.vectors.row(id)
    }

    #[inline(always)]
    fn prefetch(&self, row: Self::Row) {
        prefetch_slice(row.values, PREFETCH_LINES);
    }

    #[inline(always)]
    fn distance(&self, query: &[f32], row: Self::Row) -> f32 {
        distance(self.kernel, self.metric, query, row.values, row.inv_norm)
    }

    #[inline(always)]
    fn distance_four(&self, query: &[f32], rows: [Self::Row; 4]) -> [f32; 4] {
        let values = rows.map(|row| row.values);
        let scale = rows.map(|row| row.inv_norm);
        distance_four(self.kernel, self.metric, query, values, scale)
    }

    #[inline(always)]
    fn any_nearer(&self, row: Self::Row, than: f32, others: &[Self::Row], _buffer: &mut CodeQuery) -> bool {
        let (fours, rest) = others.as_chunks::<4>();
        for four in fours {
            let scale = four.map(|other| row.inv_norm * other.inv_norm);
            let [a, b, c, d] =
                distance_four(self.kernel, self.metric, row.values, four.map(|other| other.values), scale);
            if a.min(b).min(c.min(d)) < than {
                return true;
            }
        }
        for other in rest {
            let scale = row.inv_norm * other.inv_norm;
            if distance(self.kernel, self.metric, row.values, other.values, scale) < than {
                return true;
            }
        }
        false
    }

    #[inline(always)]
    fn distances_from(
        &self,
        row: Self::Row,
        others: &[Self::Row],
        _buffer: &mut CodeQuery,
        mut each: impl FnMut(usize, f32),
    ) {
        for (at, other) in others.iter().enumerate() {
            let scale = row.inv_norm * other.inv_norm;
            each(at, distance(self.kernel, self.metric, row.values, other.values, scale));
        }
    }
}
