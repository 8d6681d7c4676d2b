//! End marks: when each row of a row file was replaced or deleted.
//!
//! One [`Ends`] belongs to one row file for life and is shared by reference: the memtable that becomes a segment hands
//! its marks over by handing over the `Arc`. Written inside the publication section by the batch that ends a row; read
//! without locks inside every traversal. Invariant: a mark is set before the watermark reaches its publication number,
//! and is never moved or cleared.

use crate::ids::PubNo;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64 as Counter;

/// Rows per chunk: a file's marks cost nothing where nothing has died.
const CHUNK_ROWS: usize = if cfg!(vectide_loom) { 2 } else { 1024 };
/// Bucket `b` holds `FIRST_BUCKET << b` chunks, so the directory grows without moving anything.
const FIRST_BUCKET: usize = 4;
const BUCKETS: usize = 21;
/// The stored value of a row that lives.
const LIVE: u64 = 0;

type Chunk = Box<[AtomicU64]>;

/// The end marks of one row file, by row offset.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    buckets: [OnceLock<Box<[OnceLock<Chunk>]>>; BUCKETS],
    dead: AtomicU32,
    bytes: Counter,
}

fn locate(offset: u32) -> (usize, usize, usize) {
    let chunk = offset as usize / CHUNK_ROWS;
    let bucket = (chunk / FIRST_BUCKET + 1).ilog2() as usize;
    let first = FIRST_BUCKET * ((1 << bucket) - 1);
    (bucket, chunk - first, offset as usize % CHUNK_ROWS)
}

impl Ends {
    fn slot(&self, offset: u32) -> Option<&AtomicU64> {
        let (bucket, chunk, row) = locate(offset);
        Some(&self.buckets[bucket].get()?[chunk].get()?[row])
    }

    /// The slot of a row, made if need be. Models call it beforehand: loom does not see what std's `OnceLock` orders.
    pub(crate) fn slot_or_make(&self, offset: u32) -> &AtomicU64 {
        let (bucket, chunk, row) = locate(offset);
        let bucket = self.buckets[bucket].get_or_init(|| {
            let chunks = FIRST_BUCKET << bucket;
            self.bytes.fetch_add((chunks * size_of::<OnceLock<Chunk>>()) as u64, Ordering::Relaxed);
            (0..chunks).map(|_| OnceLock::new()).collect()
        });
        let chunk = bucket[chunk].get_or_init(|| {
            self.bytes.fetch_add((CHUNK_ROWS * size_of::<AtomicU64>()) as u64, Ordering::Relaxed);
            (0..CHUNK_ROWS).map(|_| AtomicU64::new(LIVE)).collect()
        });
        &chunk[row]
    }

    /// Marks the row at `offset` as ended by `publication` (which is at least 1). The first mark stays; returns whether
    /// this was it. Callers hold the publication section.
    pub(crate) fn set(&self, offset: u32, publication: PubNo) -> bool {
        debug_assert!(publication.0 != LIVE, "publication numbers begin at 1");
        let slot = self.slot_or_make(offset);
        // ORDERING: Release pairs with the Acquire in `ended_by`. A reader whose snapshot includes `publication` got
        // it through the watermark's lock, which orders this store before it; the pairing serves all other readers.
        let first = slot.compare_exchange(LIVE, publication.0, Ordering::Release, Ordering::Relaxed).is_ok();
        if first {
            // ORDERING: Relaxed: a count, and a hint in `is_live_at` whose readers are ordered by the watermark.
            self.dead.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// The publication that ended the row at `offset`, if any has.
    pub(crate) fn ended_by(&self, offset: u32) -> Option<PubNo> {
        // ORDERING: Acquire pairs with the Release in `set`.
        let end = self.slot(offset)?.load(Ordering::Acquire);
        (end != LIVE).then_some(PubNo(end))
    }

    /// Whether the row at `offset` (published by then) lives in the snapshot cut at `at`. A few loads, no lock.
    #[inline]
    pub(crate) fn is_live_at(&self, offset: u32, at: PubNo) -> bool {
        // ORDERING: Relaxed: marks up to `at` were counted before the watermark's lock released `at` to this reader.
        if self.dead.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.ended_by(offset).is_none_or(|end| end > at)
    }

    /// Rows ended so far, by whatever publication.
    pub(crate) fn dead(&self) -> u32 {
        self.dead.load(Ordering::Relaxed)
    }

    /// Rows of `range` that live in the snapshot cut at `at`. Costs one load a row where marks exist.
    pub(crate) fn count_live(&self, range: Range<u32>, at: PubNo) -> u64 {
        if self.dead() == 0 {
            return u64::from(range.end.saturating_sub(range.start));
        }
        range.filter(|&offset| self.is_live_at(offset, at)).count() as u64
    }

    /// All marks on rows below `rows`, ascending by offset.
    pub(crate) fn marks(&self, rows: u32) -> impl Iterator<Item = (u32, PubNo)> + '_ {
        (0..rows.div_ceil(CHUNK_ROWS as u32)).filter(|chunk| self.slot(chunk * CHUNK_ROWS as u32).is_some()).flat_map(
            move |chunk| {
                let first = chunk * CHUNK_ROWS as u32;
                (first..(first + CHUNK_ROWS as u32).min(rows)).filter_map(|o| Some((o, self.ended_by(o)?)))
            },
        )
    }

    /// Heap bytes held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(vectide_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_offset_has_its_own_slot() {
        let mut last = None;
        for offset in (0..3_000_000u32).step_by(CHUNK_ROWS) {
            let (bucket, chunk, row) = locate(offset);
            assert!(bucket < BUCKETS && chunk < FIRST_BUCKET << bucket && row == 0);
            assert!(last < Some((bucket, chunk)), "{offset}");
            last = Some((bucket, chunk));
        }
        assert!(locate(u32::MAX).0 < BUCKETS);
    }

    #[test]
    fn a_row_lives_up_to_the_publication_that_ended_it() {
        let ends = Ends::default();
        assert!(ends.is_live_at(70_000, PubNo(9)));
        assert!(ends.set(70_000, PubNo(5)));
        assert!(!ends.set(70_000, PubNo(7)), "the first mark stays");
        assert!(ends.is_live_at(70_000, PubNo(4)));
        assert!(!ends.is_live_at(70_000, PubNo(5)));
        assert!(ends.is_live_at(69_999, PubNo(5)));
        assert_eq!(ends.marks(u32::MAX).collect::<Vec<_>>(), [(70_000, PubNo(5))]);
        assert_eq!(ends.count_live(69_998..70_002, PubNo(5)), 3);
    }
}
