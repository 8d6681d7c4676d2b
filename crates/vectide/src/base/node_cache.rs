//! Rows of links in memory, shared by all searches and merges of a process.
//!
//! In: a node, the version that wrote the row which the caller's base names, and a way to load it. Out: that row and no
//! other. `base/links` asks, `table/merging` publishes what a step wrote. Bounded in bytes, evicts node by node (CLOCK: a
//! row that was read since the hand last passed stays once more). A missing row is loaded by one of those who miss it, with
//! no lock held; the others wait for it. Invariant: a row is given out only for the very version that it was written at, so
//! no reader follows a link to a node that its snapshot does not have (decision 0009).

mod state;

#[cfg(all(test, vectide_loom))]
mod loom_tests;
#[cfg(all(test, not(vectide_loom)))]
mod tests;

use crate::stats::NodeCacheStats;
use crate::sync::Mutex;
use parking_lot::Condvar;
use state::{Found, Key, State};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Shards, so that readers seldom meet at a lock.
const SHARDS: usize = 64;
/// A shard holds at least this much, so that small caches have fewer shards.
const SHARD_BYTES: u64 = 64 << 10;

/// See the module's description.
pub(crate) struct NodeCache {
    shards: Box<[Shard]>,
    next_space: AtomicU32,
    capacity: u64,
    /// Time that a load takes at least; for measuring.
    load_delay: Duration,
    counters: Counters,
}

struct Shard {
    state: Mutex<State>,
    /// Rows that somebody is loading now.
    loading: parking_lot::Mutex<HashMap<(Key, u32), Arc<Load>>>,
}

/// One load, and who waits for it.
#[derive(Default)]
struct Load {
    row: parking_lot::Mutex<Option<Arc<[u32]>>>,
    loaded: Condvar,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    loads: AtomicU64,
    past: AtomicU64,
    published: AtomicU64,
    invalidated: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, n: u64) {
        // ORDERING: Relaxed: counts for people, publishing nothing.
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// The nodes of one column of one base, apart from all others. Dropping the last handle takes its rows out.
pub(crate) struct Space {
    cache: Arc<NodeCache>,
    number: u32,
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl NodeCache {
    /// An empty cache of at most `capacity` bytes, its own bookkeeping included.
    #[cfg(test)]
    pub(crate) fn new(capacity: u64) -> Arc<Self> {
        Self::with_delay(capacity, Duration::ZERO)
    }

    /// An empty cache of at most `capacity` bytes, its own bookkeeping included, in which a load takes `load_delay` at least.
    pub(crate) fn with_delay(capacity: u64, load_delay: Duration) -> Arc<Self> {
        let shards = usize::try_from(capacity / SHARD_BYTES).unwrap_or(SHARDS).clamp(1, SHARDS).next_power_of_two();
        let each = capacity / shards as u64;
        let shard = |_| Shard { state: Mutex::new(State::new(each)), loading: parking_lot::Mutex::default() };
        Arc::new(Self {
            shards: (0..shards).map(shard).collect(),
            next_space: AtomicU32::new(0),
            capacity,
            load_delay,
            counters: Counters::default(),
        })
    }

    /// A new space.
    pub(crate) fn space(self: &Arc<Self>) -> Space {
        // ORDERING: Relaxed: only makes the number unique.
        Space { number: self.next_space.fetch_add(1, Ordering::Relaxed), cache: Arc::clone(self) }
    }

    /// The figures now. Locks each shard for a moment.
    pub(crate) fn stats(&self) -> NodeCacheStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = NodeCacheStats {
            capacity_bytes: self.capacity,
            hits: get(&self.counters.hits),
            misses: get(&self.counters.misses),
            loads: get(&self.counters.loads),
            past: get(&self.counters.past),
            published: get(&self.counters.published),
            invalidated: get(&self.counters.invalidated),
            ..NodeCacheStats::default()
        };
        for shard in &self.shards {
            let state = shard.state.lock();
            stats.rows += state.rows();
            stats.bytes += state.bytes();
            stats.evictions += state.evictions();
        }
        stats
    }

    /// Loads a row, with no lock held.
    fn load(&self, out: &mut Vec<u32>, load: impl FnOnce(&mut Vec<u32>)) {
        if !self.load_delay.is_zero() {
            crate::runtime::block_for(self.load_delay);
        }
        load(out);
        Counters::add(&self.counters.loads, 1);
    }

    fn shard(&self, key: Key) -> &Shard {
        // Fibonacci hashing: neighbouring nodes land in different shards.
        let hash = (u64::from(key.space) << 32 | u64::from(key.node)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 40) as usize & (self.shards.len() - 1)]
    }
}

impl Space {
    /// Appends the row of `node` that was written at `version`, from memory or by `load`, which appends it and may take
    /// its time. Whoever needs the same row meanwhile waits for this load.
    pub(crate) fn read(&self, node: u32, version: u32, out: &mut Vec<u32>, load: impl FnOnce(&mut Vec<u32>)) {
        let (cache, key) = (&*self.cache, self.key(node));
        let shard = cache.shard(key);
        // In a statement of its own, so that the lock is free again before anything is loaded.
        let found = shard.state.lock().get(key, version, out);
        match found {
            Found::Hit => return Counters::add(&cache.counters.hits, 1),
            Found::Newer => {
                // The reader's snapshot is older than what is kept: it reads for itself and changes nothing.
                Counters::add(&cache.counters.past, 1);
                return cache.load(out, load);
            }
            Found::Missing => Counters::add(&cache.counters.misses, 1),
        }
        let (ours, is_first) = shard.join_load(key, version);
        if !is_first {
            return ours.wait(out);
        }
        let from = out.len();
        // It may have been loaded between the look and now.
        if shard.state.lock().get(key, version, out) != Found::Hit {
            cache.load(out, load);
            shard.state.lock().put(key, version, &out[from..]);
        }
        let row: Arc<[u32]> = out[from..].into();
        shard.loading.lock().remove(&(key, version));
        ours.finish(row);
    }

    /// Puts rows that `version` wrote into the cache: `rows` holds one per node, all of the same length. Rows of earlier
    /// versions stay for those who still read them, at most one per node.
    pub(crate) fn publish(&self, version: u32, nodes: &[u32], rows: &[u32]) {
        if nodes.is_empty() {
            return;
        }
        let words = rows.len() / nodes.len();
        for (&node, row) in nodes.iter().zip(rows.chunks_exact(words)) {
            let key = self.key(node);
            self.cache.shard(key).state.lock().put(key, version, row);
        }
        Counters::add(&self.cache.counters.published, nodes.len() as u64);
    }

    /// Takes nodes out; returns how many were there.
    pub(crate) fn forget(&self, nodes: impl Iterator<Item = u32>) -> u64 {
        let removed = nodes.map(|node| self.key(node)).filter(|&key| self.cache.shard(key).state.lock().remove(key));
        let removed = removed.count() as u64;
        Counters::add(&self.cache.counters.invalidated, removed);
        removed
    }

    /// Takes all nodes of this space out; returns how many there were.
    pub(crate) fn forget_all(&self) -> u64 {
        let removed = self.cache.shards.iter().map(|shard| shard.state.lock().remove_space(self.number)).sum();
        Counters::add(&self.cache.counters.invalidated, removed);
        removed
    }

    fn key(&self, node: u32) -> Key {
        Key { space: self.number, node }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for shard in &self.cache.shards {
            shard.state.lock().remove_space(self.number);
        }
    }
}

impl Shard {
    /// The load of a row that is under way, or a new one, which is then the caller's to finish.
    fn join_load(&self, key: Key, version: u32) -> (Arc<Load>, bool) {
        let mut loading = self.loading.lock();
        if let Some(load) = loading.get(&(key, version)) {
            return (Arc::clone(load), false);
        }
        let load = Arc::<Load>::default();
        loading.insert((key, version), Arc::clone(&load));
        (load, true)
    }
}

impl Load {
    fn finish(&self, row: Arc<[u32]>) {
        *self.row.lock() = Some(row);
        self.loaded.notify_all();
    }

    fn wait(&self, out: &mut Vec<u32>) {
        let mut row = self.row.lock();
        loop {
            if let Some(row) = &*row {
                return out.extend_from_slice(row);
            }
            self.loaded.wait(&mut row);
        }
    }
}
