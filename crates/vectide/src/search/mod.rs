//! Reads over every mix of sources: nearest rows, rows by key, all rows, how many.
//!
//! `table` pins a snapshot and hands it in (`Reader`); the sources answer through `rows::RowSource`. `snapshot` says
//! what one read sees, `exec` finds rows, `top_k` merges, `output` turns rows into the caller's batches, `request` holds
//! the builders that callers await. Invariant: newest version per key wins before the top k is taken, because a source
//! only ever gives rows that live in the snapshot.

pub(crate) mod exec;
mod output;
pub(crate) mod request;
pub(crate) mod snapshot;
mod top_k;

pub use request::{MAX_K, Queries, RowStream, Scan, Search, SearchBatch};

use crate::schema::TableSchema;
use snapshot::Pinned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What searches did, for statistics.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) queries: AtomicU64,
    pub(crate) tail_rows_scanned: AtomicU64,
    pub(crate) exact_scans: AtomicU64,
    pub(crate) short_results: AtomicU64,
    pub(crate) snapshots_held: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, n: u64) {
        // ORDERING: Relaxed: counts for people, publishing nothing.
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// The figures now.
    pub(crate) fn stats(&self) -> crate::stats::SearchStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        crate::stats::SearchStats {
            queries: get(&self.queries),
            tail_rows_scanned: get(&self.tail_rows_scanned),
            exact_scans: get(&self.exact_scans),
            short_results: get(&self.short_results),
            snapshots_held: get(&self.snapshots_held),
        }
    }
}

/// A pinned snapshot with what is needed to read it.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub(crate) schema: TableSchema,
    pub(crate) pinned: Pinned,
    pub(crate) counters: Arc<Counters>,
    /// Beam width of a search that names none.
    pub(crate) ef_search: usize,
}
