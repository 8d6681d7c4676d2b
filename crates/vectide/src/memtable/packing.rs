//! Packing: runs of young blocks copied together, so that rows that came singly cost what rows in thousands cost.
//!
//! Two steps: enough young blocks become one packed block, enough packed rows become one chunk of about 4,096 rows, so a
//! row is copied twice at most. Small batches of appenders are cheap to hold, so that more of them gather and one copy
//! settles them. The writer calls [`Blocks::pack_if_due`] after the publication section; whoever comes
//! while another packs goes on without waiting. Invariant: readers see the old blocks or the new one, never neither.

use super::blocks::{Age, Block, Blocks, Content, Directory, SeqRun, Seqs, Young};
use super::column_bytes::{ColumnBytes, Layout};
use crate::error::{Error, Result};
use arrow::array::{Array, ArrayRef, AsArray, MutableArrayData, make_array};
use arrow::datatypes::DataType;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rows of a full chunk: those of a record batch in `rows.arrow`.
pub(super) const CHUNK_ROWS: u32 = 4096;
/// Young blocks are packed once there are this many of them,
const YOUNG_BLOCKS: usize = 64;
/// or they have this many rows,
const YOUNG_ROWS: u32 = 1024;
/// or pin this many bytes.
const YOUNG_BYTES: u64 = 256 << 10;
/// An appender's batch of fewer rows is young; the handles of one of more cost less than a copy of it.
pub(super) const YOUNG_BATCH_ROWS: u32 = 16;
/// Young blocks of appenders are packed once there are this many of them, or a full chunk of rows, or so many bytes.
const YOUNG_BYTES_BLOCKS: usize = 512;
const YOUNG_BYTES_BYTES: u64 = 1 << 20;

impl Young {
    fn add(&mut self, block: &Block) {
        self.blocks += 1;
        self.rows += block.rows;
        self.bytes += block.bytes.data;
        self.of_bytes += usize::from(matches!(block.content, Content::Bytes(_)));
    }

    /// Whether it is an appender's bytes alone: one copy then settles them.
    fn is_bytes(&self) -> bool {
        self.of_bytes == self.blocks
    }

    fn is_due(&self) -> bool {
        match self.is_bytes() {
            true => self.blocks >= YOUNG_BYTES_BLOCKS || self.rows >= CHUNK_ROWS || self.bytes >= YOUNG_BYTES_BYTES,
            false => self.blocks >= YOUNG_BLOCKS || self.rows >= YOUNG_ROWS || self.bytes >= YOUNG_BYTES,
        }
    }
}

impl Directory {
    /// Takes a block that is about to be appended into account; whether something is due then.
    pub(super) fn note(&mut self, block: &Block) -> bool {
        match block.age {
            Age::Settled => {
                self.young = Young::default();
                self.unsettled > 0
            }
            Age::Packed => {
                self.young = Young::default();
                self.unsettled += 1;
                false
            }
            Age::Young => {
                self.young.add(block);
                self.unsettled += 1;
                self.young.is_due()
            }
        }
    }

    /// Counts again, after blocks were replaced.
    fn recount(&mut self) {
        let open = &self.blocks[self.open..];
        self.unsettled = open.iter().filter(|b| b.age != Age::Settled).count();
        self.young = Young::default();
        open.iter().rev().take_while(|b| b.age == Age::Young).for_each(|b| self.young.add(b));
    }

    /// The blocks to copy together next, and what they become.
    pub(super) fn due(&self) -> Option<(Range<usize>, Age)> {
        let settled = |b: &&Arc<Block>| b.age == Age::Settled;
        let first = self.open + self.blocks[self.open..].iter().take_while(settled).count();
        let open = &self.blocks[first..];
        if let Some(length) = open.iter().position(|b| settled(&b)) {
            // A big batch ended the run: it will not grow any more.
            return Some((first..first + length, Age::Settled));
        }
        let end = self.blocks.len();
        if !self.young.is_due() {
            return None;
        }
        let count = self.young.blocks;
        if self.young.is_bytes() {
            return Some((end - count..end, Age::Settled));
        }
        let all = self.blocks.last()?.range().end - open.first()?.first;
        if all >= CHUNK_ROWS { Some((first..end, Age::Settled)) } else { Some((end - count..end, Age::Packed)) }
    }
}

impl Blocks {
    /// Packs what is due, unless another thread is at it. Never called inside the publication section.
    pub(super) fn pack_if_due(&self) -> Result<()> {
        // ORDERING: Relaxed: a hint, see `push`.
        if !self.due.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(_packing) = self.packing.try_lock() else {
            return Ok(());
        };
        self.due.store(false, Ordering::Relaxed);
        while let Some((range, age)) = self.next_due() {
            let old = self.directory.read().blocks[range.clone()].to_vec();
            let merged = Arc::new(self.merge(&old, age)?);
            // Only the holder of `packing` removes blocks and a push only appends, so the range is still theirs.
            self.count(merged.bytes, Default::default());
            let mut directory = self.directory.write();
            directory.blocks.splice(range, [merged]);
            directory.recount();
            drop(directory);
            for block in &old {
                self.count(Default::default(), block.bytes);
            }
        }
        Ok(())
    }

    /// Steps over settled blocks, then asks what is due.
    fn next_due(&self) -> Option<(Range<usize>, Age)> {
        let mut directory = self.directory.write();
        let settled = directory.blocks[directory.open..].iter();
        directory.open += settled.take_while(|b| b.age == Age::Settled).count();
        directory.due()
    }

    fn merge(&self, blocks: &[Arc<Block>], age: Age) -> Result<Block> {
        let first = blocks[0].first;
        let mut runs: Vec<SeqRun> = Vec::new();
        for block in blocks {
            block.seqs.for_each(|run| {
                let row = block.first - first + run.row;
                let follows = runs.last().is_some_and(|last| last.seq.plus(u64::from(row - last.row)) == run.seq);
                if !follows {
                    runs.push(SeqRun { row, seq: run.seq });
                }
            });
        }
        let (seqs, rows) = (Seqs::of(runs), blocks.iter().map(|b| b.rows).sum());
        if let Some(columns) = self.concat(blocks)? {
            let mut block = Block::of_bytes(rows, age, columns, seqs);
            block.first = first;
            return Ok(block);
        }
        let columns: Result<Box<[Option<ArrayRef>]>> = (0..blocks[0].content.len())
            .map(|column| {
                let arrays: Result<Option<Vec<ArrayRef>>> =
                    blocks.iter().map(|b| b.column(&self.schema, column)).collect();
                let arrays = arrays?;
                arrays.map(|arrays| copied(&arrays.iter().map(|a| &**a).collect::<Vec<_>>())).transpose()
            })
            .collect();
        Block::new(&self.schema, first, rows, age, columns?, seqs)
    }

    /// The columns of blocks that all are appenders' bytes, copied together; `None` if one is not.
    fn concat(&self, blocks: &[Arc<Block>]) -> Result<Option<Box<[Option<ColumnBytes>]>>> {
        let mut all = Vec::with_capacity(blocks.len());
        for block in blocks {
            let Content::Bytes(columns) = &block.content else { return Ok(None) };
            all.push((columns, block.rows as usize));
        }
        let column = |at: usize| {
            let parts: Option<Vec<(&ColumnBytes, usize)>> =
                all.iter().map(|(columns, rows)| columns[at].as_ref().map(|column| (column, *rows))).collect();
            let layout = || {
                let data_type = self.schema.stored().field(at).data_type();
                Layout::of(data_type).ok_or_else(|| Error::internal(format!("bytes of a column of type {data_type}")))
            };
            parts.map(|parts| ColumnBytes::concat(layout()?, &parts)).transpose()
        };
        (0..blocks[0].content.len()).map(column).collect::<Result<_>>().map(Some)
    }
}

/// The arrays one after the other, in buffers of their own that pin none of the arrays'.
pub(crate) fn copied(arrays: &[&dyn Array]) -> Result<ArrayRef> {
    let data: Vec<_> = arrays.iter().map(|a| a.to_data()).collect();
    let rows = data.iter().map(|d| d.len()).sum();
    let nulls = data.iter().any(|d| d.null_count() > 0);
    let mut copy = MutableArrayData::new(data.iter().collect(), nulls, rows);
    for (index, data) in data.iter().enumerate() {
        copy.try_extend(index, 0, data.len())?;
    }
    let mut copy = make_array(copy.freeze());
    copy = match copy.data_type() {
        // Views still point into the buffers that they came from.
        DataType::Utf8View => Arc::new(copy.as_string_view().gc()),
        DataType::BinaryView => Arc::new(copy.as_binary_view().gc()),
        _ => copy,
    };
    Ok(copy)
}
