//! Tables: the handles that callers write and read through, and the machinery behind them.
//!
//! A write goes (`appender` or) `writer` (check, encode, look up) → `section` (publish) → `watermark` (acknowledge); `open` recovers a
//! shard, `maintain` flushes it, `merging` merges its segments, `indexer` fills its graphs, `budget` bounds its memory, `reader` follows it from another
//! process. Invariant: every promise about visibility and durability is kept by `section` and `watermark` alone.

pub mod appender;
pub(crate) mod budget;
pub(crate) mod indexer;
mod maintain;
mod merging;
pub(crate) mod open;
pub(crate) mod reader;
mod section;
pub(crate) mod shard;
mod verify;
mod watermark;
mod writer;

pub use appender::{Appender, CommitEvery, Value};
pub use reader::ReadTable;
pub use writer::WriteAck;

use crate::base::Base;
use crate::database::Inner as Database;
use crate::error::{Error, Result};
use crate::ids::{Seq, Token};
use crate::keys::Keys;
use crate::rows::RowSource;
use crate::schema::TableSchema;
use crate::search::request::{Pin_, Queries};
use crate::search::snapshot::Tier;
use crate::search::{Reader, Scan, Search, SearchBatch};
use crate::stats::{
    BaseStats, DrainStats, MemtableStats, SealedStats, SegmentStats, StallStats, TableStats, VerifyReport, WriteStats,
};
use arrow::array::RecordBatch;
use section::Condition;
use shard::Shard;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A table open for writing and reading. Cheap to clone; all clones are one table.
///
/// Every method is safe to call from many tasks at once. A future that is dropped before it completes leaves a batch
/// wholly written or wholly absent.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) shard: Arc<Shard>,
    /// Keeps the database open.
    pub(crate) database: Arc<Database>,
}

impl Table {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shard.ground.name
    }

    /// The table's schema.
    #[must_use]
    pub fn schema(&self) -> &TableSchema {
        &self.shard.ground.schema
    }

    /// Writes rows, replacing those whose key is there already; of a key that stands twice in the batch the later row
    /// wins. On return the batch is visible to every later read, whole, and durable (unless the database is `buffered`).
    ///
    /// # Errors
    /// `Invalid` for bad input (nothing was written; the message names column and row), or if the table has no key;
    /// `Unavailable` if disk or memory is full (nothing was written) or the log failed (outcome unknown: the handle is
    /// then closed); `Fenced` if another writer took over; `Closed`.
    pub async fn upsert(&self, batch: RecordBatch) -> Result<WriteAck> {
        if self.schema().key().is_none() {
            return Err(Error::invalid("the table has no key column, so there is nothing to upsert by; use insert"));
        }
        self.shard.write(&batch, Condition::None).await
    }

    /// Writes rows whose keys must be new (in a table without a key: appends). Visible and durable as [`Table::upsert`].
    ///
    /// # Errors
    /// `Conflict` naming the first key that has a live row already, or `Invalid` for one that stands twice in the batch:
    /// nothing was written. Otherwise as [`Table::upsert`].
    pub async fn insert(&self, batch: RecordBatch) -> Result<WriteAck> {
        self.shard.write(&batch, Condition::Absent).await
    }

    /// Replaces rows only if none of them was written after `expected`: a read-modify-write that loses no update. Take
    /// the token from the acknowledgement of the write that is being replaced, or from [`Snapshot::token`].
    ///
    /// # Errors
    /// `Conflict` naming the first key that was written since or has no live row: nothing was written; `Lost` if the
    /// token names a write that did not survive. Otherwise as [`Table::insert`].
    pub async fn upsert_if(&self, batch: RecordBatch, expected: Token) -> Result<WriteAck> {
        if self.schema().key().is_none() {
            return Err(Error::invalid("the table has no key column, so there is nothing to compare; use insert"));
        }
        let condition = self.shard.expectation(expected)?;
        self.shard.write(&batch, condition).await
    }

    /// Deletes the rows of the keys; keys without a row are passed over. Visible and durable as [`Table::upsert`]. Works
    /// on a full disk too.
    ///
    /// # Errors
    /// `Invalid` for keys of another type or null, or if the table has no key. Otherwise as [`Table::upsert`].
    pub async fn delete(&self, keys: impl Into<Keys>) -> Result<WriteAck> {
        self.shard.delete(&keys.into()).await
    }

    /// An appender: columnar buffers of the caller's own, published as one batch. One per thread; see [`Appender`].
    #[must_use]
    pub fn appender(&self) -> Appender {
        Appender::new(self.clone())
    }

    /// Waits until the write that `token` names would survive a power cut. Returns at once in a `durable` database; in one
    /// without a log it flushes.
    ///
    /// # Errors
    /// `Lost` for a token of an earlier writer whose write was not in the log when that was recovered; the log's error
    /// if it fails first.
    pub async fn wait_durable(&self, token: Token) -> Result<()> {
        self.shard.wait_durable(token).await
    }

    /// Finds the rows nearest to `query`, `[dim]`. See [`Search`].
    pub fn search(&self, query: &[f32]) -> Search {
        Search::new(self.pin(), query)
    }

    /// Runs many searches on one snapshot, on all cores. See [`SearchBatch`].
    pub fn search_batch(&self, queries: &(impl Queries + ?Sized)) -> SearchBatch {
        SearchBatch::new(self.pin(), queries.queries())
    }

    /// The rows of the keys that have one, in the order of the keys, with all columns.
    ///
    /// # Errors
    /// `Invalid` for keys of another type or null, or if the table has no key.
    pub async fn get(&self, keys: impl Into<Keys>) -> Result<RecordBatch> {
        self.reader().get_all(&keys.into())
    }

    /// All rows. See [`Scan`].
    pub fn scan(&self) -> Scan {
        Scan::new(self.pin())
    }

    /// How many rows there are. Costs nothing.
    ///
    /// # Errors
    /// None now; reserved for tables that are spread over machines.
    pub async fn count(&self) -> Result<u64> {
        Ok(self.shard.watermark.cut().live)
    }

    /// Pins what is visible now, for reads that must agree with one another. If [`Options::snapshots`](crate::Options)
    /// are held already, reading this one gives `Unavailable`.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let reader = self.reader();
        let token = self.shard.token_at(reader.pinned.cut.seq);
        Snapshot { token: Some(token), ..Snapshot::of_reader(reader, self.shard.ground.options.snapshots as u64) }
    }

    /// Writes everything published so far into segments and waits for it. Reads and writes go on meanwhile. Not needed
    /// for durability: for a short recovery and a short log.
    ///
    /// # Errors
    /// Why the flush failed; the rows are safe in the log and flushing is tried again in the background.
    pub async fn flush(&self) -> Result<()> {
        self.shard.flush_all().await
    }

    /// The table's figures.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        stats_of(&self.shard)
    }

    /// Reads every part of every segment back and checks checksums, links, reachability, keys and counts.
    ///
    /// # Errors
    /// `Corrupt` naming the damaged object.
    pub async fn verify(&self) -> Result<VerifyReport> {
        let shard = &self.shard;
        let _keeps_files = verify::KeepsFiles::new(shard);
        let manifest =
            shard.manifest.load_latest().await?.ok_or_else(|| Error::corrupt("the table has no manifest"))?;
        verify::verify(&shard.ground, &manifest, self.reader()).await.map_err(verify::missing_is_damage)
    }

    /// Closes the table: waits for the log, records its clean end, stops the background. The rows stay. Further calls on
    /// any clone give `Closed`; other tables of the database stay open.
    ///
    /// # Errors
    /// The log's error if it cannot be closed cleanly: the next open then recovers as after a crash.
    pub async fn close(&self) -> Result<()> {
        self.database.forget_table(self.name());
        self.shard.close().await
    }

    fn reader(&self) -> Reader {
        self.shard.reader()
    }

    fn pin(&self) -> Pin_ {
        let shard = Arc::clone(&self.shard);
        Arc::new(move || {
            let reader = shard.reader();
            Box::pin(async move { Ok(reader) })
        })
    }
}

/// A repeatable read: sees exactly what was visible when it was taken, whatever is written, flushed or merged since.
/// Cheap to clone; holds memory of what it sees until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Snapshot {
    reader: Reader,
    token: Option<Token>,
    /// Its place in the count of held snapshots, or why it got none.
    held: Result<Arc<Held>>,
}

impl Snapshot {
    /// A snapshot over a reader of another process's table.
    pub(crate) fn of_reader(reader: Reader, limit: u64) -> Self {
        let held = Held::take(&reader.counters, limit).map(Arc::new);
        Self { reader, token: None, held }
    }

    fn readable(&self) -> Result<&Reader> {
        self.held.as_ref().map(|_| &self.reader).map_err(Clone::clone)
    }

    /// Names the newest write that the snapshot sees, for [`Table::upsert_if`]. `None` in a read-only handle.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.token
    }

    /// As [`Table::search`].
    pub fn search(&self, query: &[f32]) -> Search {
        Search::new(self.pin(), query)
    }

    /// As [`Table::search_batch`].
    pub fn search_batch(&self, queries: &(impl Queries + ?Sized)) -> SearchBatch {
        SearchBatch::new(self.pin(), queries.queries())
    }

    /// As [`Table::get`].
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn get(&self, keys: impl Into<Keys>) -> Result<RecordBatch> {
        self.readable()?.get_all(&keys.into())
    }

    /// As [`Table::scan`].
    pub fn scan(&self) -> Scan {
        Scan::new(self.pin())
    }

    /// As [`Table::count`].
    ///
    /// # Errors
    /// As [`Table::count`].
    pub async fn count(&self) -> Result<u64> {
        Ok(self.readable()?.pinned.cut.live)
    }

    fn pin(&self) -> Pin_ {
        let reader = self.readable().cloned();
        Arc::new(move || {
            let reader = reader.clone();
            Box::pin(async move { reader })
        })
    }
}

/// One held snapshot in the count.
#[derive(Debug)]
struct Held(Arc<crate::search::Counters>);

impl Held {
    fn take(counters: &Arc<crate::search::Counters>, limit: u64) -> Result<Self> {
        // ORDERING: Relaxed: a bound on a count; it publishes nothing.
        let taken = counters
            .snapshots_held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held < limit).then_some(held + 1));
        match taken {
            Ok(_) => Ok(Self(Arc::clone(counters))),
            Err(held) => Err(Error::unavailable(format!(
                "{held} snapshots of the table are held already (option `snapshots`): drop some, then try again"
            ))),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.snapshots_held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reader {
    fn get_all(&self, keys: &Keys) -> Result<RecordBatch> {
        let all: Vec<usize> = (0..self.schema.arrow().fields().len()).collect();
        self.get(keys, &all)
    }
}

impl Shard {
    /// A reader of what is visible now.
    pub(crate) fn reader(&self) -> Reader {
        Reader {
            schema: self.ground.schema.clone(),
            pinned: self.pin(),
            counters: Arc::clone(&self.searches),
            ef_search: self.ground.options.ef_search,
        }
    }

    /// Stops taking writes, closes the log, records its end and stops the background task.
    pub(crate) async fn close(&self) -> Result<()> {
        self.end(true).await
    }

    /// [`Shard::close`] for a table that is about to be dropped: flushes nothing.
    pub(crate) async fn discard(&self) -> Result<()> {
        self.end(false).await
    }

    async fn end(&self, keeps_rows: bool) -> Result<()> {
        let first = self.section.lock().closed.replace(Error::closed("the table was closed; open it again")).is_none();
        if !first {
            return Ok(());
        }
        let (started, queue_rows) = (self.ground.clock.now(), self.log.get().map_or(0, |log| log.stats().queue_rows));
        let tail_rows = self.watermark.tail().0;
        // Without a log, only segments last.
        let flushed = if self.has_log() || !keeps_rows { Ok(()) } else { self.flush_all().await };
        let ended = match self.log.get() {
            Some(log) => log.close().await,
            None => Err(Error::closed("the table was never opened")),
        };
        let ms = self.ground.clock.now().saturating_sub(started).as_secs_f64() * 1e3;
        *self.drain.lock() = DrainStats { queue_rows, tail_rows, ms };
        self.closing.send_replace(true);
        self.merge_stop.set();
        let mut end = ended?;
        flushed?;
        if !self.has_log() {
            end.last_seq = Seq(self.section.lock().next_seq.0 - 1);
        }
        self.manifest
            .commit(self.epoch, |now| {
                let mut next = now.clone();
                if next.closed.iter().all(|closed| closed.epoch != end.epoch) {
                    next.closed.push(end);
                }
                Ok(next)
            })
            .await
            .map(drop)
    }

    /// Stops the background task without closing the log cleanly: what dropping a database does.
    pub(crate) fn abandon(&self) {
        self.section.lock().closed.get_or_insert_with(|| Error::closed("the database was closed; open it again"));
        self.closing.send_replace(true);
        self.merge_stop.set();
    }
}

fn base_stats(base: &Base) -> BaseStats {
    BaseStats {
        id: base.meta.id.clone(),
        version: base.meta.version.into(),
        segments: base.meta.segments.iter().filter(|adopted| adopted.is_complete).count() as u64,
        nodes: base.nodes(),
        deltas: base.meta.deltas.len() as u64,
        bytes: base.disk_bytes(),
        memory_bytes: base.memory_bytes(),
        bad_links: base.bad_links(),
    }
}

fn stats_of(shard: &Shard) -> TableStats {
    let view = shard.view();
    let cut = shard.watermark.cut();
    let (tail_rows, tail_rows_max) = shard.watermark.tail();
    let (mut segments, mut rows) = (SegmentStats::default(), 0u64);
    for source in &view.sources {
        let tier = source.tier();
        if let Tier::Segment(segment) = &tier {
            segments.count += 1;
            segments.rows += u64::from(segment.rows());
            segments.bytes += segment.disk_bytes();
        }
        rows += u64::from(source.rows().rows());
    }
    let held = shard.in_memory();
    let mut sealed = SealedStats::default();
    let mut memtable = MemtableStats { tail_rows, tail_rows_max, ..MemtableStats::default() };
    for (n, part) in held.iter().enumerate() {
        let memory = part.memtable.memory();
        if n + 1 < held.len() {
            sealed.count += 1;
            sealed.rows += u64::from(part.memtable.rows());
            sealed.bytes += memory.total();
            continue;
        }
        memtable.rows = u64::from(part.memtable.rows());
        memtable.rows_bytes = memory.rows_bytes;
        memtable.graph_bytes = memory.graph_bytes;
        memtable.code_bytes = memory.code_bytes;
        memtable.key_bytes = memory.key_bytes;
        memtable.bookkeeping_bytes = memory.bookkeeping_bytes;
    }
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &shard.counters;
    TableStats {
        name: shard.ground.name.clone(),
        epoch: shard.epoch.0,
        live_rows: cut.live,
        dead_rows: rows.saturating_sub(cut.live),
        visible_publication: cut.at.0,
        held_back: shard.watermark.held_back(shard.ground.clock.now()),
        memtable,
        sealed,
        segments,
        wal: shard.log.get().map(|log| log.stats()).unwrap_or_default(),
        flush: *shard.flush_stats.lock(),
        base: view.base().map(|base| base_stats(base)).unwrap_or_default(),
        merge: shard.merge_stats(),
        node_cache: shard.ground.node_cache.stats(),
        stalls: StallStats {
            memory: get(&counters.stalls),
            memory_ms: get(&counters.stalled_nanos) as f64 / 1e6,
            refused: get(&counters.refused),
        },
        searches: shard.searches.stats(),
        writes: WriteStats {
            batches: get(&counters.batches),
            rows: get(&counters.rows),
            deletes: get(&counters.deletes),
        },
        recovery: *shard.recovery.lock(),
        drain: *shard.drain.lock(),
        tail_max_pct: match get(&counters.rows) {
            0 => 0.0,
            written => tail_rows_max as f64 / written as f64 * 100.0,
        },
        health: shard.health(),
    }
}
