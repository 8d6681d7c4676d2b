//! A memtable's columns other than vectors: blocks of rows in offset order, and the packing of small ones.
//!
//! [`Blocks::push`] appends a block inside the publication section; reads clone the blocks they need under a lock that
//! is held for a moment. A block of a small batch is *young*: a view that pins its whole frame, vectors included, and
//! costs a kilobyte or two of array headers. [`Blocks::pack_if_due`] (see [`packing`](super::packing)), called outside
//! the section, copies runs of young blocks together. An appender's batch of more than a few rows stays where its thread
//! wrote it (decision 0007). Invariant: blocks are contiguous from offset 0 on, and what a row
//! holds never changes, only which block holds it.

use super::column_buffer::ColumnBuffer;
use super::column_bytes::ColumnBytes;
use super::gathered::Gathered;
use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::keys::KeyArray;
use crate::schema::TableSchema;
use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer;
use arrow::record_batch::RecordBatch;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
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

/// A block's columns, by position in the stored schema; `None` for vector columns.
#[derive(Debug)]
pub(super) enum Content {
    /// As arrays.
    Arrays(Box<[Option<ArrayRef>]>),
    /// As an appender left them, made arrays when they are read. Key-less tables only: a look-up by key wants arrays.
    Bytes(Box<[Option<ColumnBytes>]>),
}

impl Content {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Arrays(columns) => columns.len(),
            Self::Bytes(columns) => columns.len(),
        }
    }
}

/// A block's runs of seqs; the first begins at row 0.
#[derive(Debug)]
pub(super) enum Seqs {
    /// One run, from this seq on.
    One(Seq),
    /// Several, ascending.
    Runs(Box<[SeqRun]>),
}

impl Seqs {
    pub(super) fn of(runs: Vec<SeqRun>) -> Self {
        match runs[..] {
            [SeqRun { row: 0, seq }] => Self::One(seq),
            _ => Self::Runs(runs.into()),
        }
    }

    /// Calls `each` with every run.
    pub(super) fn for_each(&self, mut each: impl FnMut(SeqRun)) {
        match self {
            Self::One(seq) => each(SeqRun { row: 0, seq: *seq }),
            Self::Runs(runs) => runs.iter().copied().for_each(each),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::One(_) => 0,
            Self::Runs(runs) => size_of_val(&**runs) as u64,
        }
    }
}

/// Consecutive rows.
#[derive(Debug)]
pub(super) struct Block {
    /// Offset of the first row in the memtable.
    pub(super) first: u32,
    pub(super) rows: u32,
    pub(super) age: Age,
    pub(super) content: Content,
    pub(super) keys: Option<KeyArray>,
    pub(super) seqs: Seqs,
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
        let mut block = Self::new(schema, 0, part.num_rows() as u32, age, columns, Seqs::One(Seq(0)))?;
        block.bytes.data = pinned.data;
        Ok(block)
    }

    /// The columns of one batch of an appender, in a key-less table; `first` and `seqs` are set when it is linked.
    pub(super) fn of_bytes(rows: u32, age: Age, columns: Box<[Option<ColumnBytes>]>, seqs: Seqs) -> Self {
        let data = columns.iter().flatten().map(ColumnBytes::bytes).sum();
        let headers = (2 * size_of::<usize>() + size_of::<Self>() + size_of_val(&*columns)) as u64 + seqs.bytes();
        let bytes = BlockBytes { data, headers };
        Self { first: 0, rows, age, content: Content::Bytes(columns), keys: None, seqs, bytes }
    }

    /// The column at `column` in the stored schema as an array; `None` for a vector column.
    pub(super) fn column(&self, schema: &TableSchema, column: usize) -> Result<Option<ArrayRef>> {
        match &self.content {
            Content::Arrays(columns) => Ok(columns.get(column).cloned().flatten()),
            Content::Bytes(columns) => match columns.get(column) {
                Some(Some(bytes)) => {
                    bytes.array(schema.stored().field(column).data_type(), self.rows as usize).map(Some)
                }
                _ => Ok(None),
            },
        }
    }

    /// A block that owns or shares `columns`, its bytes counted from them.
    pub(super) fn new(
        schema: &TableSchema,
        first: u32,
        rows: u32,
        age: Age,
        columns: Box<[Option<ArrayRef>]>,
        seqs: Seqs,
    ) -> Result<Self> {
        let keys = match schema.key() {
            Some(key) => columns[key.index].as_deref().map(KeyArray::new).transpose()?,
            None => None,
        };
        let mut bytes = BlockBytes::default();
        bytes.add_buffers(columns.iter().flatten());
        bytes.add_headers(&columns);
        bytes.headers += seqs.bytes();
        Ok(Self { first, rows, age, content: Content::Arrays(columns), keys, seqs, bytes })
    }

    /// Offsets of its rows.
    pub(super) fn range(&self) -> Range<u32> {
        self.first..self.first + self.rows
    }

    /// The seq of its row number `row`.
    pub(super) fn seq(&self, row: u32) -> Seq {
        match &self.seqs {
            Seqs::One(seq) => seq.plus(u64::from(row)),
            Seqs::Runs(runs) => {
                let run = runs[runs.partition_point(|run| run.row <= row) - 1];
                run.seq.plus(u64::from(row - run.row))
            }
        }
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

    fn add_headers(&mut self, columns: &[Option<ArrayRef>]) {
        const COUNTS: usize = 2 * size_of::<usize>();
        let arrays: usize =
            columns.iter().flatten().map(|a| COUNTS + a.get_array_memory_size() - a.get_buffer_memory_size()).sum();
        let own = COUNTS + size_of::<Block>() + size_of_val(columns);
        self.headers += (own + arrays) as u64;
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
    /// The run of young blocks at the end.
    pub(super) young: Young,
    /// Blocks that are not settled.
    pub(super) unsettled: usize,
    /// Rows behind the last block that are no block yet.
    gathered: Gathered,
}

/// A run of young blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Young {
    pub(super) blocks: usize,
    pub(super) rows: u32,
    pub(super) bytes: u64,
    /// How many of them hold an appender's bytes.
    pub(super) of_bytes: usize,
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

    /// Appends a block that nobody else holds yet at `first`, where the last one ends.
    pub(super) fn push(&self, mut block: Arc<Block>, first: u32, seq: Seq) {
        let fresh = Arc::get_mut(&mut block).expect("a block is shared once it is linked");
        fresh.first = first;
        fresh.seqs = Seqs::One(seq);
        let mut directory = self.directory.write();
        self.make_block(&mut directory);
        self.count(block.bytes, BlockBytes::default());
        self.append(&mut directory, block);
    }

    fn append(&self, directory: &mut Directory, block: Arc<Block>) {
        let before = directory.blocks.capacity();
        if directory.note(&block) {
            // ORDERING: Relaxed: a hint; `pack_if_due` looks again under the lock.
            self.due.store(true, Ordering::Relaxed);
        }
        directory.blocks.push(block);
        let grown = directory.blocks.capacity() - before;
        if grown > 0 {
            self.count_directory(grown);
        }
    }

    /// Copies the rows of an appender's columns behind the last row, which is at `first - 1`.
    pub(super) fn gather(&self, columns: &[ColumnBuffer], rows: u32, first: u32, seq: Seq) {
        let mut directory = self.directory.write();
        if !directory.gathered.is_followed_by(seq) {
            self.make_block(&mut directory);
        }
        let data = directory.gathered.append(columns, rows, first, seq);
        self.count(BlockBytes { data, headers: 0 }, BlockBytes::default());
        if directory.gathered.is_due() {
            self.make_block(&mut directory);
        }
    }

    /// Makes a block of the gathered rows.
    fn make_block(&self, directory: &mut Directory) {
        let Some((block, data)) = directory.gathered.take() else { return };
        self.count(block.bytes, BlockBytes { data, headers: 0 });
        self.count_slack(directory.gathered.take_slack(false));
        self.append(directory, Arc::new(block));
    }

    /// No row comes any more.
    pub(super) fn close(&self) {
        let mut directory = self.directory.write();
        self.make_block(&mut directory);
        self.count_slack(directory.gathered.take_slack(true));
        directory.gathered = Gathered::default();
    }

    /// The directory with a block for every row below `end`.
    fn directory_to(&self, end: u32) -> RwLockReadGuard<'_, Directory> {
        let directory = self.directory.read();
        if directory.gathered.first().is_none_or(|first| end <= first) {
            return directory;
        }
        drop(directory);
        self.make_block(&mut self.directory.write());
        self.directory.read()
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

    /// Whether [`Blocks::pack_if_due`] has something to do.
    pub(super) fn is_due(&self) -> bool {
        // ORDERING: Relaxed: a hint, see `push`.
        self.due.load(Ordering::Relaxed)
    }

    /// Counts heap bytes that no block counts: what an appender left unused of its chunks.
    pub(super) fn count_slack(&self, bytes: u64) {
        self.count(BlockBytes { data: bytes, headers: 0 }, BlockBytes::default());
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
        let directory = self.directory_to(offsets.iter().max().map_or(0, |last| last + 1));
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
        let directory = self.directory_to(range.end);
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
    pub(super) fn column(&self, schema: &TableSchema, column: usize) -> Result<ArrayRef> {
        let arrays: Vec<ArrayRef> =
            self.blocks.iter().map(|block| plain_column(schema, block, column)).collect::<Result<_>>()?;
        let arrays: Vec<&dyn Array> = arrays.iter().map(|a| a.as_ref()).collect();
        Ok(arrow::compute::interleave(&arrays, &self.rows)?)
    }
}

/// The values of `range` of the column at `column`, from the blocks that overlap it.
pub(super) fn column_range(
    schema: &TableSchema,
    blocks: &[Arc<Block>],
    column: usize,
    range: &Range<u32>,
) -> Result<ArrayRef> {
    let mut slices = Vec::with_capacity(blocks.len());
    for block in blocks {
        let (from, to) = (range.start.max(block.first), range.end.min(block.range().end));
        let array = plain_column(schema, block, column)?;
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

fn plain_column(schema: &TableSchema, block: &Block, column: usize) -> Result<ArrayRef> {
    let array = block.column(schema, column)?;
    array.ok_or_else(|| Error::internal(format!("column {column} is not among the blocks'")))
}
