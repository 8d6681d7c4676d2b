//! The key index: each key's newest row, and for rows that replaced one of the same memtable, which.
//!
//! Written inside the publication section, one row at a time; read by any thread at the same time, under a stripe's lock
//! that is held for one look-up. Invariant: from a key's newest row, the chain of replaced rows descends through all
//! its rows in this memtable, so that a snapshot of any age finds its version.

use super::newest::Newest;
use crate::keys::KeyProbe;
use hashbrown::HashTable;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

const STRIPES: usize = 16;
/// Rows that are indexed at a time.
const WINDOW: usize = 256;

/// A row and the older row of the same key that it replaced.
#[derive(Clone, Copy)]
struct Replaced {
    by: u32,
    row: u32,
}

/// A slice of the keys, by hash.
#[derive(Default)]
struct Stripe {
    keys: Newest,
    replaced: HashTable<Replaced>,
}

impl Stripe {
    fn bytes(&self) -> usize {
        self.keys.bytes() + self.replaced.allocation_size()
    }

    /// Makes `offset` the newest row of the key and returns the row that was.
    fn insert(&mut self, hash: u64, offset: u32, same_key: impl Fn(u32) -> bool) -> Option<u32> {
        let older = self.keys.replace(hash, offset, same_key)?;
        let link = Replaced { by: offset, row: older };
        self.replaced.insert_unique(spread(offset), link, |link| spread(link.by));
        Some(older)
    }
}

fn stripe_of(hash: u64) -> usize {
    // The tables use the upper half.
    (hash >> 4) as usize % STRIPES
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

    /// Makes the rows from `first` on the newest of their keys, in order, and tells `older` which row of this memtable each
    /// had before it, if any. `same_key(n, row)` says whether the `row` of this memtable has the batch's key number `n`,
    /// its hash being the same.
    ///
    /// Readers wait for at most [`WINDOW`] rows of it.
    pub(super) fn insert_all(
        &self,
        hashes: &[u64],
        first: u32,
        same_key: impl Fn(usize, u32) -> bool,
        mut older: impl FnMut(usize, Option<u32>),
    ) {
        let mut insert = |stripe: &mut Stripe, n: usize| {
            let offset = first + u32::try_from(n).expect("a batch has fewer rows than a memtable");
            older(n, stripe.insert(hashes[n], offset, |row| same_key(n, row)));
        };
        let mut grown = 0;
        for (window, rows) in (0..).step_by(WINDOW).zip(hashes.chunks(WINDOW)) {
            if rows.len() < STRIPES {
                for (n, &hash) in rows.iter().enumerate() {
                    let mut stripe = self.stripes[stripe_of(hash)].write();
                    let before = stripe.bytes();
                    insert(&mut stripe, window + n);
                    grown += stripe.bytes() - before;
                }
                continue;
            }
            // With all stripes in hand, the look-ups of all rows wait for memory together.
            let mut stripes: [_; STRIPES] = std::array::from_fn(|n| self.stripes[n].write());
            let before: usize = stripes.iter().map(|stripe| stripe.bytes()).sum();
            let touched = rows.iter().map(|&hash| stripes[stripe_of(hash)].keys.touch(hash));
            std::hint::black_box(touched.sum::<u32>());
            for (n, &hash) in rows.iter().enumerate() {
                insert(&mut stripes[stripe_of(hash)], window + n);
            }
            grown += stripes.iter().map(|stripe| stripe.bytes()).sum::<usize>() - before;
        }
        if grown > 0 {
            // ORDERING: Relaxed: statistics.
            self.bytes.fetch_add(grown as u64, Ordering::Relaxed);
        }
    }

    /// The newest row of the key below `below`.
    pub(super) fn find(&self, probe: &KeyProbe<'_>, below: u32, same_key: impl Fn(u32) -> bool) -> Option<u32> {
        let stripe = self.stripes[stripe_of(probe.hash)].read();
        let mut row = stripe.keys.find(probe.hash, same_key)?;
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
            index.insert_all(&[keys.hash(row)], offset, |_, _| true, |_, found| assert_eq!(found, older));
        }
        let found: Vec<_> = (0..8).map(|below| index.find(&probe(0), below, |_| true)).collect();
        let zero = Some(0);
        let expected = [None, zero, zero, zero, zero, zero, Some(5), Some(6)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_batch_is_indexed_as_its_rows_one_by_one() {
        // Every third key again, also within the batch.
        let hashes: Vec<u64> = (0..1_000u64).map(|n| (n % 334).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let (whole, single) = (KeyIndex::new(), KeyIndex::new());
        let mut replaced = vec![None; hashes.len()];
        whole.insert_all(&hashes, 5, |_, _| true, |n, older| replaced[n] = older);
        for (n, &hash) in hashes.iter().enumerate() {
            single.insert_all(&[hash], 5 + n as u32, |_, _| true, |_, older| assert_eq!(older, replaced[n], "row {n}"));
        }
        assert_eq!((replaced[333], replaced[334], replaced[700]), (None, Some(5), Some(5 + 366)));
        assert_eq!(whole.memory_bytes(), single.memory_bytes());
    }

    #[test]
    fn keys_that_collide_are_told_apart() {
        let keys = KeyArray::new(&StringArray::from(vec!["a", "b"])).expect("keys");
        let probe = |row| KeyProbe { keys: &keys, row, hash: 1 };
        let index = KeyIndex::new();
        index.insert_all(&[1, 1], 0, |n, at| n == at as usize, |_, older| assert_eq!(older, None));
        assert_eq!(index.find(&probe(0), 9, |at| at == 0), Some(0));
        assert_eq!(index.find(&probe(1), 9, |at| at == 1), Some(1));
    }
}
