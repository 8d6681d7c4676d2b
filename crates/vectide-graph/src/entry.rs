//! The one word that every search begins with: how many nodes there are, and
//! which one to start from. It replaces the pair of hnswlib's fields behind a
//! global lock; the entry point's level is looked up at its node.

use crate::links::NONE;
use crate::sync::{AtomicU64, Ordering};

/// {length, entry point} in one atomic word.
pub(crate) struct Entry(AtomicU64);

/// What the word said at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryPoint {
    /// Nodes in the graph.
    pub(crate) len: u32,
    /// Where to start; `None` in an empty graph.
    pub(crate) id: Option<u32>,
}

impl Entry {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(pack(0, NONE)))
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> EntryPoint {
        // ORDERING: Acquire pairs with the Release in `add`: the entry point's
        // links and vector are seen.
        unpack(self.0.load(Ordering::Acquire))
    }

    /// Counts a node that is now linked, and makes it the entry point if asked.
    pub(crate) fn add(&self, promoted: Option<u32>) {
        // ORDERING: Release pairs with the Acquire in `load`: publishes the node's
        // links and vector. Acquire, since the old entry is handed on.
        self.add_with(promoted, Ordering::AcqRel);
    }

    /// `add` with another ordering: the loom canary shows that it would fail.
    pub(crate) fn add_with(&self, promoted: Option<u32>, ordering: Ordering) {
        // ORDERING: Relaxed; a stale value only costs another round.
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let was = unpack(old);
            let new = pack(was.len + 1, promoted.or(was.id).unwrap_or(NONE));
            // ORDERING: see `add`; a failure publishes and reads nothing.
            match self.0.compare_exchange_weak(old, new, ordering, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }
}

fn pack(len: u32, id: u32) -> u64 {
    u64::from(len) << 32 | u64::from(id)
}

fn unpack(word: u64) -> EntryPoint {
    let id = word as u32;
    EntryPoint { len: (word >> 32) as u32, id: (id != NONE).then_some(id) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_and_the_entry_point_stays_until_promoted() {
        let entry = Entry::new();
        assert_eq!(entry.load(), EntryPoint { len: 0, id: None });
        entry.add(Some(7));
        entry.add(None);
        assert_eq!(entry.load(), EntryPoint { len: 2, id: Some(7) });
        entry.add(Some(0));
        assert_eq!(entry.load(), EntryPoint { len: 3, id: Some(0) });
    }
}
