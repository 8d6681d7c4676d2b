//! A database: a directory or object-store prefix, its catalog of tables, and what they share.
//!
//! [`Vectide`] opens for writing (one process at a time on a local directory), [`ReadOnly`] beside it. Both are thin: the
//! catalog is a numbered log of JSON objects (`manifest`), a table is opened by `table::open` when it is first asked for.
//! Invariant: tables share one memory budget, one pool of index threads, one store.

use crate::base::node_cache::NodeCache;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::ShardId;
use crate::manifest::{Catalog, ShardManifest, TableEntry, Versioned};
use crate::merge::worker::Worker;
use crate::options::Options;
use crate::schema::TableSchema;
use crate::stats::DatabaseStats;
use crate::store::paths::{self, ShardPaths};
use crate::store::{LockGuard, PutOutcome, Store};
use crate::table::budget::Budget;
use crate::table::indexer::Indexer;
use crate::table::shard::{Ground, Shard};
use crate::table::{ReadTable, Table};
use arrow::datatypes::{Schema, SchemaRef};
use bytes::Bytes;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A database open for writing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Vectide {
    inner: Arc<Inner>,
}

/// What all handles of an open database share.
pub(crate) struct Inner {
    store: Arc<dyn Store>,
    catalog: Versioned<Catalog>,
    options: Arc<Options>,
    clock: Arc<dyn Clock>,
    budget: Arc<Budget>,
    indexer: Arc<Indexer>,
    node_cache: Arc<NodeCache>,
    merger: Arc<Worker>,
    lock: Option<Arc<dyn LockGuard>>,
    /// Held while a table is opened, created or dropped, so that it is opened once.
    tables: tokio::sync::Mutex<()>,
    open: parking_lot::Mutex<HashMap<String, Arc<Shard>>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A table as the catalog lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// The random id that its paths carry.
    pub id: String,
    /// Its schema.
    pub schema: TableSchema,
}

/// Opens databases with components of one's own: a store, a clock.
#[derive(Debug)]
pub struct Builder {
    uri: String,
    options: Options,
    store: Option<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
}

impl Builder {
    /// Settings.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// A store to use instead of the one that the URI names.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// A clock to measure ages and intervals by.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens for writing. See [`Vectide::open`].
    ///
    /// # Errors
    /// As [`Vectide::open`].
    pub async fn open(self) -> Result<Vectide> {
        self.options.validate()?;
        let store = self.opened_store(false).await?;
        let lock = lock_directory(&store).await?;
        clean_up_after_the_dead(&store).await?;
        let catalog = Versioned::new(Arc::clone(&store), paths::CATALOG_DIR, crate::runtime::random_u64());
        if catalog.load_latest().await?.is_none() {
            try_conditions(&store).await?;
            match catalog.create(Catalog::empty()).await {
                Err(error) if error.kind() != ErrorKind::Conflict => return Err(error),
                _ => {}
            }
        }
        let inner = self.inner(store, catalog, lock)?;
        Ok(Vectide { inner: Arc::new(inner) })
    }

    /// Opens for reading only. See [`Vectide::open_read_only`].
    ///
    /// # Errors
    /// As [`Vectide::open_read_only`].
    pub async fn open_read_only(self) -> Result<ReadOnly> {
        self.options.validate()?;
        let store = self.opened_store(true).await?;
        let catalog: Versioned<Catalog> =
            Versioned::new(Arc::clone(&store), paths::CATALOG_DIR, crate::runtime::random_u64());
        if catalog.load_latest().await?.is_none() {
            return Err(Error::not_found(format!("there is no Vectide database at {}", self.uri)));
        }
        let inner = self.inner(store, catalog, None)?;
        Ok(ReadOnly { inner: Arc::new(inner) })
    }

    async fn opened_store(&self, existing: bool) -> Result<Arc<dyn Store>> {
        crate::store::map::settle_allocator();
        match &self.store {
            Some(store) => Ok(Arc::clone(store)),
            None => {
                let (uri, options) = (self.uri.clone(), self.options.store.clone());
                let open = move || match existing {
                    true => crate::store::open_existing_uri(&uri, &options),
                    false => crate::store::open_uri(&uri, &options),
                };
                tokio::task::spawn_blocking(open)
                    .await
                    .map_err(|e| Error::internal("opening the store").with_source(e))?
            }
        }
    }

    fn inner(
        &self,
        store: Arc<dyn Store>,
        catalog: Versioned<Catalog>,
        lock: Option<Arc<dyn LockGuard>>,
    ) -> Result<Inner> {
        let options = Arc::new(self.options.clone());
        let stall_timeout = Duration::from_millis(options.stall_timeout_ms);
        let indexer = Indexer::start(options.index_threads()).map_err(|e| Error::io("starting index threads", e))?;
        Ok(Inner {
            budget: Budget::new(options.memory_bytes, stall_timeout, Arc::clone(&self.clock)),
            indexer: Arc::new(indexer),
            node_cache: NodeCache::with_delay(
                options.merge.node_cache_bytes,
                Duration::from_micros(options.merge.load_delay_us),
            ),
            merger: Arc::new(Worker::start().map_err(|e| Error::io("starting the merge thread", e))?),
            store,
            catalog,
            options,
            clock: Arc::clone(&self.clock),
            lock,
            tables: tokio::sync::Mutex::new(()),
            open: parking_lot::Mutex::default(),
        })
    }
}

/// Removes half-written files of a writer that was killed and makes every name it left behind durable, so that nothing
/// is read that a power cut could still take back.
async fn clean_up_after_the_dead(store: &Arc<dyn Store>) -> Result<()> {
    let Some(dir) = store.local() else { return Ok(()) };
    let swept = tokio::task::spawn_blocking(move || crate::store::sweep_temporaries(&dir)).await;
    swept.map_err(|e| Error::internal("sweeping temporary files").with_source(e))?.map(drop)
}

/// Refuses a remote store that overwrites where it is told to put only what is absent: two writers there would destroy
/// each other's rows without noticing. Three requests, before a database is made.
async fn try_conditions(store: &Arc<dyn Store>) -> Result<()> {
    if store.local().is_some() {
        return Ok(());
    }
    let path = paths::probe(crate::runtime::random_u64());
    store.put_if_absent(&path, Bytes::from_static(b"first")).await?;
    let second = store.put_if_absent(&path, Bytes::from_static(b"second")).await?;
    store.delete(&path).await?;
    match second {
        PutOutcome::Exists => Ok(()),
        PutOutcome::Created => Err(Error::invalid(
            "the store ignores the condition `If-None-Match: *` of a put, so that it cannot keep two writers apart: use \
             one that honours it, or a local directory",
        )),
    }
}

/// How long an open waits for this process's own earlier handle to let go of the lock.
const OWN_LOCK_ATTEMPTS: u32 = 50;
const OWN_LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Takes the local directory's lock; the error names who holds it.
async fn lock_directory(store: &Arc<dyn Store>) -> Result<Option<Arc<dyn LockGuard>>> {
    let Some(dir) = store.local() else { return Ok(None) };
    let path = dir.root.join(paths::LOCK);
    let pid = std::process::id().to_string();
    for attempt in 0.. {
        let taken = dir.fs.lock(&path, &pid).map_err(|e| Error::io(format_args!("locking {}", path.display()), e))?;
        match taken {
            Ok(guard) => return Ok(Some(Arc::from(guard))),
            // This process's own earlier handle may still be on its way out, with a flush under way.
            Err(holder) if holder == pid && attempt < OWN_LOCK_ATTEMPTS => tokio::time::sleep(OWN_LOCK_PAUSE).await,
            Err(holder) => {
                return Err(Error::conflict(format!(
                    "{} is open for writing in process {holder}: close that one, or open this one read-only",
                    dir.root.display()
                )));
            }
        }
    }
    Err(Error::internal("the lock was tried without end"))
}

/// What a table can be created from.
pub trait IntoTableSchema {
    /// The schema.
    ///
    /// # Errors
    /// `Invalid` if it is none that Vectide can keep.
    fn into_table_schema(self) -> Result<TableSchema>;
}

impl IntoTableSchema for TableSchema {
    fn into_table_schema(self) -> Result<TableSchema> {
        Ok(self)
    }
}

impl IntoTableSchema for Result<TableSchema> {
    fn into_table_schema(self) -> Result<TableSchema> {
        self
    }
}

impl IntoTableSchema for Schema {
    fn into_table_schema(self) -> Result<TableSchema> {
        TableSchema::from_arrow(&self)
    }
}

impl IntoTableSchema for SchemaRef {
    fn into_table_schema(self) -> Result<TableSchema> {
        TableSchema::from_arrow(&self)
    }
}

impl Vectide {
    /// Opens a database for writing, creating it if there is none: a bare path or `file://` for a local directory,
    /// `memory://` for one that lives with the process, `s3://bucket/prefix` for an object store.
    ///
    /// # Errors
    /// `Conflict` if another process has the local directory open for writing (the message names its pid); `Invalid` for
    /// bad options or URI; `Corrupt`, `Unavailable` from the store.
    pub async fn open(uri: &str, options: Options) -> Result<Self> {
        Self::builder(uri).options(options).open().await
    }

    /// Opens an existing database for reading, in any number of processes, beside its writer. Reads see what the writer
    /// has made durable, a stated time behind it.
    ///
    /// # Errors
    /// `NotFound` if there is no database; otherwise as [`Vectide::open`], without the lock.
    pub async fn open_read_only(uri: &str, options: Options) -> Result<ReadOnly> {
        Self::builder(uri).options(options).open_read_only().await
    }

    /// Opens with components of one's own.
    pub fn builder(uri: impl Into<String>) -> Builder {
        Builder { uri: uri.into(), options: Options::default(), store: None, clock: Arc::new(SystemClock::new()) }
    }

    /// Creates a table and opens it.
    ///
    /// # Errors
    /// `Conflict` if there is one of that name; `Invalid` for a bad name or schema.
    pub async fn create_table(&self, name: &str, schema: impl IntoTableSchema) -> Result<Table> {
        paths::check_table_name(name)?;
        let schema = schema.into_table_schema()?;
        let inner = &self.inner;
        let _guard = inner.tables.lock().await;
        let taken = || Error::conflict(format!("table `{name}` exists already: open it, or drop it first"));
        if inner.entry(name).await?.is_some() {
            return Err(taken());
        }
        let id = format!("{:016x}{:016x}", crate::runtime::random_u64(), crate::runtime::random_u64());
        let entry = TableEntry {
            name: name.to_owned(),
            id,
            schema: schema.encode(),
            options: serde_json::Value::Object(serde_json::Map::default()),
        };
        // The shard first: a table that the catalog names has a manifest.
        let shard_paths = ShardPaths::new(&entry.id, ShardId(0))?;
        let manifest: Versioned<ShardManifest> =
            Versioned::new(Arc::clone(&inner.store), shard_paths.manifest_dir(), crate::runtime::random_u64());
        manifest.create(ShardManifest::empty()).await?;
        inner
            .catalog
            .commit(crate::ids::Epoch(0), |catalog| {
                let mut next = catalog.clone();
                match next.table(name) {
                    Some(there) if there.id == entry.id => {}
                    Some(_) => return Err(taken()),
                    None => next.tables.push(entry.clone()),
                }
                Ok(next)
            })
            .await?;
        inner.open_entry(&entry, &self.inner).await
    }

    /// Opens a table, recovering it from its log if need be. Asking again gives the same table.
    ///
    /// # Errors
    /// `NotFound`, listing the tables there are; `Corrupt` naming the damaged object; `Unavailable`.
    pub async fn open_table(&self, name: &str) -> Result<Table> {
        let _guard = self.inner.tables.lock().await;
        if let Some(shard) = self.inner.open.lock().get(name) {
            return Ok(Table { shard: Arc::clone(shard), database: Arc::clone(&self.inner) });
        }
        let entry = self.inner.entry(name).await?;
        let entry = entry.ok_or_else(|| self.inner.no_table(name))?;
        self.inner.open_entry(&entry, &self.inner).await
    }

    /// The tables, by name.
    ///
    /// # Errors
    /// From the store.
    pub async fn list_tables(&self) -> Result<Vec<TableInfo>> {
        self.inner.list().await
    }

    /// Drops a table: its name is free at once, its objects are removed. Handles that are open give `Closed`.
    ///
    /// # Errors
    /// `NotFound`, listing the tables there are.
    pub async fn drop_table(&self, name: &str) -> Result<()> {
        let inner = &self.inner;
        let _guard = inner.tables.lock().await;
        let entry = inner.entry(name).await?.ok_or_else(|| inner.no_table(name))?;
        let shard = inner.open.lock().remove(name);
        if let Some(shard) = shard {
            // The rows go away: an unclean end of their log is no loss.
            let _ = shard.discard().await;
        }
        inner
            .catalog
            .commit(crate::ids::Epoch(0), |catalog| {
                let mut next = catalog.clone();
                next.tables.retain(|t| t.id != entry.id);
                Ok(next)
            })
            .await?;
        // The catalog no longer names them: what a crash leaves behind here is garbage.
        for object in inner.store.list(&paths::table_dir(&entry.id)).await? {
            inner.store.delete(&object.path).await?;
        }
        Ok(())
    }

    /// The figures of the database and its open tables.
    #[must_use]
    pub fn stats(&self) -> DatabaseStats {
        self.inner.stats(&self.inner)
    }

    /// Closes every open table cleanly. Further calls on any handle give `Closed`. The directory's lock is given back
    /// when the last handle is dropped.
    ///
    /// # Errors
    /// The first table's that cannot be closed cleanly; the others are closed all the same.
    pub async fn close(&self) -> Result<()> {
        let _guard = self.inner.tables.lock().await;
        let shards: Vec<_> = self.inner.open.lock().drain().map(|(_, shard)| shard).collect();
        let closed = futures::future::join_all(shards.iter().map(|shard| shard.close())).await;
        closed.into_iter().collect()
    }
}

impl Inner {
    async fn entry(&self, name: &str) -> Result<Option<TableEntry>> {
        Ok(self.catalog.load_latest().await?.and_then(|catalog| catalog.table(name).cloned()))
    }

    fn no_table(&self, name: &str) -> Error {
        let catalog = self.catalog.cached();
        let mut names: Vec<_> = catalog.iter().flat_map(|c| &c.tables).map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        match names[..] {
            [] => Error::not_found(format!("there is no table `{name}`, nor any other: create it first")),
            _ => Error::not_found(format!("there is no table `{name}`; there are: {}", names.join(", "))),
        }
    }

    async fn list(&self) -> Result<Vec<TableInfo>> {
        let catalog = self.catalog.load_latest().await?;
        let mut tables = catalog
            .iter()
            .flat_map(|c| &c.tables)
            .map(|t| Ok(TableInfo { name: t.name.clone(), id: t.id.clone(), schema: TableSchema::decode(&t.schema)? }))
            .collect::<Result<Vec<_>>>()?;
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tables)
    }

    pub(crate) fn ground(&self, entry: &TableEntry) -> Result<Ground> {
        let schema = TableSchema::decode(&entry.schema)?;
        Ok(Ground {
            name: entry.name.clone(),
            log_schema: crate::table::open::log_schema(&schema)?,
            schema,
            options: Arc::clone(&self.options),
            paths: ShardPaths::new(&entry.id, ShardId(0))?,
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            budget: Arc::clone(&self.budget),
            indexer: Arc::clone(&self.indexer),
            node_cache: Arc::clone(&self.node_cache),
            merger: Arc::clone(&self.merger),
            _lock: self.lock.clone(),
        })
    }

    async fn open_entry(&self, entry: &TableEntry, inner: &Arc<Self>) -> Result<Table> {
        let shard = crate::table::open::open(self.ground(entry)?).await;
        let shard = shard.map_err(|e| e.context(format_args!("opening table `{}`", entry.name)))?;
        self.open.lock().insert(entry.name.clone(), Arc::clone(&shard));
        Ok(Table { shard, database: Arc::clone(inner) })
    }

    /// The table was closed: the next open recovers it anew.
    pub(crate) fn forget_table(&self, name: &str) {
        self.open.lock().remove(name);
    }

    fn stats(&self, inner: &Arc<Self>) -> DatabaseStats {
        let shards: Vec<_> = self.open.lock().values().cloned().collect();
        let tables = shards.into_iter().map(|shard| Table { shard, database: Arc::clone(inner) }.stats()).collect();
        DatabaseStats {
            memory_used_bytes: self.budget.used(),
            memory_budget_bytes: self.budget.limit(),
            store: serde_json::to_value(self.store.stats()).unwrap_or_default(),
            tables,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (_, shard) in self.open.get_mut().drain() {
            shard.abandon();
        }
    }
}

/// A database open for reading only. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReadOnly {
    inner: Arc<Inner>,
}

impl ReadOnly {
    /// The tables, by name.
    ///
    /// # Errors
    /// From the store.
    pub async fn list_tables(&self) -> Result<Vec<TableInfo>> {
        self.inner.list().await
    }

    /// Opens a table for reading: maps its segments and replays the durable part of its log into memory.
    ///
    /// # Errors
    /// `NotFound`, listing the tables there are; `Corrupt` naming the damaged object; `Unavailable`.
    pub async fn open_table(&self, name: &str) -> Result<ReadTable> {
        let entry = self.inner.entry(name).await?.ok_or_else(|| self.inner.no_table(name))?;
        ReadTable::open(self.inner.ground(&entry)?).await
    }
}
