//! Rows of small commits, gathered in chunks of the memtable's own until a block is made of them.
//!
//! In: the columns of an appender that commits a few rows of a key-less table, copied inside the publication section: less
//! work than a block of their own and a second copy to pack it. Out: a block, once enough rows have gathered, another
//! block follows, or somebody reads. Called by `Blocks` under the directory's lock. Invariant: gathered rows follow the
//! last block and have consecutive seqs.

use super::blocks::{Age, Block, Seqs};
use super::column_buffer::ColumnBuffer;
use super::packing::{CHUNK_ROWS, YOUNG_BATCH_ROWS};
use crate::ids::Seq;

/// A block is made of so many bytes, however few rows they are.
const BLOCK_BYTES: u64 = 1 << 20;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    columns: Vec<ColumnBuffer>,
    first: u32,
    rows: u32,
    seq: Seq,
    bytes: u64,
}

impl Gathered {
    /// The offset behind the last block, if rows have gathered there.
    pub(super) fn first(&self) -> Option<u32> {
        (self.rows > 0).then_some(self.first)
    }

    /// Whether rows with these seqs would follow the gathered ones.
    pub(super) fn is_followed_by(&self, seq: Seq) -> bool {
        self.rows == 0 || self.seq.plus(u64::from(self.rows)) == seq
    }

    /// Copies rows behind the gathered ones; gives their bytes.
    pub(super) fn append(&mut self, columns: &[ColumnBuffer], rows: u32, first: u32, seq: Seq) -> u64 {
        debug_assert!(self.is_followed_by(seq), "a block has one run of seqs");
        if self.columns.is_empty() {
            self.columns = columns.iter().map(ColumnBuffer::like).collect();
        }
        if self.rows == 0 {
            (self.first, self.seq) = (first, seq);
        }
        self.rows += rows;
        let bytes = self.columns.iter_mut().zip(columns).map(|(own, column)| own.append(column)).sum();
        self.bytes += bytes;
        bytes
    }

    /// Whether a block should be made of them now.
    pub(super) fn is_due(&self) -> bool {
        self.rows >= CHUNK_ROWS || self.bytes >= BLOCK_BYTES
    }

    /// The rows as a block, with the bytes that [`Gathered::append`] gave for them; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<(Block, u64)> {
        let first = self.first()?;
        let columns = self.columns.iter_mut().map(|column| Some(column.split())).collect();
        let age = if self.rows < YOUNG_BATCH_ROWS { Age::Young } else { Age::Settled };
        let mut block = Block::of_bytes(self.rows, age, columns, Seqs::One(self.seq));
        block.first = first;
        self.rows = 0;
        Some((block, std::mem::take(&mut self.bytes)))
    }

    /// Bytes that blocks made of gathered rows hold in chunks and do not use; `last`: no rows come any more.
    pub(super) fn take_slack(&mut self, last: bool) -> u64 {
        let slack = |column: &mut ColumnBuffer| if last { column.final_slack() } else { column.take_slack() };
        self.columns.iter_mut().map(slack).sum()
    }
}
