//! Which nodes a traversal has seen, and how far they were: a hash table sized to
//! the traversal, not to the graph. A table of 4,096 entries fits the L1 cache;
//! clearing it costs less than one distance.

use crate::links::NONE;

const SMALLEST: usize = 1 << 10;
/// What a table may keep between traversals; one grown beyond is let go.
const KEPT: usize = 1 << 16;

/// A set of ids with a distance for each.
pub(crate) struct Visited {
    /// An id above the bits of its distance; [`FREE`] where free. A power of two,
    /// at most 5/8 in use.
    entries: Vec<u64>,
    used: usize,
    limit: usize,
    shift: u32,
}

/// No id above it is in use.
const FREE: u64 = entry(NONE, f32::NAN);

const fn entry(id: u32, distance: f32) -> u64 {
    (id as u64) << 32 | distance.to_bits() as u64
}

impl Visited {
    pub(crate) fn new() -> Self {
        let mut visited = Self { entries: Vec::new(), used: 0, limit: 0, shift: 0 };
        visited.allocate(SMALLEST);
        visited
    }

    /// Forgets everything; makes room for about `expected` nodes.
    pub(crate) fn reset(&mut self, expected: usize) {
        let slots = (2 * expected).next_power_of_two().clamp(SMALLEST, KEPT);
        if self.entries.len() < slots || self.entries.len() > KEPT {
            self.allocate(slots);
        } else {
            self.entries.fill(FREE);
            self.used = 0;
        }
    }

    /// Makes room for `more` nodes: until then, slots stay what they are.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, more: usize) {
        while self.used + more > self.limit {
            self.grow();
        }
    }

    /// Adds a node for which there is room, and returns its slot; `None` if it
    /// was there.
    #[inline(always)]
    pub(crate) fn insert(&mut self, id: u32) -> Option<u32> {
        debug_assert!(self.used < self.limit, "reserved");
        let mask = self.entries.len() - 1;
        let mut at = self.home(id) & mask;
        loop {
            let found = self.entries[at & mask];
            if (found >> 32) as u32 == id {
                return None;
            }
            if found == FREE {
                break;
            }
            at += 1;
        }
        let at = at & mask;
        self.entries[at] = entry(id, f32::NAN);
        self.used += 1;
        Some(at as u32)
    }

    /// Adds all of `ids`, and keeps those that were not there, with their slots
    /// beside them in `slots`. Whether a node was seen is anyone's guess, so the
    /// usual case has no branch on it.
    #[inline(always)]
    pub(crate) fn insert_all(&mut self, ids: &mut Vec<u32>, slots: &mut Vec<u32>) {
        self.reserve(ids.len());
        slots.clear();
        slots.resize(ids.len(), 0);
        let mask = self.entries.len() - 1;
        let mut fresh = 0;
        for at in 0..ids.len() {
            let id = ids[at];
            let home = self.home(id) & mask;
            let found = self.entries[home];
            let free = found == FREE;
            if free | ((found >> 32) as u32 == id) {
                self.entries[home] = if free { entry(id, f32::NAN) } else { found };
                self.used += usize::from(free);
                (ids[fresh], slots[fresh]) = (id, home as u32);
                fresh += usize::from(free);
            } else if let Some(slot) = self.insert(id) {
                (ids[fresh], slots[fresh]) = (id, slot);
                fresh += 1;
            }
        }
        ids.truncate(fresh);
    }

    /// Notes how far the node in a slot is.
    #[inline(always)]
    pub(crate) fn set_distance(&mut self, slot: u32, id: u32, distance: f32) {
        self.entries[slot as usize] = entry(id, distance);
    }

    /// How far the node is, if the traversal measured it.
    #[inline(always)]
    pub(crate) fn distance(&self, id: u32) -> Option<f32> {
        let mask = self.entries.len() - 1;
        let mut at = self.home(id) & mask;
        loop {
            let found = self.entries[at & mask];
            if (found >> 32) as u32 == id {
                let distance = f32::from_bits(found as u32);
                return (!distance.is_nan()).then_some(distance);
            }
            if found == FREE {
                return None;
            }
            at += 1;
        }
    }

    #[inline(always)]
    fn home(&self, id: u32) -> usize {
        // Fibonacci hashing: neighbouring ids land far apart.
        (id.wrapping_mul(0x9E37_79B9) >> self.shift) as usize
    }

    fn allocate(&mut self, slots: usize) {
        self.entries = vec![FREE; slots];
        self.used = 0;
        self.limit = slots / 8 * 5;
        self.shift = 32 - slots.trailing_zeros();
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        self.allocate(2 * entries.len());
        for found in entries.into_iter().filter(|found| *found != FREE) {
            let id = (found >> 32) as u32;
            if let Some(slot) = self.insert(id) {
                self.set_distance(slot, id, f32::from_bits(found as u32));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map_from_seen_ids_to_distances(ids in prop::collection::vec(0u32..4_000, 0..3_000)) {
            let mut visited = Visited::new();
            for round in 0..2 {
                visited.reset(10);
                let mut model = HashMap::new();
                for (n, &id) in ids.iter().enumerate() {
                    let slot = if n % 2 == 0 {
                        visited.reserve(1);
                        visited.insert(id)
                    } else {
                        let (mut ids, mut slots) = (vec![id, id], Vec::new());
                        visited.insert_all(&mut ids, &mut slots);
                        prop_assert!(ids.iter().all(|kept| *kept == id) && ids.len() < 2);
                        ids.first().map(|_| slots[0])
                    };
                    prop_assert_eq!(slot.is_some(), !model.contains_key(&id));
                    if let Some(slot) = slot {
                        visited.set_distance(slot, id, (n + round) as f32);
                        model.insert(id, (n + round) as f32);
                    }
                }
                for id in 0..4_000 {
                    prop_assert_eq!(visited.distance(id), model.get(&id).copied());
                }
            }
        }
    }

    #[test]
    fn a_table_grown_by_one_wide_traversal_is_let_go() {
        let mut visited = Visited::new();
        for id in 0..200_000 {
            visited.reserve(1);
            assert!(visited.insert(id).is_some());
        }
        assert!(visited.entries.len() > KEPT);
        visited.reset(100);
        assert_eq!(visited.entries.len(), SMALLEST);
        assert!(visited.insert(0).is_some());
    }
}
