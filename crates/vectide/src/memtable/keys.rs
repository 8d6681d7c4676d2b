//! The key index: each key's newest row, and for rows that replaced one of the same memtable, which.
//!
//! Written inside the publication section, one row at a time; read by any thread at the same time, under a stripe's lock
//! that is held for one look-up. Invariant: from a key's newest row, the chain of replaced rows descends through all
//! its rows in this memtable, so that a snapshot of any age finds its version.

use crate::keys::KeyProbe;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

const STRIPES: usize = 16;

/// Twelve bytes: a hash in two halves, so that nothing is padded.
#[derive(Clone, Copy)]
struct Entry {
    low: u32,
    high: u32,
    newest: u32,
}

impl Entry {
    fn new(hash: u64, newest: u32) -> Self {
        Self { low: hash as u32, high: (hash >> 32) as u32, newest }
    }

    fn hash(&self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// A row and the older row of the same key that it replaced.
#[derive(Clone, Copy)]
struct Replaced {
    by: u32,
    row: u32,
}

/// A slice of the keys, by hash.
#[derive(Default)]
struct Stripe {
    keys: HashTable<Entry>,
    replaced: HashTable<Replaced>,
}

/// Keys to rows.
pub(super) struct KeyIndex {
    stripes: [RwLock<Stripe>; STRIPES],
    bytes: AtomicU64,
}

impl std::fmt::Debug for KeyIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyIndex").finish_non_exhaustive()
    }
}

impl KeyIndex {
    pub(super) fn new() -> Self {
        Self { stripes: std::array::from_fn(|_| RwLock::default()), bytes: AtomicU64::new(size_of::<Self>() as u64) }
    }

    /// Heap bytes held; one atomic load.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn stripe(&self, hash: u64) -> &RwLock<Stripe> {
        // The table below uses the lowest and the highest bits.
        &self.stripes[(hash >> 40) as usize % STRIPES]
    }

    /// Makes `offset` the newest row of the key and returns the row that was. `same_key(row)` tells whether the row
    /// there, whose key has the same hash, has the same key.
    pub(super) fn insert(&self, probe: &KeyProbe<'_>, offset: u32, same_key: impl Fn(u32) -> bool) -> Option<u32> {
        let mut stripe = self.stripe(probe.hash).write();
        let Stripe { keys, replaced } = &mut *stripe;
        let before = keys.allocation_size() + replaced.allocation_size();
        let same = |entry: &Entry| entry.hash() == probe.hash && same_key(entry.newest);
        let older = match keys.entry(probe.hash, same, Entry::hash) {
            Slot::Occupied(mut slot) => Some(std::mem::replace(&mut slot.get_mut().newest, offset)),
            Slot::Vacant(slot) => {
                slot.insert(Entry::new(probe.hash, offset));
                None
            }
        };
        if let Some(row) = older {
            let link = Replaced { by: offset, row };
            replaced.insert_unique(spread(offset), link, |link| spread(link.by));
        }
        let grown = keys.allocation_size() + replaced.allocation_size() - before;
        if grown > 0 {
            // ORDERING: Relaxed: statistics.
            self.bytes.fetch_add(grown as u64, Ordering::Relaxed);
        }
        older
    }

    /// The newest row of the key below `below`.
    pub(super) fn find(&self, probe: &KeyProbe<'_>, below: u32, same_key: impl Fn(u32) -> bool) -> Option<u32> {
        let stripe = self.stripe(probe.hash).read();
        let same = |entry: &Entry| entry.hash() == probe.hash && same_key(entry.newest);
        let mut row = stripe.keys.find(probe.hash, same)?.newest;
        while row >= below {
            let of_row = |link: &Replaced| link.by == row;
            row = stripe.replaced.find(spread(row), of_row)?.row;
        }
        Some(row)
    }
}

/// A hash of an offset (Fibonacci hashing), good in its lowest and highest bits.
fn spread(offset: u32) -> u64 {
    let x = u64::from(offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyArray;
    use arrow::array::{Int64Array, StringArray};

    #[test]
    fn every_version_of_a_key_is_found_by_its_snapshot() {
        let keys = KeyArray::new(&Int64Array::from(vec![7, 8])).expect("keys");
        let probe = |row| KeyProbe { keys: &keys, row, hash: keys.hash(row) };
        let index = KeyIndex::new();
        for (row, offset, older) in [(0, 0, None), (1, 1, None), (0, 5, Some(0)), (0, 6, Some(5))] {
            assert_eq!(index.insert(&probe(row), offset, |_| true), older);
        }
        let found: Vec<_> = (0..8).map(|below| index.find(&probe(0), below, |_| true)).collect();
        let zero = Some(0);
        let expected = [None, zero, zero, zero, zero, zero, Some(5), Some(6)];
        assert_eq!(found, expected);
    }

    #[test]
    fn keys_that_collide_are_told_apart() {
        let keys = KeyArray::new(&StringArray::from(vec!["a", "b"])).expect("keys");
        let probe = |row| KeyProbe { keys: &keys, row, hash: 1 };
        let index = KeyIndex::new();
        assert_eq!(index.insert(&probe(0), 0, |at| at == 0), None);
        assert_eq!(index.insert(&probe(1), 1, |at| at == 1), None);
        assert_eq!(index.find(&probe(0), 9, |at| at == 0), Some(0));
        assert_eq!(index.find(&probe(1), 9, |at| at == 1), Some(1));
    }
}
