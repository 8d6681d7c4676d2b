//! Exact scans: every accepted row of a range or a list is compared. They answer
//! for the tail of a live graph, for filters that leave few rows, and as the
//! oracle of the approximate searches.

use crate::distance::{Kernel, Task};
use crate::hit::{Hit, Key};
use crate::query::Query;
use crate::scratch::Scratch;
use crate::search::{Accept, measure};
use crate::space::{Exact, Space};
use crate::vectors::Vectors;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Rows gathered before they are measured together.
const BATCH: usize = 32;

/// The `k` accepted rows among `ids` nearest to `query`, ascending. Costs one
/// distance per accepted row. Null rows and ids that are not there are passed
/// over.
///
/// # Panics
/// If vectors and query differ in dimension.
pub fn exact<V: Vectors>(
    vectors: &V,
    query: &Query,
    ids: Range<u32>,
    accept: &impl Fn(u32) -> bool,
    k: usize,
    scratch: &mut Scratch,
) -> Vec<Hit> {
    exact_of(vectors, query, ids, accept, k, scratch)
}

/// [`exact`] over any ids, in any order: the matches of a filter.
///
/// # Panics
/// If vectors and query differ in dimension.
pub fn exact_of<V: Vectors>(
    vectors: &V,
    query: &Query,
    ids: impl Iterator<Item = u32>,
    accept: &impl Fn(u32) -> bool,
    k: usize,
    scratch: &mut Scratch,
) -> Vec<Hit> {
    assert_eq!(query.dim() as usize, vectors.dim(), "the query is of another dimension");
    if k == 0 {
        return Vec::new();
    }
    scratch.isa.run(Scan { vectors, query, ids, accept, k })
}

/// The exact distance between `query` and row `id`; `None` without a vector.
///
/// # Panics
/// If vectors and query differ in dimension.
pub fn pairwise<V: Vectors>(vectors: &V, query: &Query, id: u32, scratch: &mut Scratch) -> Option<f32> {
    assert_eq!(query.dim() as usize, vectors.dim(), "the query is of another dimension");
    scratch.isa.run(One { vectors, query, id })
}

struct Scan<'a, V, I> {
    vectors: &'a V,
    query: &'a Query,
    ids: I,
    accept: Accept<'a>,
    k: usize,
}

impl<V: Vectors, I: Iterator<Item = u32>> Task for Scan<'_, V, I> {
    type Output = Vec<Hit>;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> Vec<Hit> {
        let Self { vectors, query, ids, accept, k } = self;
        let space = Exact::new(kernel, query.metric(), vectors);
        let mut nearest = BinaryHeap::new();
        let mut take = |_, id, distance| {
            let key = Key::new(distance, id);
            if nearest.len() < k {
                nearest.push(key);
            } else if nearest.peek().is_some_and(|farthest| key < *farthest) {
                nearest.pop();
                nearest.push(key);
            }
        };
        let mut batch = [0; BATCH];
        let mut count = 0;
        for id in ids.filter(|id| accept(*id)) {
            batch[count] = id;
            count += 1;
            if count == BATCH {
                measure(&space, query.values(), &batch, &mut take);
                count = 0;
            }
        }
        measure(&space, query.values(), &batch[..count], &mut take);
        nearest.into_sorted_vec().into_iter().map(Key::hit).collect()
    }
}

struct One<'a, V> {
    vectors: &'a V,
    query: &'a Query,
    id: u32,
}

impl<V: Vectors> Task for One<'_, V> {
    type Output = Option<f32>;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> Option<f32> {
        let space = Exact::new(kernel, self.query.metric(), self.vectors);
        let row = space.row(self.id)?;
        Some(space.distance(self.query.values(), row))
    }
}
