//! Which nodes a traversal has seen, and how far they were: a hash table sized to
//! the traversal, not to the graph. A table of 4,096 entries fits the L1 cache;
//! clearing it costs less than one distance.

use crate::links::NONE;

const SMALLEST: usize = 1 << 10;
/// What a table may keep between traversals; one grown beyond is let go.
const KEPT: usize = 1 << 16;

/// A set of ids with a distance for each.
pub(crate) struct Visited {
    /// [`NONE`] where free. A power of two, at most 5/8 in use.
    ids: Vec<u32>,
    distances: Vec<f32>,
    used: usize,
    limit: usize,
    shift: u32,
}

impl Visited {
    pub(crate) fn new() -> Self {
        let mut visited = Self { ids: Vec::new(), distances: Vec::new(), used: 0, limit: 0, shift: 0 };
        visited.allocate(SMALLEST);
        visited
    }

    /// Forgets everything; makes room for about `expected` nodes.
    pub(crate) fn reset(&mut self, expected: usize) {
        let slots = (2 * expected).next_power_of_two().clamp(SMALLEST, KEPT);
        if self.ids.len() < slots || self.ids.len() > KEPT {
            self.allocate(slots);
        } else {
            self.ids.fill(NONE);
            self.used = 0;
        }
    }

    /// Adds a node; false if it was there.
    #[inline(always)]
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        let mask = self.ids.len() - 1;
        let mut at = self.home(id);
        loop {
            let found = self.ids[at & mask];
            if found == id {
                return false;
            }
            if found == NONE {
                break;
            }
            at += 1;
        }
        self.ids[at & mask] = id;
        self.distances[at & mask] = f32::NAN;
        self.used += 1;
        if self.used > self.limit {
            self.grow();
        }
        true
    }

    /// Notes how far an inserted node is.
    #[inline(always)]
    pub(crate) fn set_distance(&mut self, id: u32, distance: f32) {
        if let Some(at) = self.find(id) {
            self.distances[at] = distance;
        }
    }

    /// How far the node is, if the traversal measured it.
    #[inline(always)]
    pub(crate) fn distance(&self, id: u32) -> Option<f32> {
        let distance = self.distances[self.find(id)?];
        (!distance.is_nan()).then_some(distance)
    }

    #[inline(always)]
    fn home(&self, id: u32) -> usize {
        // Fibonacci hashing: neighbouring ids land far apart.
        (id.wrapping_mul(0x9E37_79B9) >> self.shift) as usize
    }

    #[inline(always)]
    fn find(&self, id: u32) -> Option<usize> {
        let mask = self.ids.len() - 1;
        let mut at = self.home(id);
        loop {
            let found = self.ids[at & mask];
            if found == id {
                return Some(at & mask);
            }
            if found == NONE {
                return None;
            }
            at += 1;
        }
    }

    fn allocate(&mut self, slots: usize) {
        self.ids = vec![NONE; slots];
        self.distances = vec![f32::NAN; slots];
        self.used = 0;
        self.limit = slots / 8 * 5;
        self.shift = 32 - slots.trailing_zeros();
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        let distances = std::mem::take(&mut self.distances);
        self.allocate(2 * ids.len());
        for (id, distance) in ids.into_iter().zip(distances).filter(|(id, _)| *id != NONE) {
            self.insert(id);
            self.set_distance(id, distance);
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
                    prop_assert_eq!(visited.insert(id), !model.contains_key(&id));
                    visited.set_distance(id, (n + round) as f32);
                    model.insert(id, (n + round) as f32);
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
            assert!(visited.insert(id));
        }
        assert!(visited.ids.len() > KEPT);
        visited.reset(100);
        assert_eq!(visited.ids.len(), SMALLEST);
        assert!(visited.insert(0));
    }
}
