//! One shard on an object store, and what a writer does to it through a store that fails.
//!
//! The store lies in this process's memory, or behind real HTTP. `fight` and `simulation` decide who does what and when.
//! Invariant: every open and write is noted in the [`History`]. (`buffered` keeps a model of its own instead.)

use crate::history::{History, Seen, WriteId};
use crate::s3::S3;
use crate::support::{all_rows, batch, schema};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vectide::clock::Clock;
use vectide::store::fault::{FaultOptions, FaultStore};
use vectide::store::fault_fs::Phase;
use vectide::store::{RetryOptions, RetryStore, Store};
use vectide::{Builder, Durability, ErrorKind, MergeOptions, Options, Result, Table, Vectide, WalOptions};
use vectide_s3_server::{Faults, Line};

/// The shard and its history.
#[derive(Clone)]
pub struct Arena {
    place: Place,
    durability: Durability,
    clients: Arc<AtomicU64>,
    pub history: Arc<Mutex<History>>,
}

/// Where the shard lies.
#[derive(Clone)]
enum Place {
    Memory(Arc<dyn Store>),
    S3(Arc<S3>),
}

/// An open writer and the way to its store.
#[derive(Clone)]
pub struct Writer {
    _db: Vectide,
    pub table: Table,
    pub epoch: u64,
    pub way: Way,
    history: Arc<Mutex<History>>,
}

/// What lies between a writer and the shard, to hold it up by.
#[derive(Clone)]
pub enum Way {
    Store(FaultStore),
    Line(Line),
}

impl Way {
    /// From now on this writer's calls hang before or after their effect.
    pub fn stall(&self, phase: Phase) {
        match self {
            Self::Store(store) => store.stall(phase),
            Self::Line(line) if phase == Phase::Before => line.stall(vectide_s3_server::Phase::Before),
            Self::Line(line) => line.stall(vectide_s3_server::Phase::After),
        }
    }

    /// Lets them go on.
    pub fn release(&self) {
        match self {
            Self::Store(store) => store.release(),
            Self::Line(line) => line.release(),
        }
    }

    /// Waits until every late effect has taken place.
    pub async fn settle(&self) {
        match self {
            Self::Store(store) => store.settle().await,
            Self::Line(line) => line.settle().await,
        }
    }
}

/// Memtables and logs so small that flushes and trims happen all the time.
fn options(durability: Durability) -> Options {
    Options {
        durability,
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
    pub async fn new(name: &str, durability: Durability) -> Self {
        let uri = format!("memory://{name}");
        let store = vectide::store::open_uri(&uri, &vectide::store::StoreOptions::default()).expect("memory");
        Self::at(Place::Memory(store), durability).await
    }

    /// A new shard in a bucket of a server of its own.
    pub async fn over_http(durability: Durability) -> Self {
        Self::at(Place::S3(Arc::new(S3::start())), durability).await
    }

    async fn at(place: Place, durability: Durability) -> Self {
        let arena = Self { place, durability, clients: Arc::default(), history: Arc::default() };
        let db = arena.calm().open().await.expect("opens");
        db.create_table("t", schema()).await.expect("creates");
        db.close().await.expect("closes");
        arena
    }

    /// Opens without faults.
    fn calm(&self) -> Builder {
        match &self.place {
            Place::Memory(store) => {
                Vectide::builder("arena").store(Arc::clone(store)).options(options(self.durability))
            }
            Place::S3(s3) => {
                let (store, _) = s3.client("calm", RetryOptions::default(), 60_000);
                Vectide::builder(s3.uri("arena")).options(Options { store, ..options(self.durability) })
            }
        }
    }

    /// Opens a writer over a store in memory with these faults; with retries around them if `retries`.
    pub async fn open(&self, faults: FaultOptions, retries: bool, clock: Arc<dyn Clock>) -> Result<Writer> {
        let Place::Memory(inner) = &self.place else { panic!("the shard lies behind HTTP") };
        let seed = faults.seed;
        let store = FaultStore::new(Arc::clone(inner), faults);
        let mut seen_as = store.shared();
        if retries {
            let patience =
                RetryOptions { max_attempts: 5, base_delay_ms: 1, max_delay_ms: 8, ..RetryOptions::default() };
            seen_as = Arc::new(RetryStore::new(seen_as, patience, seed)?);
        }
        let builder = Vectide::builder("arena").store(seen_as).options(options(self.durability)).clock(clock);
        self.admit(builder, Way::Store(store)).await
    }

    /// Opens a writer over HTTP with these faults on its line; what it does about them is `patience`, per request and in
    /// all.
    pub async fn open_line(&self, faults: Faults, timeout_ms: u64, patience: RetryOptions) -> Result<Writer> {
        let Place::S3(s3) = &self.place else { panic!("the shard lies in memory") };
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        let (store, line) = s3.client(&format!("writer-{client}"), patience, timeout_ms);
        line.set_faults(faults);
        let builder = Vectide::builder(s3.uri("arena")).options(Options { store, ..options(self.durability) });
        self.admit(builder, Way::Line(line)).await
    }

    async fn admit(&self, builder: Builder, way: Way) -> Result<Writer> {
        let db = builder.open().await?;
        let table = db.open_table("t").await?;
        let epoch = table.stats().epoch;
        if self.durability == Durability::Durable {
            let seen = look(&table).await;
            self.history.lock().expect("no panic").opened(epoch, seen);
        }
        Ok(Writer { _db: db, table, epoch, way, history: Arc::clone(&self.history) })
    }

    /// Opens once more without faults, reads in every way, checks the history.
    pub async fn judge(&self) -> crate::history::Summary {
        let db = self.calm().open().await.expect("opens");
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
