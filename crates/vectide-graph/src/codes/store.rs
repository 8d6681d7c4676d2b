//! Where a live graph's codes lie: rows of equal length in chunks that never
//! move, each twice as large as the one before, up to [`MOST`] rows.
//!
//! A chunk's memory is reserved whole and touched 1,024 rows at a time, so that a
//! table pays for what it holds, no insert waits for the system to hand out pages
//! one by one, and large chunks lie in huge pages where the system has them.
//!
//! Invariant: a row is written once, by its inserter, before any link leads to
//! it. So whoever comes by a link, or by the entry point, may read it.

use crate::segments::{Segments, place, span};
use crate::sync::{AtomicUsize, Mutex, Ordering};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Rows of the first chunk, and of the largest.
const FIRST: usize = 64;
const MOST: usize = 16 << 10;
/// Rows that are touched together.
const STEP: usize = 1_024;
/// What chunks of at least this size are aligned to, and advised for.
const HUGE_PAGE: usize = 2 << 20;

/// `[rows, row_bytes] u8` by row id.
pub(crate) struct CodeStore {
    row_bytes: usize,
    chunks: Segments<Chunk>,
}

struct Chunk {
    memory: NonNull<u8>,
    layout: Layout,
    row_bytes: usize,
    rows: usize,
    /// Rows from the first on that may be written. Grows under `touching`.
    touched: AtomicUsize,
    touching: Mutex<()>,
}

impl CodeStore {
    /// An empty store; `row_bytes` is a multiple of 64.
    pub(crate) fn new(row_bytes: usize) -> Self {
        assert!(row_bytes.is_multiple_of(super::LINE) && row_bytes > 0, "whole lines");
        Self { row_bytes, chunks: Segments::new() }
    }

    /// The code of a node.
    #[inline(always)]
    pub(crate) fn row(&self, id: u32) -> Option<&[u8]> {
        let place = place::<FIRST, MOST>(id);
        let chunk = self.chunks.get(place.number)?;
        // SAFETY: 1. the place is within the chunk, whose memory has room for all
        // of its rows and lives as long as the store; 2. ids that come here are
        // those of nodes (see the top of this file), whose code was written, and
        // the memory before it touched, and is never written again.
        Some(unsafe { std::slice::from_raw_parts(chunk.at(place.offset), self.row_bytes) })
    }

    /// Makes room for a row, and calls `grown` with the bytes that took.
    pub(crate) fn ensure(&self, id: u32, grown: impl Fn(usize)) {
        let place = place::<FIRST, MOST>(id);
        let rows = span::<FIRST, MOST>(place.number).len();
        let chunk = self.chunks.get_or_make(place.number, || {
            grown(size_of::<Chunk>());
            Chunk::reserve(rows, self.row_bytes)
        });
        chunk.touch(place.offset, grown);
    }

    /// A row to be written; there is room for it.
    ///
    /// # Safety
    /// The caller is the only one that writes this row, and nobody reads it yet.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "rows are handed out once each, says the contract")]
    pub(crate) unsafe fn row_mut(&self, id: u32) -> &mut [u8] {
        let place = place::<FIRST, MOST>(id);
        let chunk = self.chunks.get(place.number).expect("ensured before");
        // SAFETY: 1. as in `row`; 2. nobody else has this row, says the caller.
        unsafe { std::slice::from_raw_parts_mut(chunk.at(place.offset), self.row_bytes) }
    }
}

impl Chunk {
    fn reserve(rows: usize, row_bytes: usize) -> Self {
        let bytes = rows * row_bytes;
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { super::LINE };
        let layout = Layout::from_size_align(bytes, align).expect("a chunk is far below isize::MAX");
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { std::alloc::handle_alloc_error(layout) };
        advise_huge_pages(memory, bytes);
        Self { memory, layout, row_bytes, rows, touched: AtomicUsize::new(0), touching: Mutex::new(()) }
    }

    #[inline(always)]
    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.rows, "places are within their chunk");
        // SAFETY: the offset is within the chunk's allocation.
        unsafe { self.memory.as_ptr().add(offset * self.row_bytes) }
    }

    /// Fills the memory with zeros up to the step that `offset` is in.
    fn touch(&self, offset: usize, grown: impl Fn(usize)) {
        // ORDERING: Acquire pairs with the Release below: the zeros come before
        // what this thread writes over them.
        if offset < self.touched.load(Ordering::Acquire) {
            return;
        }
        let _alone = self.touching.lock();
        // ORDERING: Relaxed; changes only under the lock.
        let from = self.touched.load(Ordering::Relaxed);
        if offset < from {
            return;
        }
        let to = (offset + 1).next_multiple_of(STEP).min(self.rows);
        let bytes = (to - from) * self.row_bytes;
        // SAFETY: 1. `from..to` is within the chunk; 2. rows from `touched` on are
        // neither read nor written, and only the holder of the lock moves it.
        unsafe { self.at(from).write_bytes(0, bytes) };
        grown(bytes);
        // ORDERING: Release pairs with the Acquire above.
        self.touched.store(to, Ordering::Release);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated in `reserve` with this layout; freed once.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), self.layout) };
    }
}

// SAFETY: a chunk owns its memory; its rows are written by one thread each, and
// read by others only after that (see the top of this file).
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// Asks for huge pages; where there are none, nothing changes.
fn advise_huge_pages(memory: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes >= HUGE_PAGE {
        // SAFETY: 1. the range is an allocation of this process; 2. the advice
        // changes how it is backed, not what it holds. An error means that this
        // kernel has no huge pages, and may be ignored.
        let _ = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (memory, bytes);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn rows_stay_what_they_were_while_the_store_grows() {
        let store = CodeStore::new(64);
        let bytes = Cell::new(0);
        // In any order, over all sizes of chunks.
        let ids: Vec<u32> = (0..40_000u32).map(|n| n * 7_919 % 40_000).collect();
        for &id in &ids {
            store.ensure(id, |grown| bytes.set(bytes.get() + grown));
            // SAFETY: each id comes once, and this is the only thread.
            let row = unsafe { store.row_mut(id) };
            assert!(row.iter().all(|byte| *byte == 0), "rows begin as zeros");
            row[..4].copy_from_slice(&id.to_le_bytes());
        }
        for &id in &ids {
            assert_eq!(store.row(id).expect("written")[..4], id.to_le_bytes());
        }
        assert!(bytes.get() >= 40_000 * 64 && bytes.get() < 42_000 * 64, "{}", bytes.get());
    }

    #[test]
    fn a_small_table_pays_for_few_rows() {
        let store = CodeStore::new(576);
        let bytes = Cell::new(0);
        store.ensure(0, |grown| bytes.set(bytes.get() + grown));
        assert!(bytes.get() <= 64 * 576 + 256, "{}", bytes.get());
        assert!(store.row(64).is_none());
    }
}
