//! The memtable: the newest rows, searchable by key, by scan and by vector while they are being written.
//!
//! Batches come in as [`Prepared`] views of their encoded frames; inside the publication section they are linked, and
//! their keys indexed; index workers insert them into the graphs in the background. `table` owns it, `search` reads it
//! as a [`RowSource`], `flush` turns it into a segment once it is sealed. Readers take no lock that is held across work.
//! Invariant: offset order is seq order is publication order, and a row below the row count can be read in full.

mod blocks;
mod chunk_pool;
mod column_buffer;
mod column_bytes;
mod columns;
mod gathered;
mod keys;
mod newest;
mod packing;
mod prepare;
mod sealed;

pub(crate) use chunk_pool::ChunkPool;
pub(crate) use column_buffer::ColumnBuffer;
pub(crate) use column_bytes::{ColumnBytes, Layout};
pub(crate) use columns::GraphSink;
pub(crate) use packing::copied;
pub(crate) use prepare::{Prepared, batch_of};

use crate::ends::Ends;
use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId, Seq};
use crate::keys::{KeyArray, KeyProbe};
use crate::rows::{Hit, RowSource, SearchCost, VectorQuery, Visible, no_rows, projected};
use crate::schema::TableSchema;
use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use blocks::Blocks;
use columns::IndexedColumn;
use keys::KeyIndex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Bytes of a memtable by component. The sum is what it holds on the heap, within a few percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// The rows: frames that are viewed, packed columns, copied vectors.
    pub(crate) rows_bytes: u64,
    /// Links of all vector columns.
    pub(crate) graph_bytes: u64,
    /// Compact codes of all vector columns.
    pub(crate) code_bytes: u64,
    /// The key index.
    pub(crate) key_bytes: u64,
    /// Array headers, row pointers, norms, end marks.
    pub(crate) bookkeeping_bytes: u64,
}

impl MemoryUse {
    /// All of it.
    pub(crate) fn total(&self) -> u64 {
        self.rows_bytes + self.graph_bytes + self.code_bytes + self.key_bytes + self.bookkeeping_bytes
    }
}

/// What a row file's rows and deletes span in the log: written inside the publication section, read by anyone.
#[derive(Debug, Default)]
struct Span {
    /// 0 while nothing was covered, as are the others.
    first_publication: AtomicU64,
    last_publication: AtomicU64,
    first_seq: AtomicU64,
    last_seq: AtomicU64,
}

/// The rows of one row file while they are in memory.
pub(crate) struct Memtable {
    schema: TableSchema,
    ends: Arc<Ends>,
    first_row: RowId,
    rows: AtomicU32,
    blocks: Blocks,
    columns: Vec<IndexedColumn>,
    /// Which vector column, by position in the stored schema.
    vector_at: Vec<Option<usize>>,
    keys: Option<KeyIndex>,
    /// The next offset that an index worker takes.
    unclaimed: AtomicU32,
    span: Span,
    sealed: AtomicBool,
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memtable")
            .field("first_row", &self.first_row)
            .field("rows", &self.rows())
            .field("indexed", &self.indexed())
            .finish_non_exhaustive()
    }
}

impl Memtable {
    /// An empty memtable whose rows will be `first_row` and on.
    ///
    /// # Errors
    /// None for a valid schema.
    pub(crate) fn new(schema: TableSchema, ends: Arc<Ends>, first_row: RowId) -> Result<Self> {
        let vectors = schema.vectors();
        let columns = vectors.iter().enumerate();
        let columns = columns.map(|(ordinal, column)| IndexedColumn::new(column, ordinal));
        let vector_at =
            (0..schema.stored().fields().len()).map(|at| vectors.iter().position(|v| v.index == at)).collect();
        Ok(Self {
            columns: columns.collect::<Result<_>>()?,
            vector_at,
            keys: schema.key().map(|_| KeyIndex::new()),
            blocks: Blocks::new(schema.clone()),
            schema,
            ends,
            first_row,
            rows: AtomicU32::new(0),
            unclaimed: AtomicU32::new(0),
            span: Span::default(),
            sealed: AtomicBool::new(false),
        })
    }

    /// The table's schema.
    pub(crate) fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// The row id of offset 0.
    pub(crate) fn first_row(&self) -> RowId {
        self.first_row
    }

    /// Appends a batch and returns the offset of its first row. Called inside the publication section, which alone
    /// calls it; the key index is not touched. O(parts) plus a pointer store a row (and a copy of the vectors of parts
    /// under 256 rows).
    ///
    /// The caller seals long before `u32::MAX` rows.
    pub(crate) fn link(&self, prepared: Prepared, first_seq: Seq, publication: PubNo) -> u32 {
        debug_assert!(!self.is_sealed(), "a sealed memtable takes no rows");
        // ORDERING: Relaxed: only the publication section stores it.
        let first = self.rows.load(Ordering::Relaxed);
        let rows = prepared.rows();
        if rows == 0 {
            return first;
        }
        let mut offset = first;
        prepared.parts.for_each(|part| {
            for (column, vectors) in self.columns.iter().zip(part.vectors) {
                let at = column.append(vectors);
                debug_assert_eq!(at, offset, "vectors and rows keep step");
            }
            let rows = part.block.rows;
            self.blocks.push(part.block, offset, first_seq.plus(u64::from(offset - first)));
            offset += rows;
        });
        self.cover(first_seq, first_seq.plus(u64::from(rows) - 1), publication);
        // ORDERING: Release pairs with the Acquire in `rows`: whoever sees the count can read the rows.
        self.rows.store(offset, Ordering::Release);
        first
    }

    /// [`Memtable::link`] for a few rows of a key-less table without vectors, copied from an appender's columns. O(bytes).
    pub(crate) fn gather(&self, columns: &[ColumnBuffer], rows: u32, first_seq: Seq, publication: PubNo) {
        debug_assert!(!self.is_sealed() && self.keys.is_none() && self.columns.is_empty() && rows > 0);
        // ORDERING: as in `link`.
        let first = self.rows.load(Ordering::Relaxed);
        self.blocks.gather(columns, rows, first, first_seq);
        self.cover(first_seq, first_seq.plus(u64::from(rows) - 1), publication);
        self.rows.store(first + rows, Ordering::Release);
    }

    /// Notes that a batch of this memtable's log range took these seqs: [`Memtable::link`] does it for rows, the
    /// publication section for deletes.
    pub(crate) fn cover(&self, first: Seq, last: Seq, publication: PubNo) {
        let span = &self.span;
        // ORDERING: Relaxed: only the publication section stores them; a flush reads them after the seal, which the
        // section's lock orders.
        if span.first_publication.load(Ordering::Relaxed) == 0 {
            span.first_publication.store(publication.0, Ordering::Relaxed);
            span.first_seq.store(first.0, Ordering::Relaxed);
        }
        span.last_publication.store(publication.0, Ordering::Relaxed);
        span.last_seq.store(last.0, Ordering::Relaxed);
    }

    /// Makes the rows from `first` on, of which these are the keys and their hashes, the newest of their keys, and tells
    /// `older` for each which row of this memtable it replaced. Called inside the publication section for every batch of a
    /// keyed table, in offset order.
    pub(crate) fn index_keys(
        &self,
        keys: &KeyArray,
        hashes: &[u64],
        first: u32,
        older: impl FnMut(usize, Option<u32>),
    ) {
        let index = self.keys.as_ref().expect("only keyed tables index keys");
        let same_key = |n: usize, row: u32| self.has_key(row, &KeyProbe { keys, row: n, hash: hashes[n] });
        index.insert_all(hashes, first, same_key, older);
    }

    fn has_key(&self, row: u32, probe: &KeyProbe<'_>) -> bool {
        probe.keys.hash_is_exact() || self.blocks.key_at(row, |keys, at| probe.is(keys, at))
    }

    /// Packs small batches together if enough have gathered. Called after the publication section, by the writer.
    ///
    /// # Errors
    /// `Internal` if Arrow cannot copy a column; the rows stay as they were.
    pub(crate) fn pack_if_due(&self) -> Result<()> {
        self.blocks.pack_if_due()
    }

    /// Whether [`Memtable::pack_if_due`] has something to do; one atomic load.
    pub(crate) fn is_pack_due(&self) -> bool {
        self.blocks.is_due()
    }

    /// Counts bytes that are held by the memtable's rows and used by none: what an appender left of its chunks.
    pub(crate) fn count_slack(&self, bytes: u64) {
        self.blocks.count_slack(bytes);
    }

    /// Claims up to `max_rows` rows that are not in the graphs and inserts them; returns how many. Called by any number
    /// of index workers at once. Costs about a search of width `ef_construction` a row and vector column.
    pub(crate) fn index_some(&self, max_rows: u32) -> u32 {
        if self.columns.is_empty() {
            return 0;
        }
        // ORDERING: Relaxed: decides between workers; `rows` publishes the rows.
        let mut first = self.unclaimed.load(Ordering::Relaxed);
        let end = loop {
            let end = first.saturating_add(max_rows).min(self.rows());
            if end <= first {
                return 0;
            }
            let claimed = self.unclaimed.compare_exchange_weak(first, end, Ordering::Relaxed, Ordering::Relaxed);
            match claimed {
                Ok(_) => break end,
                Err(now) => first = now,
            }
        };
        for offset in first..end {
            self.columns.iter().for_each(|column| column.insert(offset));
        }
        end - first
    }

    /// Rows below this offset are in every graph.
    pub(crate) fn indexed(&self) -> u32 {
        let settled = self.columns.iter().map(IndexedColumn::settled).min();
        settled.unwrap_or_else(|| self.rows())
    }

    /// Heap bytes by component: a few atomic loads from any thread.
    pub(crate) fn memory(&self) -> MemoryUse {
        let blocks = self.blocks.memory();
        let mut memory = MemoryUse {
            rows_bytes: blocks.data,
            graph_bytes: 0,
            code_bytes: 0,
            key_bytes: self.keys.as_ref().map_or(0, KeyIndex::memory_bytes),
            bookkeeping_bytes: blocks.headers + self.ends.memory_bytes() + size_of::<Self>() as u64,
        };
        for column in &self.columns {
            let table = column.table_bytes();
            let (links, codes) = column.graph_bytes();
            memory.graph_bytes += links;
            memory.code_bytes += codes;
            memory.rows_bytes += table.arena as u64;
            memory.bookkeeping_bytes += table.bookkeeping as u64;
        }
        memory
    }

    /// The smallest seq of its rows and deletes; 0 if there is none.
    pub(crate) fn first_seq(&self) -> Seq {
        Seq(self.span.first_seq.load(Ordering::Relaxed))
    }

    /// The largest seq of its rows and deletes; 0 if there is none.
    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.span.last_seq.load(Ordering::Relaxed))
    }

    /// The first batch in it; 0 if there is none.
    pub(crate) fn first_publication(&self) -> PubNo {
        PubNo(self.span.first_publication.load(Ordering::Relaxed))
    }

    /// The last batch in it; 0 if there is none.
    pub(crate) fn last_publication(&self) -> PubNo {
        PubNo(self.span.last_publication.load(Ordering::Relaxed))
    }

    /// The column at `at` in the stored schema, by whichever way its kind is read.
    fn column(
        &self,
        at: usize,
        vector: impl FnOnce(&IndexedColumn, &DataType) -> Result<ArrayRef>,
        plain: impl FnOnce() -> Result<ArrayRef>,
    ) -> Result<ArrayRef> {
        match self.vector_at.get(at) {
            Some(Some(ordinal)) => vector(&self.columns[*ordinal], self.schema.stored().field(at).data_type()),
            Some(None) => plain(),
            None => Err(Error::internal(format!("column {at} is not in the stored schema"))),
        }
    }

    fn vector_column(&self, query: &VectorQuery<'_>) -> Result<&IndexedColumn> {
        let column = self.columns.get(query.column);
        column.ok_or_else(|| Error::internal(format!("there is no vector column {}", query.column)))
    }
}

impl RowSource for Memtable {
    fn rows(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release in `link`.
        self.rows.load(Ordering::Acquire)
    }

    fn find(&self, probe: &KeyProbe<'_>, below: u32) -> Result<Option<u32>> {
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        Ok(keys.find(probe, below, |row| self.has_key(row, probe)))
    }

    fn seqs(&self, offsets: &[u32]) -> Result<Vec<Seq>> {
        let located = self.blocks.locate(offsets)?;
        let seq = |&(block, row): &(usize, usize)| located.blocks[block].seq(row as u32);
        Ok(located.rows.iter().map(seq).collect())
    }

    fn take(&self, offsets: &[u32], projection: &[usize]) -> Result<RecordBatch> {
        let located = self.blocks.locate(offsets)?;
        let stored = self.schema.stored();
        if offsets.is_empty() {
            return no_rows(stored, projection);
        }
        let column = |&at: &usize| {
            let vector =
                |column: &IndexedColumn, data_type: &DataType| column.gather(offsets.iter().copied(), data_type);
            self.column(at, vector, || located.column(&self.schema, at))
        };
        let columns = projection.iter().map(column).collect::<Result<_>>()?;
        projected(stored, projection, columns, offsets.len())
    }

    fn read(&self, range: Range<u32>, projection: &[usize]) -> Result<RecordBatch> {
        let stored = self.schema.stored();
        let blocks = self.blocks.overlapping(&range)?;
        if range.is_empty() {
            return no_rows(stored, projection);
        }
        let column = |&at: &usize| {
            let vector = |column: &IndexedColumn, data_type: &DataType| column.gather(range.clone(), data_type);
            self.column(at, vector, || blocks::column_range(&self.schema, &blocks, at, &range))
        };
        let columns = projection.iter().map(column).collect::<Result<_>>()?;
        projected(stored, projection, columns, range.len())
    }

    fn search(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<(Vec<Hit>, SearchCost)> {
        self.vector_column(query)?.search(query, visible)
    }

    fn scan_nearest(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<Vec<Hit>> {
        self.vector_column(query)?.scan(query, visible)
    }
}

#[cfg(test)]
mod tests;
