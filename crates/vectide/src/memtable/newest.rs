//! A hash table from the 64-bit hash of a key to its newest row, in buckets of one cache line.
//!
//! [`KeyIndex`](super::keys::KeyIndex) has one per stripe and puts the lock around it. A look-up waits for memory once, and
//! those of a batch together, if [`Newest::touch`] loads the line of each before the first is searched. Open addressing by
//! buckets: one that is full overflows into the next. Nothing is ever removed. Invariant: an entry lies in the first
//! bucket from its own on that had room when it came, and all buckets before that are full.

use crate::store::map::advise_huge;

/// Entries that fit into a cache line beside their number.
const ENTRIES: usize = 5;
/// The table grows when this many entries of a bucket are taken on average.
const FULL: usize = 4;
/// A table of this many bytes is advised to lie in huge pages.
const HUGE_BYTES: usize = 2 << 20;

/// Twelve bytes: a hash in two halves, so that nothing is padded.
#[derive(Clone, Copy, Default)]
struct Entry {
    low: u32,
    high: u32,
    newest: u32,
}

impl Entry {
    fn hash(&self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// A cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    entries: [Entry; ENTRIES],
    len: u32,
}

impl Bucket {
    fn taken(&self) -> &[Entry] {
        &self.entries[..self.len as usize]
    }

    fn is_full(&self) -> bool {
        self.len as usize == ENTRIES
    }
}

/// See the module's description. Empty, it holds no memory.
#[derive(Default)]
pub(super) struct Newest {
    /// A power of two of them, or none.
    buckets: Vec<Bucket>,
    len: usize,
}

impl Newest {
    /// Heap bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }

    fn place(&self, hash: u64) -> usize {
        // The highest bits: the stripe is chosen by others.
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }

    /// Loads the line where a hash belongs and gives a number that depends on it: a caller that needs the numbers of many
    /// waits for all of them together.
    pub(super) fn touch(&self, hash: u64) -> u32 {
        if self.buckets.is_empty() { 0 } else { self.buckets[self.place(hash)].len }
    }

    /// The newest row of a key with this hash; `same_key(row)` says whether that row has the key.
    pub(super) fn find(&self, hash: u64, same_key: impl Fn(u32) -> bool) -> Option<u32> {
        let (bucket, at) = self.position(hash, same_key)?;
        Some(self.buckets[bucket].entries[at].newest)
    }

    fn position(&self, hash: u64, same_key: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut place = self.place(hash);
        loop {
            let bucket = &self.buckets[place];
            let same = |entry: &Entry| entry.hash() == hash && same_key(entry.newest);
            if let Some(at) = bucket.taken().iter().position(same) {
                return Some((place, at));
            }
            if !bucket.is_full() {
                return None;
            }
            place = (place + 1) & (self.buckets.len() - 1);
        }
    }

    /// Makes `row` the newest of the key and returns the row that was.
    pub(super) fn replace(&mut self, hash: u64, row: u32, same_key: impl Fn(u32) -> bool) -> Option<u32> {
        if let Some((bucket, at)) = self.position(hash, same_key) {
            return Some(std::mem::replace(&mut self.buckets[bucket].entries[at].newest, row));
        }
        if self.len >= self.buckets.len() * FULL {
            self.grow();
        }
        self.add(Entry { low: hash as u32, high: (hash >> 32) as u32, newest: row });
        None
    }

    /// Puts an entry that is not there into the first bucket from its own on that has room.
    fn add(&mut self, entry: Entry) {
        let mut place = self.place(entry.hash());
        while self.buckets[place].is_full() {
            place = (place + 1) & (self.buckets.len() - 1);
        }
        let bucket = &mut self.buckets[place];
        bucket.entries[bucket.len as usize] = entry;
        bucket.len += 1;
        self.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let count = (self.buckets.len() * 2).max(1);
        let mut buckets = Vec::with_capacity(count);
        if self.bytes() >= HUGE_BYTES / 2 {
            advise_huge(buckets.spare_capacity_mut());
        }
        buckets.resize(count, Bucket::default());
        let old = std::mem::replace(&mut self.buckets, buckets);
        self.len = 0;
        old.iter().flat_map(Bucket::taken).for_each(|entry| self.add(*entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_bucket_is_a_cache_line_and_an_empty_table_nothing() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
        let empty = Newest::default();
        assert_eq!((empty.bytes(), empty.find(7, |_| true)), (0, None));
    }

    #[test]
    fn memory_follows_the_keys() {
        let mut table = Newest::default();
        for n in 0..1_000_000u64 {
            assert_eq!(table.replace(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n as u32, |_| true), None);
            let (keys, bytes) = (n as usize + 1, table.bytes());
            assert!(bytes <= 64 || bytes <= keys * 32, "{bytes} bytes for {keys} keys");
        }
    }

    proptest! {
        /// Few hashes, so that buckets overflow into each other and hashes collide: a row has the key `row % 3`.
        #[test]
        fn it_answers_as_a_map_does(writes in proptest::collection::vec((0u64..40, 0u32..3), 0..400)) {
            let (mut table, mut model) = (Newest::default(), HashMap::new());
            for (n, (spread, key)) in writes.into_iter().enumerate() {
                let (hash, row) = (spread << 32, n as u32 * 3 + key);
                let older = table.replace(hash, row, |row| row % 3 == key);
                prop_assert_eq!(older, model.insert((hash, key), row));
            }
            for spread in 0..40u64 {
                for key in 0..3 {
                    let found = table.find(spread << 32, |row| row % 3 == key);
                    prop_assert_eq!(found, model.get(&(spread << 32, key)).copied());
                }
            }
        }
    }
}
