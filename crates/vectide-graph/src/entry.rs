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

    /// Counts a node that is now linked.
    pub(crate) fn add(&self) {
        // ORDERING: see `add_with`.
        self.add_with(NONE, NONE, Ordering::AcqRel);
    }

    /// Counts a node that is now linked and makes it the entry point in place of
    /// `old`. Only the holder of the graph's `raise` lock does this, so `old` is
    /// what the word still says.
    pub(crate) fn promote(&self, old: Option<u32>, new: u32) {
        // ORDERING: see `add_with`.
        self.add_with(old.unwrap_or(NONE), new, Ordering::AcqRel);
    }

    /// One addition does both: the length goes up by one, and the id moves by the
    /// difference, without a carry, since its half of the word holds `old`.
    fn add_with(&self, old: u32, new: u32, ordering: Ordering) {
        let moved = u64::from(new).wrapping_sub(u64::from(old));
        // ORDERING: Release pairs with the Acquire in `load`: publishes the node's
        // links and vector. Acquire keeps the earlier nodes in the chain. Anything
        // less fails the loom canary.
        self.0.fetch_add((1u64 << 32).wrapping_add(moved), ordering);
    }

    /// [`Entry::promote`] with an ordering that publishes nothing.
    #[cfg(all(test, loom))]
    pub(crate) fn promote_wrongly(&self, new: u32) {
        // ORDERING: deliberately too weak.
        self.add_with(NONE, new, Ordering::Relaxed);
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
        entry.promote(None, 7);
        entry.add();
        assert_eq!(entry.load(), EntryPoint { len: 2, id: Some(7) });
        entry.promote(Some(7), 0);
        assert_eq!(entry.load(), EntryPoint { len: 3, id: Some(0) });
    }
}
