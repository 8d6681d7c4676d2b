//! A memtable's vectors: blocks are appended, rows are read by id, at the same
//! time. A row is one pointer (and one norm under cosine) in a segment of rows;
//! it never moves, so readers take no lock.
//!
//! Invariant: a row's pointer is stored after the row's elements and norm, and
//! `len` after all pointers of its block. Whoever reads either sees what it
//! covers.

use super::block::VectorBlock;
use super::{VectorRow, Vectors};
use crate::distance::Element;
use crate::error::GraphError;
use crate::params::Metric;
use crate::segments::Segments;
use crate::shared::Shared;
use crate::sync::{AtomicPtr, AtomicU32, Mutex, Ordering};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Rows per segment of pointers.
const SEGMENT_ROWS: usize = if cfg!(loom) { 2 } else { 1024 };

/// Arena chunks begin small, for tables that stay small, and double up to this.
const FIRST_CHUNK_BYTES: usize = 8 << 10;
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes of a [`VectorTable`], exact at rest. Borrowed rows belong to their
/// owners and are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VectorTableBytes {
    /// Pointers, norms and block owners.
    pub bookkeeping: usize,
    /// Chunks that copied rows lie in.
    pub arena: usize,
}

/// `[len, dim]` vectors by row id; append-only.
pub struct VectorTable<E: Element> {
    dim: usize,
    metric: Metric,
    segments: Segments<Segment<E>>,
    len: AtomicU32,
    appender: Mutex<Appender<E>>,
    bookkeeping_bytes: AtomicUsize,
    arena_bytes: AtomicUsize,
}

struct Segment<E> {
    /// Null for a null row, and for one that is not there yet.
    rows: Box<[AtomicPtr<E>]>,
    /// f32 bits, under cosine; otherwise empty.
    inv_norms: Box<[AtomicU32]>,
}

/// What only the appending thread touches.
struct Appender<E> {
    chunks: Vec<Chunk<E>>,
    owners: Vec<Shared<E>>,
}

/// Memory for rows, filled from the front, never moved.
struct Chunk<E> {
    at: *mut E,
    capacity: usize,
    used: usize,
}

impl<E: Element> Chunk<E> {
    fn allocate(capacity: usize) -> Self {
        let mut memory = ManuallyDrop::new(Vec::<E>::with_capacity(capacity));
        Self { at: memory.as_mut_ptr(), capacity: memory.capacity(), used: 0 }
    }

    /// Copies a row to the end; `None` when it does not fit.
    fn push(&mut self, row: &[E]) -> Option<*mut E> {
        if self.capacity - self.used < row.len() {
            return None;
        }
        // SAFETY: 1. `used + row.len() <= capacity`, so the target is within the
        // chunk's allocation; 2. no pointer to this part was handed out yet, so
        // nobody reads it; 3. a caller's row cannot lie in it.
        let target = unsafe {
            let target = self.at.add(self.used);
            ptr::copy_nonoverlapping(row.as_ptr(), target, row.len());
            target
        };
        self.used += row.len();
        Some(target)
    }
}

impl<E> Drop for Chunk<E> {
    fn drop(&mut self) {
        // SAFETY: pointer and capacity are those of the Vec that `allocate`
        // leaked; elements are Copy, so length 0 drops the memory and no more.
        drop(unsafe { Vec::from_raw_parts(self.at, 0, self.capacity) });
    }
}

// SAFETY: a chunk owns its memory, and its elements are Send and Sync; readers
// reach them only through pointers published after they were written.
unsafe impl<E: Element> Send for Chunk<E> {}

impl<E: Element> VectorTable<E> {
    /// An empty table. Allocates nothing to speak of; grows with its rows.
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a dimension of 0.
    pub fn new(dim: u32, metric: Metric) -> Result<Self, GraphError> {
        if dim == 0 {
            return Err(GraphError::Setting { name: "dim", expected: "at least 1", got: 0 });
        }
        Ok(Self {
            dim: dim as usize,
            metric,
            segments: Segments::new(),
            len: AtomicU32::new(0),
            appender: Mutex::new(Appender { chunks: Vec::new(), owners: Vec::new() }),
            bookkeeping_bytes: AtomicUsize::new(0),
            arena_bytes: AtomicUsize::new(0),
        })
    }

    /// The metric that norms are kept for.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Adds a block and returns the id of its first row; the rows are readable
    /// on return. O(rows) pointer stores, and the rows' bytes if they are to be
    /// copied. One appender at a time gets on; others wait.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] for a block of another dimension or metric,
    /// [`GraphError::Full`] when the ids run out. Nothing was appended then.
    pub fn append(&self, block: VectorBlock<E>) -> Result<u32, GraphError> {
        if block.dim != self.dim || block.metric != self.metric {
            return Err(GraphError::Mismatch {
                what: "the block of vectors",
                expected: format!("dimension {}, {:?}", self.dim, self.metric),
                got: format!("dimension {}, {:?}", block.dim, block.metric),
            });
        }
        let mut appender = self.appender.lock();
        // ORDERING: Relaxed; only an appender stores it, under this lock.
        let first = self.len.load(Ordering::Relaxed);
        let end = first.checked_add(block.rows).ok_or(GraphError::Full)?;
        for row in 0..block.rows as usize {
            let at = if block.is_null(row) {
                ptr::null_mut()
            } else if block.copied {
                self.copy(&mut appender, block.row(row))
            } else {
                block.row(row).as_ptr().cast_mut()
            };
            let inv_norm = block.inv_norms.get(row).copied();
            self.publish_row(first as usize + row, at, inv_norm);
        }
        if !block.copied && block.rows > 0 {
            let before = appender.owners.capacity();
            let owner_bytes = block.values.owner_bytes();
            appender.owners.push(block.values);
            let grown = appender.owners.capacity() - before;
            self.bookkeeping_bytes.fetch_add(owner_bytes + grown * size_of::<Shared<E>>(), Relaxed);
        }
        // ORDERING: Release pairs with the Acquire in `len`: a reader that sees
        // the length sees every row below it.
        self.len.store(end, Ordering::Release);
        Ok(first)
    }

    /// Bytes in use; two atomic loads, from any thread.
    pub fn memory_bytes(&self) -> VectorTableBytes {
        VectorTableBytes { bookkeeping: self.bookkeeping_bytes.load(Relaxed), arena: self.arena_bytes.load(Relaxed) }
    }

    fn copy(&self, appender: &mut Appender<E>, row: &[E]) -> *mut E {
        if let Some(at) = appender.chunks.last_mut().and_then(|chunk| chunk.push(row)) {
            return at;
        }
        let doubled = FIRST_CHUNK_BYTES << appender.chunks.len().min(8);
        let elements = doubled.min(CHUNK_BYTES) / size_of::<E>();
        let mut chunk = Chunk::allocate(elements.max(row.len()));
        self.arena_bytes.fetch_add(chunk.capacity * size_of::<E>(), Relaxed);
        let at = chunk.push(row).expect("a new chunk holds at least a row");
        appender.chunks.push(chunk);
        at
    }

    fn publish_row(&self, id: usize, at: *mut E, inv_norm: Option<f32>) {
        let segment = self.segments.get_or_make(id / SEGMENT_ROWS, || self.new_segment());
        let slot = id % SEGMENT_ROWS;
        if let (Some(norm), Some(value)) = (segment.inv_norms.get(slot), inv_norm) {
            // ORDERING: Relaxed; the pointer's Release store below publishes it.
            norm.store(value.to_bits(), Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire in `row`: whoever sees the
        // pointer sees the norm, and the elements if they were copied.
        segment.rows[slot].store(at, Ordering::Release);
    }

    fn new_segment(&self) -> Segment<E> {
        let norms = if self.metric == Metric::Cosine { SEGMENT_ROWS } else { 0 };
        let segment = Segment {
            rows: (0..SEGMENT_ROWS).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            inv_norms: (0..norms).map(|_| AtomicU32::new(0)).collect(),
        };
        let bytes = size_of_val(&*segment.rows) + size_of_val(&*segment.inv_norms);
        self.bookkeeping_bytes.fetch_add(bytes + size_of::<Segment<E>>(), Relaxed);
        segment
    }
}

impl<E: Element> Vectors for VectorTable<E> {
    type Elem = E;

    fn dim(&self) -> usize {
        self.dim
    }

    fn len(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release in `append`.
        self.len.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn row(&self, id: u32) -> Option<VectorRow<'_, E>> {
        let segment = self.segments.get(id as usize / SEGMENT_ROWS)?;
        let slot = id as usize % SEGMENT_ROWS;
        // ORDERING: Acquire pairs with the Release in `publish_row`.
        let at = segment.rows[slot].load(Ordering::Acquire);
        if at.is_null() {
            return None;
        }
        // SAFETY: 1. a row's pointer is to `dim` elements, written before it was
        // published: in a chunk, which lives and stays put as long as the table,
        // or in a block's memory, whose owner the table keeps; 2. nothing writes
        // to a row after it was published.
        let values = unsafe { std::slice::from_raw_parts(at, self.dim) };
        let inv_norm = match segment.inv_norms.get(slot) {
            // ORDERING: Relaxed; written before the pointer that was acquired.
            Some(norm) => f32::from_bits(norm.load(Ordering::Relaxed)),
            None => 1.0,
        };
        Some(VectorRow { values, inv_norm })
    }
}
