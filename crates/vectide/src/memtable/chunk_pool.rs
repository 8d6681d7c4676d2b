//! Chunks of memory that appenders fill, handed on from memtables that are gone to the next ones.
//!
//! Memory that was never written to costs a page fault, and the kernel's clearing of it more than all else that an appended
//! row costs. In: [`ChunkPool::lend`] from a column that needs a chunk. Out: one that nobody holds a row of any more, or
//! a new one. [`ChunkPool::collect`] looks for those; the memory budget counts them and has them released when it runs
//! low. Invariant: a chunk is lent again only when no batch, snapshot or appender holds a byte of it.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Smaller chunks are left to the allocator.
const MIN_BYTES: usize = 256 << 10;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct ChunkPool {
    /// Bytes kept for the next ones, at most.
    limit: u64,
    state: Mutex<State>,
    /// Bytes of `State::free`.
    free_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// A handle without bytes on each chunk that is out.
    lent: Vec<(Bytes, usize)>,
    free: Vec<BytesMut>,
}

impl ChunkPool {
    /// A pool that keeps at most so many bytes free.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, state: Mutex::default(), free_bytes: AtomicU64::new(0) }
    }

    /// An empty buffer of at least `capacity` bytes, at most twice as large, and whether it is new memory.
    pub(crate) fn lend(&self, capacity: usize) -> (BytesMut, bool) {
        if capacity < MIN_BYTES {
            return (BytesMut::with_capacity(capacity), true);
        }
        let mut state = self.state.lock();
        self.collect_into(&mut state);
        let fits = |free: &BytesMut| (capacity..=2 * capacity).contains(&free.capacity());
        let found = state.free.iter().position(fits).map(|at| state.free.swap_remove(at));
        let is_new = found.is_none();
        let mut chunk = found.unwrap_or_else(|| BytesMut::with_capacity(capacity));
        let whole = chunk.capacity();
        state.lent.push((chunk.split_to(0).freeze(), whole));
        self.count(&state);
        (chunk, is_new)
    }

    /// Takes back the chunks that nobody holds a byte of.
    pub(crate) fn collect(&self) {
        let mut state = self.state.lock();
        self.collect_into(&mut state);
        self.count(&state);
    }

    fn collect_into(&self, state: &mut State) {
        let mut free_bytes: u64 = state.free.iter().map(|chunk| chunk.capacity() as u64).sum();
        let State { lent, free } = state;
        for (handle, whole) in std::mem::take(lent) {
            match handle.try_into_mut() {
                Err(handle) => lent.push((handle, whole)),
                Ok(chunk) if chunk.capacity() == whole && free_bytes + whole as u64 <= self.limit => {
                    free_bytes += whole as u64;
                    free.push(chunk);
                }
                Ok(_) => {}
            }
        }
    }

    /// Gives the free chunks back to the allocator; returns their bytes.
    pub(crate) fn release(&self) -> u64 {
        let mut state = self.state.lock();
        let bytes = state.free.drain(..).map(|chunk| chunk.capacity() as u64).sum();
        self.count(&state);
        bytes
    }

    /// Bytes kept for the next chunks: one atomic load.
    pub(crate) fn free_bytes(&self) -> u64 {
        // ORDERING: Relaxed: a count for the budget.
        self.free_bytes.load(Ordering::Relaxed)
    }

    fn count(&self, state: &State) {
        let bytes = state.free.iter().map(|chunk| chunk.capacity() as u64).sum();
        self.free_bytes.store(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 1 << 20;

    #[test]
    fn a_chunk_comes_back_when_the_last_row_of_it_is_gone_and_not_before() {
        let pool = ChunkPool::new(10 << 20);
        let (mut chunk, is_new) = pool.lend(CHUNK);
        assert!(is_new && chunk.is_empty() && chunk.capacity() >= CHUNK);
        let at = chunk.as_ptr();
        chunk.extend_from_slice(b"rows of a batch");
        let batch = chunk.split().freeze();
        pool.collect();
        assert_eq!(pool.free_bytes(), 0, "its appender goes on in it");
        drop(chunk);
        pool.collect();
        assert_eq!((pool.free_bytes(), &batch[..4]), (0, &b"rows"[..]), "a batch holds rows of it");
        drop(batch);
        pool.collect();
        assert!(pool.free_bytes() >= CHUNK as u64);
        let (again, is_new) = pool.lend(CHUNK);
        assert!(!is_new && again.is_empty() && again.as_ptr() == at, "the same memory, from its beginning");
        assert_eq!(pool.free_bytes(), 0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_can_be_released() {
        let pool = ChunkPool::new(3 * CHUNK as u64);
        let chunks: Vec<_> = (0..5).map(|_| pool.lend(CHUNK).0).collect();
        drop(chunks);
        pool.collect();
        assert_eq!(pool.free_bytes(), 3 * CHUNK as u64);
        assert!(pool.lend(CHUNK / 4).1, "none is small enough");
        assert_eq!((pool.release(), pool.free_bytes()), (3 * CHUNK as u64, 0));
        assert!(pool.lend(CHUNK).1);
    }
}
