//! A memtable's columns other than vectors: blocks of rows in offset order, and the packing of small ones.
//!
//! [`Blocks::push`] appends a block inside the publication section; reads clone the blocks they need under a lock that
//! is held for a moment. A block of a small batch is *young*: a view that pins its whole frame, vectors included, and
//! costs a kilobyte or two of array headers. [`Blocks::pack_if_due`] (see [`packing`](super::packing)), called outside
//! the section, copies runs of young blocks together. Invariant: blocks are contiguous from offset 0 on, and what a row
//! holds never changes, only which block holds it.

use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::keys::KeyArray;
use crate::schema::TableSchema;
use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer;
use arrow::record_batch::RecordBatch;
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a block came about, hence whether it is packed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// A small batch's view of its frame.
    Young,
    /// Some young blocks, copied together.
    Packed,
    /// A big batch's view of its frame, or a full chunk: stays as it is.
    Settled,
}

/// A run of rows whose seqs are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeqRun {
    /// First row of the run, counted within the block.
    pub(super) row: u32,
    /// That row's seq.
    pub(super) seq: Seq,
}

/// Consecutive rows.
#[derive(Debug)]
pub(super) struct Block {
    /// Offset of the first row in the memtable.
    pub(super) first: u32,
    pub(super) rows: u32,
    pub(super) age: Age,
    /// By position in the stored schema; `None` for vector columns.
    pub(super) columns: Box<[Option<ArrayRef>]>,
    pub(super) keys: Option<KeyArray>,
    /// At least one, ascending, the first at row 0.
    pub(super) seqs: Box<[SeqRun]>,
    pub(super) bytes: BlockBytes,
}

/// Heap bytes that a block holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockBytes {
    /// Buffers of values: whole frames for views.
    pub(super) data: u64,
    /// Array headers and the block itself.
    pub(super) headers: u64,
}

impl Block {
    /// The columns of one part; `first` and `seqs` are set when it is linked.
    pub(super) fn of_part(schema: &TableSchema, part: &RecordBatch, settled: bool) -> Result<Self> {
        let age = if settled { Age::Settled } else { Age::Young };
        let mut columns: Box<[_]> = part.columns().iter().cloned().map(Some).collect();
        let mut pinned = BlockBytes::default();
        pinned.add_buffers(columns.iter().flatten());
        for vector in schema.vectors() {
            columns[vector.index] = None;
        }
        let mut block = Self::new(schema, 0, part.num_rows() as u32, age, columns, Box::new([]))?;
        block.bytes.data = pinned.data;
        Ok(block)
    }

    /// A block that owns or shares `columns`, its bytes counted from them.
    pub(super) fn new(
        schema: &TableSchema,
        first: u32,
        rows: u32,
        age: Age,
        columns: Box<[Option<ArrayRef>]>,
        seqs: Box<[SeqRun]>,
    ) -> Result<Self> {
        let keys = match schema.key() {
            Some(key) => columns[key.index].as_deref().map(KeyArray::new).transpose()?,
            None => None,
        };
        let mut bytes = BlockBytes::default();
        bytes.add_buffers(columns.iter().flatten());
        bytes.add_headers(&columns, seqs.len());
        Ok(Self { first, rows, age, columns, keys, seqs, bytes })
    }

    /// Offsets of its rows.
    pub(super) fn range(&self) -> Range<u32> {
        self.first..self.first + self.rows
    }

    /// The seq of its row number `row`.
    pub(super) fn seq(&self, row: u32) -> Seq {
        let run = self.seqs.partition_point(|run| run.row <= row) - 1;
        let run = self.seqs[run];
        run.seq.plus(u64::from(row - run.row))
    }
}

impl BlockBytes {
    /// Adds the allocations that the arrays hold, each once however many buffers point into it.
    fn add_buffers<'a>(&mut self, columns: impl Iterator<Item = &'a ArrayRef>) {
        let mut seen: Vec<(usize, usize)> = Vec::new();
        let mut add = |buffer: &Buffer| {
            seen.push((buffer.data_ptr().as_ptr().addr(), buffer.capacity()));
        };
        for column in columns {
            visit_buffers(&column.to_data(), &mut add);
        }
        seen.sort_unstable();
        seen.dedup_by_key(|(at, _)| *at);
        self.data += seen.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
    }

    fn add_headers(&mut self, columns: &[Option<ArrayRef>], seq_runs: usize) {
        const COUNTS: usize = 2 * size_of::<usize>();
        let arrays: usize =
            columns.iter().flatten().map(|a| COUNTS + a.get_array_memory_size() - a.get_buffer_memory_size()).sum();
        let own = COUNTS + size_of::<Block>() + size_of_val(columns);
        self.headers += (own + arrays + seq_runs * size_of::<SeqRun>()) as u64;
    }
}

fn visit_buffers(data: &arrow::array::ArrayData, visit: &mut impl FnMut(&Buffer)) {
    data.buffers().iter().for_each(&mut *visit);
    if let Some(nulls) = data.nulls() {
        visit(nulls.buffer());
    }
    for child in data.child_data() {
        visit_buffers(child, visit);
    }
}

/// All blocks, in offset order.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) schema: TableSchema,
    pub(super) directory: RwLock<Directory>,
    /// Held by the thread that packs.
    pub(super) packing: Mutex<()>,
    /// Whether a push found that packing is due.
    pub(super) due: AtomicBool,
    data_bytes: AtomicU64,
    header_bytes: AtomicU64,
}

/// What the lock guards.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) blocks: Vec<Arc<Block>>,
    /// Blocks before this position are settled.
    pub(super) open: usize,
}

impl Directory {
    /// The position of the block that holds `offset`, which is below the row count.
    fn position(&self, offset: u32) -> Result<usize> {
        let position = self.blocks.partition_point(|b| b.range().end <= offset);
        if position == self.blocks.len() {
            return Err(Error::internal(format!("the memtable has no row {offset}")));
        }
        Ok(position)
    }
}

impl Blocks {
    pub(super) fn new(schema: TableSchema) -> Self {
        Self {
            schema,
            directory: RwLock::default(),
            packing: Mutex::new(()),
            due: AtomicBool::new(false),
            data_bytes: AtomicU64::new(0),
            header_bytes: AtomicU64::new(0),
        }
    }

    /// Appends a block at `first`, where the last one ends.
    pub(super) fn push(&self, mut block: Block, first: u32, seq: Seq) {
        block.first = first;
        block.seqs = Box::new([SeqRun { row: 0, seq }]);
        block.bytes.headers += size_of::<SeqRun>() as u64;
        self.count(block.bytes, BlockBytes::default());
        let block = Arc::new(block);
        let mut directory = self.directory.write();
        let before = directory.blocks.capacity();
        directory.blocks.push(block);
        let grown = directory.blocks.capacity() - before;
        let due = directory.due().is_some();
        drop(directory);
        self.count_directory(grown);
        if due {
            // ORDERING: Relaxed: a hint; `pack_if_due` looks again under the lock.
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// Counts what was added and what was let go.
    pub(super) fn count(&self, added: BlockBytes, removed: BlockBytes) {
        // ORDERING: Relaxed: statistics; additions wrap so that a difference may be negative.
        let add = |counter: &AtomicU64, added: u64, removed: u64| {
            counter.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
        };
        add(&self.data_bytes, added.data, removed.data);
        add(&self.header_bytes, added.headers, removed.headers);
    }

    fn count_directory(&self, grown: usize) {
        let headers = (grown * size_of::<Arc<Block>>()) as u64;
        let added = BlockBytes { data: 0, headers };
        self.count(added, BlockBytes::default());
    }

    /// Heap bytes held, by two atomic loads.
    pub(super) fn memory(&self) -> BlockBytes {
        BlockBytes { data: self.data_bytes.load(Ordering::Relaxed), headers: self.header_bytes.load(Ordering::Relaxed) }
    }

    /// Whether `is` holds of the key at `offset`.
    pub(super) fn key_at(&self, offset: u32, is: impl FnOnce(&KeyArray, usize) -> bool) -> bool {
        let directory = self.directory.read();
        let Ok(position) = directory.position(offset) else {
            return false;
        };
        let block = &directory.blocks[position];
        let keys = block.keys.as_ref().expect("a keyed table's blocks have keys");
        is(keys, (offset - block.first) as usize)
    }

    /// The blocks that hold `offsets`, and for each offset which of them and which row.
    pub(super) fn locate(&self, offsets: &[u32]) -> Result<Located> {
        let directory = self.directory.read();
        let mut blocks: Vec<Arc<Block>> = Vec::new();
        let mut rows = Vec::with_capacity(offsets.len());
        for &offset in offsets {
            // Neighbours often share a block; one that comes up again later is listed again, which does no harm.
            if !blocks.last().is_some_and(|b| b.range().contains(&offset)) {
                blocks.push(Arc::clone(&directory.blocks[directory.position(offset)?]));
            }
            let at = blocks.len() - 1;
            rows.push((at, (offset - blocks[at].first) as usize));
        }
        Ok(Located { blocks, rows })
    }

    /// The blocks that overlap `range`, in order.
    pub(super) fn overlapping(&self, range: &Range<u32>) -> Result<Vec<Arc<Block>>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let directory = self.directory.read();
        let first = directory.position(range.start)?;
        let last = directory.position(range.end - 1)?;
        Ok(directory.blocks[first..=last].to_vec())
    }
}

/// Where some rows are.
pub(super) struct Located {
    pub(super) blocks: Vec<Arc<Block>>,
    /// (index into `blocks`, row within that block), one per offset.
    pub(super) rows: Vec<(usize, usize)>,
}

impl Located {
    /// The values of the column at `column` in the stored schema, one per offset.
    pub(super) fn column(&self, column: usize) -> Result<ArrayRef> {
        let arrays: Vec<&dyn Array> =
            self.blocks.iter().map(|block| plain_column(block, column).map(|a| a.as_ref())).collect::<Result<_>>()?;
        Ok(arrow::compute::interleave(&arrays, &self.rows)?)
    }
}

/// The values of `range` of the column at `column`, from the blocks that overlap it.
pub(super) fn column_range(blocks: &[Arc<Block>], column: usize, range: &Range<u32>) -> Result<ArrayRef> {
    let mut slices = Vec::with_capacity(blocks.len());
    for block in blocks {
        let (from, to) = (range.start.max(block.first), range.end.min(block.range().end));
        let array = plain_column(block, column)?;
        slices.push(array.slice((from - block.first) as usize, (to - from) as usize));
    }
    match slices.as_slice() {
        [one] => Ok(Arc::clone(one)),
        several => {
            let several: Vec<&dyn Array> = several.iter().map(|a| a.as_ref()).collect();
            Ok(arrow::compute::concat(&several)?)
        }
    }
}

fn plain_column(block: &Block, column: usize) -> Result<&ArrayRef> {
    let array = block.columns.get(column).and_then(Option::as_ref);
    array.ok_or_else(|| Error::internal(format!("column {column} is not among the blocks'")))
}
