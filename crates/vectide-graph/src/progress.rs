//! Which ids are done, and up to where all are: the engine's tail begins there.
//!
//! Ids finish in any order, on any thread. Each is claimed once, then either
//! linked or found to have no vector; both count as done. The watermark moves
//! over the gapless prefix without a lock.

use crate::segments::Segments;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Ids per segment of flags: few enough that a small table pays little.
const SEGMENT_IDS: usize = if cfg!(loom) { 64 } else { 1024 };
const WORDS: usize = SEGMENT_IDS / 64;

/// Flags of ids, and the watermark over them.
pub(crate) struct Progress {
    segments: Segments<Flags>,
    prefix: AtomicU32,
}

/// One bit per id each.
struct Flags {
    claimed: [AtomicU64; WORDS],
    linked: [AtomicU64; WORDS],
    done: [AtomicU64; WORDS],
}

impl Flags {
    fn new() -> Self {
        let clear = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { claimed: clear(), linked: clear(), done: clear() }
    }
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { segments: Segments::new(), prefix: AtomicU32::new(0) }
    }

    /// Bytes that a segment of flags takes.
    pub(crate) const SEGMENT_BYTES: usize = size_of::<Flags>();

    /// Takes an id for insertion; false if it was taken before. `grown` is
    /// called when memory for flags was allocated.
    pub(crate) fn claim(&self, id: u32, grown: impl FnOnce()) -> bool {
        let (segment, word, bit) = place(id);
        let flags = self.segments.get_or_make(segment, || {
            grown();
            Flags::new()
        });
        // ORDERING: Relaxed; decides between claimants and publishes nothing.
        flags.claimed[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Whether the id is a linked node.
    pub(crate) fn is_linked(&self, id: u32) -> bool {
        let (segment, word, bit) = place(id);
        // ORDERING: Acquire pairs with the AcqRel in `finish`: the node's links
        // are seen.
        self.segments.get(segment).is_some_and(|flags| flags.linked[word].load(Ordering::Acquire) & bit != 0)
    }

    /// Marks a claimed id done, as a node or without one, and moves the
    /// watermark over what is now gapless.
    pub(crate) fn finish(&self, id: u32, linked: bool) {
        let (segment, word, bit) = place(id);
        let flags = self.segments.get(segment).expect("claimed before");
        if linked {
            // ORDERING: AcqRel; Release publishes the node's links to `is_linked`,
            // also through later marks in the same word.
            flags.linked[word].fetch_or(bit, Ordering::AcqRel);
        }
        // ORDERING: Release part publishes the node to whoever moves the
        // watermark over it; Acquire keeps earlier marks in the chain.
        flags.done[word].fetch_or(bit, Ordering::AcqRel);
        // ORDERING: SeqCst fence, one in each finisher between its mark and its
        // look at the others': of two that finish at once, the later one in the
        // fences' order sees the other's mark, and moves the watermark over both.
        fence(Ordering::SeqCst);
        self.advance();
    }

    /// [`Progress::finish`] without its fence.
    #[cfg(all(test, loom))]
    pub(crate) fn finish_wrongly(&self, id: u32) {
        let (segment, word, bit) = place(id);
        let flags = self.segments.get(segment).expect("claimed before");
        // ORDERING: deliberately too weak.
        flags.done[word].fetch_or(bit, Ordering::AcqRel);
        self.advance();
    }

    /// Every id below this one is done.
    #[inline]
    pub(crate) fn prefix(&self) -> u32 {
        // ORDERING: Acquire pairs with the AcqRel in `advance`: all nodes below
        // are seen linked.
        self.prefix.load(Ordering::Acquire)
    }

    fn advance(&self) {
        // ORDERING: Acquire as in `prefix`.
        let mut prefix = self.prefix.load(Ordering::Acquire);
        loop {
            let run = self.done_from(prefix);
            if run == 0 {
                return;
            }
            // ORDERING: Release publishes the nodes that `done_from` acquired;
            // Acquire on both outcomes, to look on from the new value.
            prefix = match self.prefix.compare_exchange(prefix, prefix + run, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => prefix + run,
                Err(now) => now,
            };
        }
    }

    /// Done ids in a row from `id` on, within its word of flags.
    fn done_from(&self, id: u32) -> u32 {
        let (segment, word, _) = place(id);
        let Some(flags) = self.segments.get(segment) else {
            return 0;
        };
        // ORDERING: Acquire pairs with the AcqRel marks in `finish`.
        let done = flags.done[word].load(Ordering::Acquire) >> (id % 64);
        done.trailing_ones()
    }
}

fn place(id: u32) -> (usize, usize, u64) {
    let id = id as usize;
    (id / SEGMENT_IDS, id % SEGMENT_IDS / 64, 1 << (id % 64))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_stops_at_the_first_gap() {
        let progress = Progress::new();
        let finish = |id| {
            assert!(progress.claim(id, || ()));
            progress.finish(id, id % 2 == 0);
        };
        for id in (1..5_000).filter(|id| *id != 3_000) {
            finish(id);
        }
        assert_eq!(progress.prefix(), 0);
        finish(0);
        assert_eq!(progress.prefix(), 3_000);
        finish(3_000);
        assert_eq!(progress.prefix(), 5_000);
        assert!(progress.is_linked(4_998) && !progress.is_linked(4_999));
        assert!(!progress.claim(17, || ()), "an id is claimed once");
    }

    #[test]
    fn threads_that_finish_at_once_leave_no_gap_behind() {
        let progress = Progress::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let progress = &progress;
                scope.spawn(move || {
                    for id in (thread..20_000).step_by(4) {
                        assert!(progress.claim(id, || ()));
                        progress.finish(id, true);
                    }
                });
            }
        });
        assert_eq!(progress.prefix(), 20_000);
    }
}
