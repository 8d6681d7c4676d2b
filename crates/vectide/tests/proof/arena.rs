//! One shard on an object store, and what a writer does to it through a store that fails.
//!
//! `fight` and `simulation` decide who does what and when. Invariant: every open and write is noted in the [`History`].

use crate::history::{History, Seen, WriteId};
use crate::support::{all_rows, batch, schema};
use std::sync::{Arc, Mutex};
use vectide::clock::Clock;
use vectide::store::fault::{FaultOptions, FaultStore};
use vectide::store::{RetryOptions, RetryStore, Store};
use vectide::{ErrorKind, MergeOptions, Options, Result, Table, Vectide, WalOptions};

/// The shard and its history.
#[derive(Clone)]
pub struct Arena {
    store: Arc<dyn Store>,
    pub history: Arc<Mutex<History>>,
}

/// An open writer and the store that it sees.
#[derive(Clone)]
pub struct Writer {
    _db: Vectide,
    pub table: Table,
    pub epoch: u64,
    pub store: FaultStore,
    history: Arc<Mutex<History>>,
}

/// Memtables and logs so small that flushes and trims happen all the time.
fn options() -> Options {
    Options {
        memtable_rows: 120,
        memtable_log_objects: 12,
        tail_rows: 64,
        index_threads: 1,
        stall_timeout_ms: 2_000,
        flush_interval_ms: 60_000,
        merge: MergeOptions { step_rows: 16, core_pct: 100, fold_pct: 50, ..MergeOptions::default() },
        wal: WalOptions { puts_in_flight: 3, object_bytes: 8 << 10, ..WalOptions::default() },
        ..Options::default()
    }
}

impl Arena {
    /// A new shard in memory.
    pub async fn new(name: &str) -> Self {
        let uri = format!("memory://{name}");
        let store = vectide::store::open_uri(&uri, &vectide::store::StoreOptions::default()).expect("memory");
        let db = Vectide::builder("arena").store(Arc::clone(&store)).options(options()).open().await.expect("opens");
        db.create_table("t", schema()).await.expect("creates");
        db.close().await.expect("closes");
        Self { store, history: Arc::default() }
    }

    /// Opens a writer over a store with these faults; with retries around them if `retries`.
    pub async fn open(&self, faults: FaultOptions, retries: bool, clock: Arc<dyn Clock>) -> Result<Writer> {
        let seed = faults.seed;
        let store = FaultStore::new(Arc::clone(&self.store), faults);
        let mut seen_as = store.shared();
        if retries {
            let patience = RetryOptions { max_attempts: 5, base_delay_ms: 1, max_delay_ms: 8 };
            seen_as = Arc::new(RetryStore::new(seen_as, patience, seed)?);
        }
        let builder = Vectide::builder("arena").store(seen_as).options(options()).clock(clock);
        let db = builder.open().await?;
        let table = db.open_table("t").await?;
        let seen = look(&table).await;
        let epoch = table.stats().epoch;
        self.history.lock().expect("no panic").opened(epoch, seen);
        Ok(Writer { _db: db, table, epoch, store, history: Arc::clone(&self.history) })
    }

    /// Opens once more without faults, reads in every way, checks the history.
    pub async fn judge(&self) -> crate::history::Summary {
        let db =
            Vectide::builder("arena").store(Arc::clone(&self.store)).options(options()).open().await.expect("opens");
        let table = db.open_table("t").await.expect("opens");
        let end = look(&table).await;
        table.verify().await.expect("nothing is damaged");
        let history = self.history.lock().expect("no panic");
        history.check(&end).unwrap_or_else(|reason| panic!("{reason}"))
    }
}

/// Everything that is there, each key once.
async fn look(table: &Table) -> Seen {
    let rows: Vec<(i64, i64)> =
        all_rows(table).await.into_iter().map(|(key, value)| (key, value.parse().expect("a number"))).collect();
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "each key once");
    Seen::new(&rows)
}

fn rows(write: WriteId) -> vectide::arrow::array::RecordBatch {
    let value = write.0.to_string();
    let keys = write.own_keys().chain([write.register()]);
    batch(&keys.map(|key| (key, value.as_str(), [key as f32, write.0 as f32, 0.5, 1.0])).collect::<Vec<_>>())
}

impl Writer {
    /// Writes one batch and notes what became of it.
    pub async fn write(&self) -> Result<(), ErrorKind> {
        let write = self.history.lock().expect("no panic").invoked(self.epoch);
        let result = self.table.upsert(rows(write)).await.map(drop).map_err(|error| error.kind());
        self.history.lock().expect("no panic").ended(write, result);
        result
    }
}
