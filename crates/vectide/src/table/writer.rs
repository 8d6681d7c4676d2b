//! The write path: from a caller's batch to its acknowledgement.
//!
//! Steps: check and encode in the caller's thread, wait for memory and log space, look the keys up in the older tiers,
//! publish inside the section, wait until the batch is visible (and, in a durable table, so durable). Killed or cancelled
//! between any two of them, a batch is wholly there or wholly absent. Called by `Table`.

use super::budget::Admitted;
use super::section::{Change, Condition, HashedKeys, OlderRows, Published, Section};
use super::shard::{Counters, Shard};
use crate::batch::{self, CheckedBatch, Duplicates};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{PubNo, Seq, ShardId, Token};
use crate::keys::{KeyArray, Keys};
use crate::memtable::{ColumnBuffer, Prepared};
use crate::wal::frame::{EncodedBatch, FrameKind};
use crate::wal::{Admission, LogPermit};
use arrow::array::RecordBatch;
use parking_lot::MutexGuard;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a write's acknowledgement says. On return the batch is visible to every later read, and durable unless the
/// database is `buffered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteAck {
    /// Names the batch, for `wait_durable` and `upsert_if`.
    pub token: Token,
    /// Rows whose key had no live row before.
    pub inserted: u64,
    /// Rows that replaced a live one.
    pub updated: u64,
    /// Live rows that a delete ended.
    pub deleted: u64,
}

/// A batch on its way, ready for the section.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) change: Change,
    pub(super) keys: Option<HashedKeys>,
    /// `None` in a table without a log.
    pub(super) encoded: Option<Arc<EncodedBatch>>,
    /// Bytes it will hold in memory.
    pub(super) bytes: u64,
    pub(super) rows: u64,
}

impl Shard {
    /// Writes a batch of rows under `condition`.
    pub(crate) async fn write(self: &Arc<Self>, batch: &RecordBatch, condition: Condition) -> Result<WriteAck> {
        let duplicates = if condition == Condition::None { Duplicates::LastWins } else { Duplicates::Refused };
        let checked = batch::check(&self.ground.schema, batch, duplicates)?;
        if checked.rows.num_rows() == 0 {
            return Ok(self.nothing());
        }
        let ready = self.prepare_rows(checked)?;
        let published = self.publish(ready, condition, Admission::Write).await?;
        Ok(self.acknowledge(&published))
    }

    /// What the writer of rows is told.
    pub(super) fn acknowledge(&self, published: &Published) -> WriteAck {
        WriteAck {
            token: self.token(published.seqs.1),
            inserted: published.rows - published.ended.min(published.rows),
            updated: published.ended,
            deleted: 0,
        }
    }

    /// Deletes keys; those that have no live row are passed over.
    pub(crate) async fn delete(self: &Arc<Self>, keys: &Keys) -> Result<WriteAck> {
        let schema = &self.ground.schema;
        let (Some(column), Some(delete_schema)) = (schema.key(), schema.delete()) else {
            return Err(Error::invalid("the table has no key column, so rows cannot be deleted by key"));
        };
        let array = keys.cast(column)?;
        if array.is_empty() {
            return Ok(self.nothing());
        }
        let rows = RecordBatch::try_new(Arc::clone(delete_schema), vec![array])?;
        let encoded = self.encode(FrameKind::Delete, &rows)?;
        let keys = KeyArray::new(rows.column(0))?;
        let hashes = keys.hashes();
        let count = rows.num_rows() as u64;
        let (change, encoded) = (Change::Delete(count), self.has_log().then_some(encoded));
        let ready = Ready { change, keys: Some((keys, hashes)), encoded, bytes: 16 * count, rows: 0 };
        let published = self.publish(ready, Condition::None, Admission::Delete).await?;
        Counters::add(&self.counters.deletes, count);
        Ok(WriteAck { token: self.token(published.seqs.1), inserted: 0, updated: 0, deleted: published.ended })
    }

    pub(super) fn prepare_rows(&self, checked: CheckedBatch) -> Result<Ready> {
        let rows = checked.rows.num_rows() as u64;
        if rows > u64::from(u32::MAX / 4) {
            return Err(Error::invalid(format!("the batch has {rows} rows; write at most {} at once", u32::MAX / 4)));
        }
        let encoded = self.encode(FrameKind::Put, &checked.rows)?;
        // The memtable keeps views of the encoded bytes, never the caller's memory.
        let parts = encoded.decode_parts()?;
        let prepared = Prepared::new(&self.ground.schema, parts)?;
        let bytes = prepared.bytes();
        let encoded = self.has_log().then_some(encoded);
        Ok(Ready { change: Change::Put(prepared), keys: checked.keys, encoded, bytes, rows })
    }

    fn encode(&self, kind: FrameKind, rows: &RecordBatch) -> Result<Arc<EncodedBatch>> {
        let encoded = EncodedBatch::encode(&self.ground.log_schema, kind, rows, None)?;
        let limit = self.ground.options.batch_bytes;
        if encoded.bytes() > limit {
            return Err(Error::invalid(format!(
                "the batch takes {} bytes in the log and the limit (`batch_bytes`) is {limit}: write it in smaller batches",
                encoded.bytes()
            )));
        }
        Ok(Arc::new(encoded))
    }

    async fn publish(self: &Arc<Self>, ready: Ready, condition: Condition, admission: Admission) -> Result<Published> {
        self.check_open()?;
        let admitted = self.admit(ready.bytes, admission == Admission::Delete).await?;
        let permit = self.log_room(&ready, admission).await?;
        let older = self.older_rows(&ready)?;
        let published = self.in_section(ready, older, condition, permit);
        drop(admitted);
        let published = match published {
            Err(error) if error.kind() == ErrorKind::Conflict => return Err(self.once_durable(error).await),
            other => other?,
        };
        self.watermark.visible(published.cut.at).await?;
        Ok(published)
    }

    /// Why nothing can be written, if so.
    pub(super) fn check_open(&self) -> Result<()> {
        let stopped = self.section.lock().closed.clone().or_else(|| self.watermark.failed());
        stopped.map_or(Ok(()), Err)
    }

    /// Room in the log for the batch, if it is logged.
    pub(super) async fn log_room(&self, ready: &Ready, admission: Admission) -> Result<Option<LogPermit>> {
        let Some(encoded) = &ready.encoded else { return Ok(None) };
        let (rows, bytes) = (encoded.rows(), encoded.bytes());
        match self.log()?.try_admit(rows, bytes, admission)? {
            Some(permit) => Ok(Some(permit)),
            None => self.log()?.admit(rows, bytes, admission).await.map(Some),
        }
    }

    /// The rows of the batch's keys in older tiers.
    pub(super) fn older_rows(&self, ready: &Ready) -> Result<OlderRows> {
        match &ready.keys {
            Some(keys) => OlderRows::look_up(&self.view(), Some(keys)),
            None => Ok(OlderRows::default()),
        }
    }

    pub(super) async fn admit(&self, bytes: u64, urgent: bool) -> Result<Admitted> {
        match self.ground.budget.admit(bytes, urgent).await {
            Ok((admitted, stall)) => {
                if stall.waited >= std::time::Duration::from_micros(100) {
                    Counters::add(&self.counters.stalls, 1);
                    Counters::add(
                        &self.counters.stalled_nanos,
                        u64::try_from(stall.waited.as_nanos()).unwrap_or(u64::MAX),
                    );
                }
                Ok(admitted)
            }
            Err(error) => {
                Counters::add(&self.counters.refused, 1);
                Err(match self.health().reason {
                    Some(reason) => error.context(format_args!("{reason}")),
                    None => error,
                })
            }
        }
    }

    /// Publishes a batch that has room in memory and, where there is one, in the log. Never waits but for the section.
    pub(super) fn in_section(
        self: &Arc<Self>,
        ready: Ready,
        older: OlderRows,
        condition: Condition,
        permit: Option<LogPermit>,
    ) -> Result<Published> {
        let log = self.log.get();
        let Ready { change, keys, encoded, bytes, rows } = ready;
        let enqueue = |seq: Seq, publication: PubNo| {
            if let (Some(log), Some(permit), Some(encoded)) = (log, permit, encoded) {
                log.enqueue(permit, encoded, seq, publication);
            }
        };
        let (published, to_pack) = {
            let mut section = self.section_for(rows, bytes)?;
            let published = section.publish(change, keys.as_ref(), older, || self.view(), condition, enqueue)?;
            self.note(&published);
            (published, section.active.is_pack_due().then(|| Arc::clone(&section.active)))
        };
        if let Some(memtable) = to_pack {
            memtable.pack_if_due()?;
        }
        if !self.ground.schema.vectors().is_empty() {
            self.ground.indexer.wake();
        }
        Ok(published)
    }

    /// [`Shard::in_section`] for a few rows that are copied from an appender's columns.
    pub(super) fn gather(&self, columns: &[ColumnBuffer], rows: u32, bytes: u64) -> Result<Published> {
        let mut section = self.section_for(u64::from(rows), bytes)?;
        let published = section.gather(columns, rows)?;
        self.note(&published);
        Ok(published)
    }

    /// The section with a memtable that has room for a batch.
    fn section_for(&self, rows: u64, bytes: u64) -> Result<MutexGuard<'_, Section>> {
        let mut section = self.section.lock();
        if self.is_full(&section, rows, bytes) {
            self.seal(&mut section)?;
        }
        if section.born.is_none() {
            section.born = Some(self.ground.clock.now());
        }
        Ok(section)
    }

    /// Hands a batch on to the watermark; called inside the section.
    fn note(&self, published: &Published) {
        self.watermark.push(published.cut, || self.ground.clock.now());
        Counters::add(&self.counters.batches, 1);
        Counters::add(&self.counters.rows, published.rows);
    }

    /// A conflict is only reported once the row it met cannot be lost any more.
    async fn once_durable(&self, conflict: Error) -> Error {
        if !self.has_log() {
            return conflict;
        }
        let last = PubNo(self.section.lock().next_publication.0 - 1);
        match self.watermark.wait(|progress| progress.durable >= last).await {
            Ok(()) => conflict,
            Err(failed) => failed,
        }
    }

    /// Waits until the write that `token` names is durable.
    pub(crate) async fn wait_durable(&self, token: Token) -> Result<()> {
        if token.epoch == self.epoch {
            let given_out = self.section.lock().next_seq;
            if token.seq >= given_out {
                return Err(Error::invalid(format!("token {token} names a write that this writer has not made yet")));
            }
            if !self.has_log() && !self.watermark.is_durable(token.seq) {
                return self.flush_all().await;
            }
            return self.watermark.wait(|progress| progress.durable_seq >= token.seq).await;
        }
        self.check_recovered(token)
    }

    /// `Lost` if an earlier writer's token lies beyond what its log held when it was recovered.
    fn check_recovered(&self, token: Token) -> Result<()> {
        if token.shard != ShardId(0) || token.epoch > self.epoch {
            return Err(Error::invalid(format!("token {token} is not from this table's history")));
        }
        let ends = self.closed_epochs.get().map(Vec::as_slice).unwrap_or_default();
        let end = ends.iter().rev().find(|end| end.epoch <= token.epoch);
        match end {
            Some(end) if end.epoch == token.epoch && token.seq <= end.last_seq => Ok(()),
            _ => Err(Error::lost(format!(
                "token {token}: the write did not survive its writer, which ended before it was durable; write it again"
            ))),
        }
    }

    /// The condition of `upsert_if`.
    pub(crate) fn expectation(&self, token: Token) -> Result<Condition> {
        if token.epoch != self.epoch {
            self.check_recovered(token)?;
        }
        Ok(Condition::NotNewerThan(token.seq))
    }

    /// Names the newest write that a snapshot at `cut` sees.
    pub(crate) fn token_at(&self, seq: Seq) -> Token {
        self.token(seq)
    }

    fn token(&self, seq: Seq) -> Token {
        Token { shard: ShardId(0), epoch: self.epoch, seq }
    }

    /// The acknowledgement of an empty batch: the token of everything published so far.
    pub(super) fn nothing(&self) -> WriteAck {
        let seq = Seq(self.section.lock().next_seq.0 - 1);
        WriteAck { token: self.token(seq), inserted: 0, updated: 0, deleted: 0 }
    }
}
