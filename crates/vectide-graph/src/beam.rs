//! The candidates of one traversal, nearest first: a flat sorted array, in which
//! an insertion moves a few cache lines, instead of two heaps.
//!
//! Rejected nodes (a filter, a dead row) are walked through but take no place in
//! the array: they wait in a heap of their own, which stays empty in searches
//! without a filter.

use crate::hit::Key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The best `capacity` accepted nodes seen so far, and all nodes still to be
/// expanded.
pub(crate) struct Beam {
    /// Accepted nodes, ascending.
    keys: Vec<Key>,
    /// Beside `keys`: 1 once the node was expanded.
    expanded: Vec<u8>,
    /// Nodes before this one are expanded.
    cursor: usize,
    capacity: usize,
    /// Rejected nodes, not expanded yet.
    rejected: BinaryHeap<Reverse<Key>>,
}

impl Beam {
    pub(crate) fn new() -> Self {
        Self { keys: Vec::new(), expanded: Vec::new(), cursor: 0, capacity: 0, rejected: BinaryHeap::new() }
    }

    pub(crate) fn reset(&mut self, capacity: usize) {
        self.keys.clear();
        self.expanded.clear();
        self.rejected.clear();
        self.cursor = 0;
        self.capacity = capacity;
    }

    /// Accepted nodes, nearest first.
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Distances from this one on are of no use any more: infinity until
    /// `capacity` nodes were accepted.
    #[inline(always)]
    pub(crate) fn bound(&self) -> f32 {
        if self.keys.len() < self.capacity {
            f32::INFINITY
        } else {
            self.keys.last().map_or(f32::INFINITY, |key| key.distance())
        }
    }

    /// Adds an accepted node, which drops the farthest once the beam is full.
    #[inline(always)]
    pub(crate) fn offer(&mut self, key: Key) {
        if self.keys.len() == self.capacity {
            if self.keys.last().is_none_or(|last| key >= *last) {
                return;
            }
            self.keys.pop();
            self.expanded.pop();
        }
        let at = self.keys.partition_point(|other| *other < key);
        self.keys.insert(at, key);
        self.expanded.insert(at, 0);
        self.cursor = self.cursor.min(at);
    }

    /// Adds a rejected node, only to be walked through.
    #[inline]
    pub(crate) fn offer_rejected(&mut self, key: Key) {
        self.rejected.push(Reverse(key));
    }

    /// The nearest node not yet expanded; `None` once no such node is nearer
    /// than the bound.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let accepted = self.peek_accepted();
        if let Some(&Reverse(rejected)) = self.rejected.peek()
            && accepted.is_none_or(|key| rejected < key)
        {
            if rejected.distance() > self.bound() {
                self.rejected.clear();
            } else {
                self.rejected.pop();
                return Some(rejected.id());
            }
        }
        let key = accepted?;
        self.expanded[self.cursor] = 1;
        self.cursor += 1;
        Some(key.id())
    }

    /// The accepted node that is likely to be expanded next.
    #[inline(always)]
    pub(crate) fn peek_accepted(&mut self) -> Option<Key> {
        while self.expanded.get(self.cursor) == Some(&1) {
            self.cursor += 1;
        }
        self.keys.get(self.cursor).copied()
    }

    /// Gives back memory that an unusually wide traversal needed.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.keys.capacity() > most && self.keys.len() <= most {
            self.keys.shrink_to(most);
            self.expanded.shrink_to(most);
        }
        if self.rejected.capacity() > most {
            self.rejected.clear();
            self.rejected.shrink_to(most);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_keeps_the_nearest_in_order(
            distances in prop::collection::vec(0u32..50, 1..200),
            capacity in 1usize..40,
        ) {
            let mut beam = Beam::new();
            beam.reset(capacity);
            let mut all = Vec::new();
            for (id, d) in distances.iter().enumerate() {
                let key = Key::new(*d as f32, id as u32);
                all.push(key);
                beam.offer(key);
                if id % 3 == 0 { beam.pop(); }
            }
            all.sort_unstable();
            all.truncate(capacity);
            prop_assert_eq!(beam.keys(), &all[..]);
            let left = std::iter::from_fn(|| beam.pop()).count();
            prop_assert!(left <= capacity);
            prop_assert!(beam.expanded.iter().all(|e| *e == 1));
        }
    }

    #[test]
    fn rejected_nodes_are_walked_in_turn_but_take_no_place() {
        let mut beam = Beam::new();
        beam.reset(2);
        beam.offer(Key::new(2.0, 2));
        beam.offer_rejected(Key::new(1.0, 1));
        beam.offer_rejected(Key::new(3.0, 3));
        assert_eq!(beam.pop(), Some(1));
        assert_eq!(beam.bound(), f32::INFINITY);
        assert_eq!(beam.pop(), Some(2));
        beam.offer(Key::new(2.5, 4));
        assert_eq!(beam.bound(), 2.5);
        assert_eq!(beam.pop(), Some(4));
        assert_eq!(beam.pop(), None, "3 is beyond the bound");
        let ids: Vec<u32> = beam.keys().iter().map(|k| k.id()).collect();
        assert_eq!(ids, [2, 4]);
    }
}
