//! A column that one thread fills: values go into chunks that it owns, batches are split off without a copy.
//!
//! `table/appender` pushes checked values and, at a commit, takes the batch's [`ColumnBytes`]: the thread goes on behind
//! them in the same chunk, so a commit costs a few reference counts, not an allocation per column. Invariant: what was
//! split off is never written again.

use super::chunk_pool::ChunkPool;
use super::column_bytes::{Bits, ColumnBytes, Layout};
use crate::store::map::advise_huge;
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use bytes::{Buf, Bytes, BytesMut};
use std::sync::Arc;

/// Size of a column's first chunk; each next one is twice as large,
const FIRST_CHUNK_BYTES: usize = 16 << 10;
/// up to this or what the memtable's size allows.
const CHUNK_BYTES: usize = 32 << 20;
/// Chunks from this size on are advised to lie in huge pages.
const HUGE_BYTES: usize = 2 << 20;
/// Chunks begin at a multiple of this, whatever the allocator gives.
const ALIGNMENT: usize = 64;

/// Bytes that grow inside a chunk.
#[derive(Debug)]
struct Chunk {
    pool: Arc<ChunkPool>,
    bytes: BytesMut,
    next_bytes: usize,
    max_bytes: usize,
    /// Whether a batch in a memtable holds a part of it.
    is_shared: bool,
    /// Bytes of earlier chunks, held by batches, that no row uses.
    slack: u64,
}

impl Chunk {
    /// None yet; takes no memory.
    fn new(pool: &Arc<ChunkPool>, max_bytes: usize) -> Self {
        let (pool, bytes) = (Arc::clone(pool), BytesMut::new());
        Self { pool, bytes, next_bytes: 0, max_bytes, is_shared: false, slack: 0 }
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    #[inline]
    fn reserve(&mut self, more: usize) {
        if self.bytes.capacity() - self.bytes.len() < more {
            self.renew(more);
        }
    }

    /// Goes on in a new chunk, with the rows of the batch that is being filled.
    #[cold]
    fn renew(&mut self, more: usize) {
        self.slack += self.remainder();
        let used = self.bytes.len();
        let next = self.next_bytes.max(FIRST_CHUNK_BYTES);
        self.next_bytes = (next * 2).min(self.max_bytes);
        let capacity = next.max((used + more).next_power_of_two());
        let (mut fresh, is_new) = self.pool.lend(capacity + ALIGNMENT);
        if is_new && capacity >= HUGE_BYTES {
            advise_huge(fresh.spare_capacity_mut());
        }
        let padding = fresh.as_ptr().align_offset(ALIGNMENT);
        if padding < ALIGNMENT {
            fresh.resize(padding, 0);
            fresh.advance(padding);
        }
        fresh.extend_from_slice(&self.bytes);
        self.bytes = fresh;
        self.is_shared = false;
    }

    fn split(&mut self) -> Bytes {
        self.is_shared = true;
        self.bytes.split().freeze()
    }

    /// Bytes that would be held unused if this chunk were left now.
    fn remainder(&self) -> u64 {
        if self.is_shared { self.bytes.capacity() as u64 } else { 0 }
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct ColumnBuffer {
    layout: Layout,
    rows: usize,
    values: Chunk,
    offsets: Chunk,
    /// Of a [`Layout::Bits`] column.
    bits: Bits,
    /// Empty until the batch has a null.
    validity: Bits,
}

impl ColumnBuffer {
    /// An empty column for memtables of about `memtable_bytes`; no memory is taken before the first row.
    pub(crate) fn new(layout: Layout, memtable_bytes: u64, pool: &Arc<ChunkPool>) -> Self {
        let max_bytes = usize::try_from(memtable_bytes / 64).unwrap_or(CHUNK_BYTES);
        Self::of(layout, max_bytes.clamp(FIRST_CHUNK_BYTES, CHUNK_BYTES), pool)
    }

    /// An empty column of the same layout and limits.
    pub(crate) fn like(&self) -> Self {
        Self::of(self.layout, self.values.max_bytes, &self.values.pool)
    }

    fn of(layout: Layout, max_bytes: usize, pool: &Arc<ChunkPool>) -> Self {
        let (values, offsets) = (Chunk::new(pool, max_bytes), Chunk::new(pool, max_bytes));
        Self { layout, rows: 0, values, offsets, bits: Bits::default(), validity: Bits::default() }
    }

    /// How its rows lie.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Appends a value: exactly the layout's width of bytes, or any number for a layout with offsets.
    #[inline]
    pub(crate) fn push(&mut self, value: &[u8]) {
        match self.layout {
            Layout::Fixed(width) => debug_assert_eq!(value.len(), width, "checked before"),
            Layout::Offsets32 | Layout::Offsets64 => self.push_offset(value.len()),
            Layout::Bits => debug_assert!(false, "bits are pushed as such"),
        }
        self.values.extend(value);
        self.note(true);
    }

    /// Appends a value given by its elements' bytes; together they are as long as the layout's width.
    pub(crate) fn push_elements<const N: usize>(&mut self, elements: impl ExactSizeIterator<Item = [u8; N]>) {
        self.values.reserve(elements.len() * N);
        elements.for_each(|element| self.values.bytes.extend_from_slice(&element));
        self.note(true);
    }

    /// Appends a bit.
    pub(crate) fn push_bit(&mut self, value: bool) {
        self.bits.push(value);
        self.note(true);
    }

    /// Appends a null.
    pub(crate) fn push_null(&mut self) {
        match self.layout {
            Layout::Fixed(width) => {
                let zeros = [0; 64];
                let mut left = width;
                while left > 0 {
                    let step = left.min(zeros.len());
                    self.values.extend(&zeros[..step]);
                    left -= step;
                }
            }
            Layout::Bits => self.bits.push(false),
            Layout::Offsets32 | Layout::Offsets64 => self.push_offset(0),
        }
        self.note(false);
    }

    #[inline]
    fn push_offset(&mut self, value_bytes: usize) {
        let end = (self.values.bytes.len() + value_bytes) as u64;
        let narrow = self.layout == Layout::Offsets32;
        if self.rows == 0 {
            self.offsets.extend(&[0; 8][..if narrow { 4 } else { 8 }]);
        }
        match narrow {
            true => self.offsets.extend(&(end as u32).to_le_bytes()),
            false => self.offsets.extend(&end.to_le_bytes()),
        }
    }

    #[inline]
    fn note(&mut self, valid: bool) {
        if !valid || self.validity.len() > 0 {
            let before = self.rows - self.validity.len();
            self.validity.fill(true, before);
            self.validity.push(valid);
        }
        self.rows += 1;
    }

    /// Appends the rows that another column of the same layout holds; gives the bytes copied. Copies them.
    pub(crate) fn append(&mut self, other: &Self) -> u64 {
        debug_assert_eq!(self.layout, other.layout, "columns of one schema");
        let before = self.values.bytes.len() + self.offsets.bytes.len();
        match self.layout {
            Layout::Fixed(_) => {}
            Layout::Bits => self.bits.extend(&other.bits.bytes, other.rows),
            Layout::Offsets32 => self.append_offsets::<4>(other),
            Layout::Offsets64 => self.append_offsets::<8>(other),
        }
        self.values.extend(&other.values.bytes);
        if other.validity.len() > 0 || self.validity.len() > 0 {
            let missing = self.rows - self.validity.len();
            self.validity.fill(true, missing);
            match other.validity.len() {
                0 => self.validity.fill(true, other.rows),
                _ => self.validity.extend(&other.validity.bytes, other.rows),
            }
        }
        self.rows += other.rows;
        (self.values.bytes.len() + self.offsets.bytes.len() - before) as u64
    }

    fn append_offsets<const WIDTH: usize>(&mut self, other: &Self) {
        let base = self.values.bytes.len() as u64;
        if self.rows == 0 {
            self.offsets.extend(&[0; WIDTH]);
        }
        self.offsets.reserve(other.rows * WIDTH);
        for offset in other.offsets.bytes.chunks_exact(WIDTH).skip(1) {
            let mut word = [0; 8];
            word[..WIDTH].copy_from_slice(offset);
            let moved = base + u64::from_le_bytes(word);
            self.offsets.bytes.extend_from_slice(&moved.to_le_bytes()[..WIDTH]);
        }
    }

    /// Appends all rows of an array of the column's stored type. Copies them.
    pub(crate) fn extend(&mut self, array: &ArrayRef) {
        let rows = array.len();
        match (self.layout, array.data_type()) {
            (Layout::Bits, _) => {
                let bits = array.as_boolean();
                (0..rows).for_each(|row| self.push_or_null(array, row, |own| own.push_bit(bits.value(row))));
            }
            (Layout::Offsets32, DataType::Utf8) => {
                let values = array.as_string::<i32>();
                (0..rows).for_each(|row| self.push_or_null(array, row, |own| own.push(values.value(row).as_bytes())));
            }
            (Layout::Offsets32, _) => {
                let values = array.as_binary::<i32>();
                (0..rows).for_each(|row| self.push_or_null(array, row, |own| own.push(values.value(row))));
            }
            (Layout::Offsets64, DataType::LargeUtf8) => {
                let values = array.as_string::<i64>();
                (0..rows).for_each(|row| self.push_or_null(array, row, |own| own.push(values.value(row).as_bytes())));
            }
            (Layout::Offsets64, _) => {
                let values = array.as_binary::<i64>();
                (0..rows).for_each(|row| self.push_or_null(array, row, |own| own.push(values.value(row))));
            }
            (Layout::Fixed(width), data_type) => {
                let data = match data_type {
                    DataType::FixedSizeList(_, _) => array.as_fixed_size_list().values().to_data(),
                    _ => array.to_data(),
                };
                let element = match data_type {
                    DataType::FixedSizeList(_, dim) => width / usize::try_from(*dim).unwrap_or(1).max(1),
                    _ => width,
                };
                let first = data.offset() * element;
                self.values.extend(&data.buffers()[0].as_slice()[first..first + rows * width]);
                match array.null_count() {
                    0 if self.validity.len() == 0 => self.rows += rows,
                    _ => (0..rows).for_each(|row| self.note(array.is_valid(row))),
                }
            }
        }
    }

    fn push_or_null(&mut self, array: &ArrayRef, row: usize, push: impl FnOnce(&mut Self)) {
        if array.is_valid(row) { push(self) } else { self.push_null() }
    }

    /// Takes the batch: all rows since the last split.
    pub(crate) fn split(&mut self) -> ColumnBytes {
        self.rows = 0;
        let validity = (self.validity.len() > 0).then(|| Bytes::from(std::mem::take(&mut self.validity).bytes));
        if self.layout == Layout::Bits {
            return ColumnBytes { validity, offsets: None, values: std::mem::take(&mut self.bits).bytes.into() };
        }
        let has_offsets = matches!(self.layout, Layout::Offsets32 | Layout::Offsets64);
        ColumnBytes { validity, offsets: has_offsets.then(|| self.offsets.split()), values: self.values.split() }
    }

    /// Drops all rows since the last split.
    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.values.bytes.clear();
        self.offsets.bytes.clear();
        self.bits.clear();
        self.validity.clear();
    }

    /// Bytes of chunks left behind, held by batches, that no row uses; counts from 0 again.
    pub(crate) fn take_slack(&mut self) -> u64 {
        std::mem::take(&mut self.values.slack) + std::mem::take(&mut self.offsets.slack)
    }

    /// [`ColumnBuffer::take_slack`] if the column is dropped now.
    pub(crate) fn final_slack(&mut self) -> u64 {
        self.take_slack() + self.values.remainder() + self.offsets.remainder()
    }
}
