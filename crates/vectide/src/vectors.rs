//! Vector columns between Arrow and the graph crate: rows in, rows out, and the two ways to search them.
//!
//! `memtable` and `segment` hand in an Arrow column or a graph with its vectors, and get blocks, columns and hits back;
//! nothing above them sees an element type. Invariant: a search honours [`Visible`] inside the traversal, so that a row
//! the snapshot does not see never takes a place.

use crate::error::{Error, Result};
use crate::rows::{Hit, SearchCost, VectorQuery, Visible};
use crate::schema::VectorColumn;
use arrow::array::NullBufferBuilder;
use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, PrimitiveArray};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{ArrowNativeType, ArrowPrimitiveType, DataType, Float16Type, Float32Type};
use half::f16;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use vectide_graph::{Compiled, Params, Query, Scratch, Vectors};

/// An element type that both Arrow and the graph crate know.
pub(crate) trait StoredElement: Compiled + ArrowNativeType {
    /// Arrow's name for it.
    type Arrow: ArrowPrimitiveType<Native = Self>;
}

impl StoredElement for f32 {
    type Arrow = Float32Type;
}

impl StoredElement for f16 {
    type Arrow = Float16Type;
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Runs `work` with this thread's traversal buffers (about 20 KB, kept for the thread's life).
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(work)
}

/// The elements of a vector column, `[rows, dim]` row-major; those of null rows are whatever was written there.
pub(crate) fn elements<E: StoredElement>(list: &FixedSizeListArray) -> ScalarBuffer<E> {
    // Arrow slices the values along with the list, so they are exactly the rows'.
    list.values().as_primitive::<E::Arrow>().values().clone()
}

/// The graph settings of vector column number `ordinal`.
pub(crate) fn params(column: &VectorColumn, ordinal: usize) -> Params {
    Params {
        dim: column.dim,
        metric: column.metric,
        m: column.m,
        ef_construction: column.ef_construction,
        codes: column.codes,
        seed: ordinal as u64,
    }
}

/// Copies the vectors of `ids`, in that order, into a column of type `data_type` (a FixedSizeList of `V`'s element).
pub(crate) fn gather<V: Vectors>(
    vectors: &V,
    ids: impl ExactSizeIterator<Item = u32>,
    data_type: &DataType,
) -> Result<ArrayRef>
where
    V::Elem: StoredElement,
{
    let DataType::FixedSizeList(item, dim) = data_type else {
        return Err(Error::internal(format!("a vector column of type {data_type}")));
    };
    let width = vectors.dim();
    let mut values: Vec<V::Elem> = Vec::with_capacity(ids.len() * width);
    let zero = <V::Elem as StoredElement>::Arrow::default_value();
    let mut nulls = NullBufferBuilder::new(ids.len());
    for id in ids {
        let row = vectors.get(id);
        match row {
            Some(row) => values.extend_from_slice(row),
            None => values.resize(values.len() + width, zero),
        }
        nulls.append(row.is_some());
    }
    let values: PrimitiveArray<<V::Elem as StoredElement>::Arrow> = PrimitiveArray::new(values.into(), None);
    let list = FixedSizeListArray::try_new(Arc::clone(item), *dim, Arc::new(values), nulls.finish())?;
    Ok(Arc::new(list))
}

/// A graph and its vectors, in whatever tier: what the two searches below ask of it.
pub(crate) trait Searched {
    /// What the graph was made with.
    fn params(&self) -> &Params;

    /// Rows below this offset are in the graph.
    fn settled(&self) -> u32;

    /// The `k` accepted nodes nearest to `query`, ascending, by a walk of width `ef`.
    fn walk(&self, query: &Query, k: usize, ef: usize, accept: &dyn Fn(u32) -> bool, scratch: &mut Scratch)
    -> Vec<Hit>;

    /// The `k` accepted rows of `rows` nearest to `query`, ascending, by comparing all.
    fn scan(
        &self,
        query: &Query,
        rows: Range<u32>,
        accept: &dyn Fn(u32) -> bool,
        k: usize,
        scratch: &mut Scratch,
    ) -> Vec<Hit>;
}

/// Searches by graph among the rows that `visible` sees, and exactly among those that the graph may not hold yet.
pub(crate) fn nearest_by_graph(
    source: &impl Searched,
    query: &VectorQuery<'_>,
    visible: &Visible<'_>,
) -> Result<(Vec<Hit>, SearchCost)> {
    let prepared = prepare(source.params(), query)?;
    let accept = |offset| visible.sees(offset);
    // Read first: a row that settles during the walk is found by the scan, one before it by the walk.
    let tail = source.settled()..visible.below;
    let mut hits = with_scratch(|scratch| source.walk(&prepared, query.k, query.ef, &accept, scratch));
    let mut cost = SearchCost::default();
    if !tail.is_empty() {
        cost.tail = u64::from(tail.end - tail.start);
        cost.scanned = cost.tail;
        let scanned = with_scratch(|scratch| source.scan(&prepared, tail.clone(), &accept, query.k, scratch));
        // A row of the tail may be in the graph already: the scan has found it then, at the same distance.
        hits.retain(|hit| hit.id < tail.start);
        hits.extend(scanned);
        hits.sort_unstable();
        hits.truncate(query.k);
    }
    Ok((hits, cost))
}

/// Compares every visible row that has a vector.
pub(crate) fn nearest_by_scan(
    source: &impl Searched,
    query: &VectorQuery<'_>,
    visible: &Visible<'_>,
) -> Result<Vec<Hit>> {
    let prepared = prepare(source.params(), query)?;
    let accept = |offset| visible.sees(offset);
    Ok(with_scratch(|scratch| source.scan(&prepared, 0..visible.below, &accept, query.k, scratch)))
}

/// The query as vectors of these settings are compared with it.
pub(crate) fn prepare(params: &Params, query: &VectorQuery<'_>) -> Result<Query> {
    Query::new(params.metric, params.dim, query.vector)
        .map_err(|e| Error::invalid(format!("query vector: {e}")).with_source(e))
}
