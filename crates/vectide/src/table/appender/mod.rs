//! Appenders: columnar buffers of one thread's own, published as one batch (the term is DuckDB's).
//!
//! Rows are checked and copied into the thread's chunks (`RowBuffer`) without touching anything shared. A commit splits
//! the batch off without a copy, encodes and checksums it here where there is a log, and goes through the publication
//! section like any write: one short lock, one block linked, whatever the number of rows (decision 0007). Invariant: a
//! batch is published whole or not at all; what was not committed is seen by nobody.

mod blocking;
mod buffer;
mod value;

pub use value::Value;

use super::Table;
use super::budget::Admitted;
use super::section::{Change, Condition, Published};
use super::writer::{Ready, WriteAck};
use crate::batch::{self, CheckedBatch};
use crate::error::{Error, Result};
use crate::ids::PubNo;
use crate::memtable::{Prepared, batch_of};
use crate::wal::frame::{EncodedBatch, FrameKind};
use crate::wal::{Admission, LogPermit};
use arrow::array::RecordBatch;
use blocking::block_on;
use buffer::{RowBuffer, Taken};
use std::sync::Arc;
use std::time::Duration;

/// An appender takes memory from the budget in steps of this size, or its 64th part if that is smaller.
const CREDIT_BYTES: u64 = 256 << 10;
/// A commit of fewer rows and bytes is copied into the memtable where it may be, larger ones are linked as they are.
const GATHERED_ROWS: usize = 16;
const GATHERED_BYTES: u64 = 64 << 10;
/// No batch of an appender is larger, whatever `batch_bytes` says: offsets of a column have 32 bits.
const MAX_BYTES: u64 = 1 << 30;

/// When an [`Appender`] commits by itself: at whichever limit is reached first, always between two rows or batches.
///
/// ```
/// use std::time::Duration;
/// use vectide::CommitEvery;
///
/// let policy = CommitEvery::rows(10_000).or_bytes(8 << 20).or_interval(Duration::from_millis(100));
/// # let _ = policy;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitEvery {
    rows: Option<u64>,
    bytes: Option<u64>,
    interval: Option<Duration>,
}

impl CommitEvery {
    /// Once so many rows are buffered.
    #[must_use]
    pub fn rows(rows: u64) -> Self {
        Self { rows: Some(rows), ..Self::default() }
    }

    /// Once so many bytes are buffered.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..Self::default() }
    }

    /// Once the oldest buffered row is this old. Looked at when a row comes: an appender has no clock of its own, so
    /// rows stay buffered while nobody appends or commits.
    #[must_use]
    pub fn interval(interval: Duration) -> Self {
        Self { interval: Some(interval), ..Self::default() }
    }

    /// [`CommitEvery::rows`] besides.
    #[must_use]
    pub fn or_rows(self, rows: u64) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// [`CommitEvery::bytes`] besides.
    #[must_use]
    pub fn or_bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// [`CommitEvery::interval`] besides.
    #[must_use]
    pub fn or_interval(self, interval: Duration) -> Self {
        Self { interval: Some(interval), ..self }
    }
}

/// Columnar buffers of one thread, published as one batch. Made by [`Table::appender`]; give each thread its own.
///
/// Appending touches nothing shared. In a table with a key, a commit upserts: rows replace those of the same keys, and of
/// a key that stands twice in one commit the later row wins. Dropped without a commit, nothing happened.
///
/// ```
/// use vectide::{Options, Value, Vectide, schema};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> vectide::Result<()> {
/// let db = Vectide::open("memory://", Options::default()).await?;
/// let table = db.create_table("log", schema! { key id: Int64, text: Utf8, vector vec: [f32; 2] l2 }).await?;
///
/// let mut appender = table.appender();
/// appender.append_row(&[7.into(), "east".into(), (&[1.0, 0.0]).into()])?;
/// appender.append_row(&[8.into(), "north".into(), Value::Null])?;
/// assert_eq!(table.count().await?, 0); // nobody sees them yet
/// let refused = appender.append_row(&[9.into(), "short".into(), (&[1.0]).into()]).unwrap_err();
/// assert_eq!(refused.message(), "column `vec`, row 2: expected a vector of 2 F32, got 1 f32");
///
/// let ack = appender.commit().await?; // one batch: both rows become visible at once
/// assert_eq!((ack.inserted, table.count().await?), (2, 2));
/// # db.close().await
/// # }
/// ```
#[derive(Debug)]
pub struct Appender {
    table: Table,
    rows: RowBuffer,
    policy: Option<CommitEvery>,
    /// Whether small commits are copied: in a key-less table without vectors and without a log.
    gathers: bool,
    /// When the oldest buffered row came, on the database's clock; noted only under a policy that asks.
    oldest: Option<Duration>,
    /// A batch that found no room: it is the next to be published.
    waiting: Option<Ready>,
    /// Memory promised by the budget and not yet spent.
    credit: Option<Admitted>,
    credit_bytes: u64,
    /// What was published since the last acknowledgement was given out.
    published: Option<(PubNo, WriteAck)>,
}

impl Appender {
    pub(super) fn new(table: Table) -> Self {
        let (ground, max_rows) = (&table.shard.ground, (u32::MAX / 4) as usize);
        let options = &ground.options;
        let max_bytes = options.batch_bytes.min(MAX_BYTES);
        let (schema, pool) = (ground.schema.clone(), ground.budget.pool());
        let rows = RowBuffer::new(schema, max_rows, max_bytes, options.memtable_bytes, pool);
        let is_plain = ground.schema.key().is_none() && ground.schema.vectors().is_empty();
        let gathers = is_plain && !table.shard.has_log() && !rows.columns().is_empty();
        Self {
            rows,
            policy: None,
            gathers,
            oldest: None,
            waiting: None,
            credit: None,
            credit_bytes: 0,
            published: None,
            table,
        }
    }

    /// Commits by itself from now on. Such a commit does not wait for its acknowledgement: the next [`Appender::commit`]
    /// waits for all of them, and says how many rows they wrote together. If memory or log have no room at once, rows stay
    /// buffered and later appends try again.
    pub fn commit_every(&mut self, policy: CommitEvery) {
        self.policy = Some(policy);
    }

    /// Rows that are buffered and not published.
    #[must_use]
    pub fn buffered_rows(&self) -> u64 {
        self.rows.rows() as u64 + self.waiting.as_ref().map_or(0, |ready| ready.rows)
    }

    /// Their bytes, about.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.rows.bytes() + self.waiting.as_ref().map_or(0, |ready| ready.bytes)
    }

    /// Appends one row: a value for each column of the table's schema, in its order. Copies it.
    ///
    /// # Errors
    /// `Invalid`, naming column, row (counted within what is buffered), what was expected and what came: the buffer is as
    /// before. `Unavailable` if the row would make the batch larger than option `batch_bytes`, or if the last commit
    /// failed and has to be repeated (or [`clear`](Appender::clear)ed) first. Under a policy, what a commit gives.
    #[inline]
    pub fn append_row(&mut self, row: &[Value<'_>]) -> Result<()> {
        self.before_append()?;
        self.rows.push(row)?;
        if self.policy.is_some() { self.after_append() } else { Ok(()) }
    }

    /// Appends the rows of a batch, checked as [`Table::insert`] checks one (columns by name, in any order; missing
    /// nullable ones are null). Copies them: the batch's memory may change afterwards.
    ///
    /// # Errors
    /// As [`Appender::append_row`]; rows are counted within the batch.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        self.before_append()?;
        self.rows.extend(batch)?;
        if self.policy.is_some() { self.after_append() } else { Ok(()) }
    }

    /// Drops all rows that are not published.
    pub fn clear(&mut self) {
        self.rows.clear();
        (self.waiting, self.oldest) = (None, None);
    }

    /// Publishes all buffered rows as one batch and waits until it is visible and, in a durable table, durable. The
    /// acknowledgement counts everything since the last one. Dropped before it completes, the rows are published whole or
    /// still buffered.
    ///
    /// # Errors
    /// `Unavailable` if memory, disk or log stay full: nothing was written, the rows stay buffered; commit again. The
    /// log's error if it failed (outcome unknown), `Fenced`, `Closed`.
    pub async fn commit(&mut self) -> Result<WriteAck> {
        self.gather()?;
        while let Some(bytes) = self.next_batch()? {
            let admitted = match self.take_credit(bytes) {
                true => None,
                false => Some(self.table.shard.admit(bytes, false).await?),
            };
            let ready = self.waiting.as_ref().expect("given out above");
            let permit = self.table.shard.log_room(ready, Admission::Write).await?;
            self.publish(permit)?;
            drop(admitted);
        }
        let Some((at, ack)) = self.published else { return Ok(self.table.shard.nothing()) };
        self.table.shard.watermark.visible(at).await?;
        self.published = None;
        Ok(ack)
    }

    /// [`Appender::commit`] for threads outside of an async runtime: blocks this thread as long as that waits. In a table
    /// without a log and without vectors it does not wait at all while there is memory: it costs a few hundred nanoseconds.
    ///
    /// Not for async tasks: on a runtime of one thread it would wait for itself.
    ///
    /// # Errors
    /// As [`Appender::commit`].
    pub fn commit_blocking(&mut self) -> Result<WriteAck> {
        self.commit_at_once()?;
        if self.waiting.is_none()
            && self.rows.rows() == 0
            && let Some((at, ack)) = self.published
            && self.table.shard.watermark.is_passed(at)
        {
            self.published = None;
            return Ok(ack);
        }
        let runtime = self.table.shard.runtime.clone();
        block_on(&runtime, self.commit())
    }

    /// Publishes what is buffered by copying it, if it is little and may be copied; whether nothing is left to publish.
    fn gather(&mut self) -> Result<bool> {
        let (rows, bytes) = (self.rows.rows(), self.rows.bytes());
        let is_small = rows < GATHERED_ROWS && bytes < GATHERED_BYTES;
        if !self.gathers || !is_small || rows == 0 || self.waiting.is_some() || !self.take_credit(bytes) {
            return Ok(false);
        }
        let published = self.table.shard.gather(self.rows.columns(), rows as u32, bytes)?;
        self.rows.clear();
        self.oldest = None;
        self.note(&published);
        Ok(true)
    }

    /// Publishes what there is room for at once.
    fn commit_at_once(&mut self) -> Result<()> {
        if self.gather()? {
            return Ok(());
        }
        while let Some(bytes) = self.next_batch()? {
            if !self.has_credit(bytes) {
                return Ok(());
            }
            let encoded = self.waiting.as_ref().and_then(|ready| ready.encoded.as_ref());
            let permit = match encoded {
                None => None,
                Some(encoded) => {
                    let log = self.table.shard.log()?;
                    match log.try_admit(encoded.rows(), encoded.bytes(), Admission::Write)? {
                        None => return Ok(()),
                        permit => permit,
                    }
                }
            };
            self.credit_bytes -= bytes;
            self.publish(permit)?;
        }
        Ok(())
    }

    /// Puts the batch to publish next into `waiting` (one that found no room, or what is buffered); gives its bytes.
    fn next_batch(&mut self) -> Result<Option<u64>> {
        if self.waiting.is_none() && self.rows.rows() > 0 {
            let rows = self.rows.rows();
            let taken = self.rows.take();
            self.oldest = None;
            self.waiting = Some(self.prepare(taken, rows)?);
        }
        Ok(self.waiting.as_ref().map(|ready| ready.bytes))
    }

    /// Encodes, hashes keys, prepares vectors: all that needs nothing shared.
    fn prepare(&self, taken: Taken, rows: usize) -> Result<Ready> {
        let shard = &self.table.shard;
        let schema = &shard.ground.schema;
        let columns = match taken {
            Taken::Columns(columns) => columns,
            Taken::Batches(batches) => {
                let batch = arrow::compute::concat_batches(schema.stored(), &batches)?;
                let keys = batch::hashed_keys(schema, &batch)?;
                return shard.prepare_rows(CheckedBatch { rows: batch, keys });
            }
        };
        let needs_arrays = shard.has_log() || schema.key().is_some();
        let arrays = needs_arrays.then(|| batch_of(schema, &columns, rows)).transpose()?;
        let encoded = match &arrays {
            Some(batch) if shard.has_log() => {
                Some(Arc::new(EncodedBatch::encode(&shard.ground.log_schema, FrameKind::Put, batch, None)?))
            }
            _ => None,
        };
        let keys = arrays.as_ref().map_or(Ok(None), |batch| batch::hashed_keys(schema, batch))?;
        let count = u32::try_from(rows).map_err(|_| Error::internal("an appender's buffer has no bound"))?;
        let prepared = Prepared::of_appender(schema, count, columns, arrays.as_ref())?;
        let bytes = prepared.bytes();
        Ok(Ready { change: Change::Put(prepared), keys, encoded, bytes, rows: rows as u64 })
    }

    /// Publishes the batch in `waiting`.
    fn publish(&mut self, permit: Option<LogPermit>) -> Result<()> {
        let shard = &self.table.shard;
        let Some(older) = self.waiting.as_ref().map(|ready| shard.older_rows(ready)).transpose()? else {
            return Ok(());
        };
        let Some(ready) = self.waiting.take() else { return Ok(()) };
        let published = shard.in_section(ready, older, Condition::None, permit)?;
        let slack = self.rows.take_slack(false);
        if slack > 0 {
            self.count_slack(slack);
        }
        self.note(&published);
        Ok(())
    }

    fn note(&mut self, published: &Published) {
        let mut ack = self.table.shard.acknowledge(published);
        if let Some((_, before)) = self.published {
            ack.inserted += before.inserted;
            ack.updated += before.updated;
        }
        self.published = Some((published.cut.at, ack));
    }

    /// Whether memory for a batch is promised; asks the budget for more if not, without waiting.
    fn has_credit(&mut self, bytes: u64) -> bool {
        if self.credit_bytes >= bytes {
            return true;
        }
        let budget = &self.table.shard.ground.budget;
        let step = CREDIT_BYTES.min(budget.limit() / 64).max(bytes);
        // Given back first: what was spent is counted where it went.
        self.credit = None;
        self.credit = budget.try_admit(step);
        self.credit_bytes = if self.credit.is_some() { step } else { 0 };
        self.credit.is_some()
    }

    fn take_credit(&mut self, bytes: u64) -> bool {
        let has = self.has_credit(bytes);
        if has {
            self.credit_bytes -= bytes;
        }
        has
    }

    #[inline]
    fn before_append(&self) -> Result<()> {
        if self.waiting.is_some() && self.policy.is_none() {
            return Err(Error::unavailable(
                "the appender's last commit found no room and its rows are still buffered: commit again, or clear",
            ));
        }
        Ok(())
    }

    fn after_append(&mut self) -> Result<()> {
        let policy = self.policy.unwrap_or_default();
        let is_old = policy.interval.is_some_and(|interval| {
            let now = self.table.shard.ground.clock.now();
            now.saturating_sub(*self.oldest.get_or_insert(now)) >= interval
        });
        let is_due = is_old
            || policy.rows.is_some_and(|rows| self.rows.rows() as u64 >= rows)
            || policy.bytes.is_some_and(|bytes| self.rows.bytes() >= bytes);
        if is_due { self.commit_at_once() } else { Ok(()) }
    }

    /// Counts unused chunk bytes where the rows beside them went, about: a seal may have come in between.
    fn count_slack(&self, bytes: u64) {
        if let Some(active) = self.table.shard.in_memory().last() {
            active.memtable.count_slack(bytes);
        }
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        let slack = self.rows.take_slack(true);
        if slack > 0 {
            self.count_slack(slack);
        }
    }
}
