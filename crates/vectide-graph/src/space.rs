//! What traversal and selection measure distances with: the seam for compact
//! codes. Traversal, selection and pruning are generic over [`Space`]; today
//! there is one, [`Exact`], over the rows themselves.

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

    /// `None` for a node without a vector, which is then passed over.
    fn row(&self, id: u32) -> Option<Self::Row>;
    fn prefetch(&self, row: Self::Row);
    fn distance(&self, query: &Self::Query, row: Self::Row) -> f32;
    fn distance_four(&self, query: &Self::Query, rows: [Self::Row; 4]) -> [f32; 4];
    fn between(&self, a: Self::Row, b: Self::Row) -> f32;
    fn between_four(&self, a: Self::Row, rows: [Self::Row; 4]) -> [f32; 4];
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
const PREFETCH_LINES: usize = 64;

impl<'a, K: Kernel, V: Vectors> Space for Exact<'a, K, V> {
    /// As [`Query::values`](crate::Query) prepares it.
    type Query = [f32];
    type Row = VectorRow<'a, V::Elem>;

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
    fn between(&self, a: Self::Row, b: Self::Row) -> f32 {
        distance(self.kernel, self.metric, a.values, b.values, a.inv_norm * b.inv_norm)
    }

    #[inline(always)]
    fn between_four(&self, a: Self::Row, rows: [Self::Row; 4]) -> [f32; 4] {
        let values = rows.map(|row| row.values);
        let scale = rows.map(|row| a.inv_norm * row.inv_norm);
        distance_four(self.kernel, self.metric, a.values, values, scale)
    }
}
