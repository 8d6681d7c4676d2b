//! What every tier offers to a read: rows by offset, by key and by vector.
//!
//! Memtable and segment implement [`RowSource`] (the base will); `search` and `table` read through it, and one
//! conformance suite tests each. A source is append-only or immutable: an offset names one row for the source's life.
//! Which rows a read may see is not the source's business: it is told by [`Visible`].

use crate::ends::Ends;
use crate::error::Result;
use crate::ids::{PubNo, Seq};
use crate::keys::KeyProbe;
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use std::ops::Range;
use std::sync::Arc;
pub(crate) use vectide_graph::Hit;

/// The rows of one source that one snapshot sees: those below a limit whose end mark is later than the snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible<'a> {
    /// The row file's end marks.
    pub(crate) ends: &'a Ends,
    /// The snapshot's publication number.
    pub(crate) at: PubNo,
    /// Rows at or above this offset are not visible yet.
    pub(crate) below: u32,
}

impl Visible<'_> {
    /// Whether the snapshot sees the row at `offset`.
    #[inline]
    pub(crate) fn sees(&self, offset: u32) -> bool {
        offset < self.below && self.ends.is_live_at(offset, self.at)
    }

    /// How many rows the snapshot sees.
    pub(crate) fn count(&self) -> u64 {
        self.ends.count_live(0..self.below, self.at)
    }
}

/// One vector search as a source sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorQuery<'a> {
    /// Ordinal among the table's vector columns.
    pub(crate) column: usize,
    /// The query, `[dim]`, finite, not zero under cosine.
    pub(crate) vector: &'a [f32],
    /// Results wanted.
    pub(crate) k: usize,
    /// Beam width.
    pub(crate) ef: usize,
}

/// What a source did for one search: for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchCost {
    /// Rows whose exact distance was computed by scanning (tail or whole source).
    pub(crate) scanned: u64,
    /// Rows in the tail at the time.
    pub(crate) tail: u64,
}

/// A tier's rows.
pub(crate) trait RowSource: Send + Sync {
    /// Rows held, dead ones included. Grows while the source is the active memtable.
    fn rows(&self) -> u32;

    /// The newest row below `below` that holds the key, dead or alive. Versions of a key stand in offset order, so if
    /// that one is dead in a snapshot whose limit is `below`, so are all older ones.
    fn find(&self, probe: &KeyProbe<'_>, below: u32) -> Result<Option<u32>>;

    /// The seq of each of `offsets`.
    fn seqs(&self, offsets: &[u32]) -> Result<Vec<Seq>>;

    /// Rows by offset, in the given order: the stored columns at `projection` (positions in the stored schema).
    fn take(&self, offsets: &[u32], projection: &[usize]) -> Result<RecordBatch>;

    /// A run of rows: the stored columns at `projection`.
    fn read(&self, range: Range<u32>, projection: &[usize]) -> Result<RecordBatch>;

    /// The nearest visible rows, ascending by distance, at most `k`: by graph, plus an exact scan of visible rows that
    /// the graph does not hold yet. May give fewer than `k` although more are visible; the caller then scans.
    fn search(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<(Vec<Hit>, SearchCost)>;

    /// The nearest visible rows by exact scan of every visible row that has a vector.
    fn scan_nearest(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<Vec<Hit>>;
}

/// A batch of `rows` rows: the columns of `stored` at `projection`.
pub(crate) fn projected(
    stored: &SchemaRef,
    projection: &[usize],
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch> {
    let schema = Arc::new(stored.project(projection)?);
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// [`projected`] of no rows.
pub(crate) fn no_rows(stored: &SchemaRef, projection: &[usize]) -> Result<RecordBatch> {
    Ok(RecordBatch::new_empty(Arc::new(stored.project(projection)?)))
}
