//! Packing: runs of young blocks copied together, so that rows that came singly cost what rows in thousands cost.
//!
//! Two steps: enough young blocks become one packed block, enough packed rows become one chunk of about 4,096 rows, so a
//! row is copied twice at most. The writer calls [`Blocks::pack_if_due`] after the publication section; whoever comes
//! while another packs goes on without waiting. Invariant: readers see the old blocks or the new one, never neither.

use super::blocks::{Age, Block, Blocks, Directory, SeqRun};
use crate::error::Result;
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

impl Directory {
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
        let young = open.iter().rev().take_while(|b| b.age == Age::Young);
        let (mut count, mut rows, mut bytes) = (0, 0, 0);
        for block in young {
            count += 1;
            rows += block.rows;
            bytes += block.bytes.data;
        }
        if count < YOUNG_BLOCKS && rows < YOUNG_ROWS && bytes < YOUNG_BYTES {
            return None;
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
        let columns: Result<Box<[Option<ArrayRef>]>> = (0..blocks[0].columns.len())
            .map(|column| {
                let arrays: Option<Vec<&dyn Array>> = blocks.iter().map(|b| b.columns[column].as_deref()).collect();
                arrays.map(|arrays| copied(&arrays)).transpose()
            })
            .collect();
        let mut seqs: Vec<SeqRun> = Vec::new();
        for block in blocks {
            for run in &block.seqs {
                let row = block.first - first + run.row;
                let follows = seqs.last().is_some_and(|last| last.seq.plus(u64::from(row - last.row)) == run.seq);
                if !follows {
                    seqs.push(SeqRun { row, seq: run.seq });
                }
            }
        }
        let rows = blocks.iter().map(|b| b.rows).sum();
        Block::new(&self.schema, first, rows, age, columns?, seqs.into())
    }
}

/// The arrays one after the other, in buffers of their own that pin none of the arrays'.
fn copied(arrays: &[&dyn Array]) -> Result<ArrayRef> {
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
