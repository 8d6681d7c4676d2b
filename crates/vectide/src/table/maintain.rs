//! The background of a table: sealed memtables become segments, old and full ones are sealed, the log is trimmed.
//!
//! One task per open table, started by `open`. A sealed memtable that cannot be flushed stays at the head of the queue
//! and is tried again, so that a later flush never overtakes it. Invariant: a row leaves memory and the log only after
//! the manifest names the segment that holds it.

use super::shard::{Sealed, Shard, Task};
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;
use crate::flush::build::build_segment;
use crate::ids::{LogPosition, PubNo, Seq};
use crate::manifest::{SegmentMeta, ShardManifest};
use crate::rows::RowSource;
use crate::search::snapshot::Tier;
use crate::segment::Segment;
use crate::store::map::give_back_free_memory;
use crate::store::paths::segment_id;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// First and longest pause between attempts of a flush that fails.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How often the age of the active memtable is looked at.
const TICK: Duration = Duration::from_millis(250);

/// Starts the background task; if it should ever panic, the table stops taking writes instead of growing for ever.
pub(crate) fn start(shard: &Arc<Shard>) {
    let (wake, closing) = (Arc::clone(&shard.flush_wake), shard.closing.subscribe());
    let running = tokio::spawn(run(Arc::downgrade(shard), wake, closing));
    let shard = Arc::downgrade(shard);
    tokio::spawn(async move {
        let Err(panicked) = running.await else { return };
        if let Some(shard) = shard.upgrade().filter(|_| panicked.is_panic()) {
            let error =
                Error::internal("the table's background task panicked; open the table anew").with_source(panicked);
            shard.watermark.fail(&error);
            shard.note_failed_flush(&error);
        }
    });
}

/// Runs until the shard closes or is dropped. Holds the shard only while it has work, so that dropping the last handle
/// gives the directory back at once.
async fn run(shard: Weak<Shard>, wake: Arc<Notify>, mut closing: watch::Receiver<bool>) {
    let mut pause = RETRY_PAUSE.0;
    loop {
        let Some(held) = shard.upgrade() else { return };
        let head = held.sealed.lock().front().cloned();
        let Some(sealed) = head else {
            held.seal_if_old();
            // Of memtables that a snapshot held until now.
            held.ground.budget.pool().collect();
            drop(held);
            tokio::select! {
                () = wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
                _ = closing.wait_for(|closing| *closing) => return,
            }
            continue;
        };
        let shard = held;
        let flushed = tokio::select! {
            flushed = shard.flush(&sealed) => flushed,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        match flushed {
            Ok(()) => {
                pause = RETRY_PAUSE.0;
                // First of all: who sees the queue empty must not see the trouble that it was in.
                shard.set_trouble(Task::Flush, None);
                shard.sealed.lock().pop_front();
                shard.flush_progress.send_modify(|p| {
                    p.flushed_seq = sealed.end.0;
                    p.error = None;
                });
                let_go(sealed).await;
                shard.ground.budget.freed();
            }
            Err(error) => {
                shard.flush_failed(&error, pause);
                if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Closed) {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = closing.wait_for(|closing| *closing) => return,
                }
                pause = (pause * 2).min(RETRY_PAUSE.1);
            }
        }
    }
}

/// Drops a memtable that has become a segment, unless a snapshot still holds it, and gives its memory back to the system:
/// on a blocking thread, since freeing thousands of buffers takes its time.
pub(super) async fn let_go(sealed: Arc<Sealed>) {
    let freed = tokio::task::spawn_blocking(move || {
        drop(sealed);
        give_back_free_memory();
    });
    // Cannot fail but by a panic in a destructor, which has been reported.
    let _ = freed.await;
}

impl Shard {
    /// Flushes one sealed memtable: waits until its rows are durable and in the graphs, writes the segment, commits it,
    /// moves the source over and trims the log. Safe to call again after a failure at any step.
    pub(crate) async fn flush(&self, sealed: &Arc<Sealed>) -> Result<()> {
        let started = self.ground.clock.now();
        let last = sealed.end.1;
        if self.has_log() {
            self.watermark.wait(|progress| progress.durable.plus(1) >= last).await?;
        }
        self.wait_indexed(sealed).await;
        let meta = self.build(sealed).await?;
        let segment = self.open_segment(&meta).await?;
        let position = self.position_behind(sealed);
        self.commit_flush(sealed, &meta, position).await?;
        failpoint::hit("flush.commit.after").map_err(|e| Error::io("flushing", e))?;
        if !self.has_log() {
            self.watermark.flushed(PubNo(last.0 - 1), Seq(sealed.end.0.0 - 1));
        }
        sealed.source.replace_tier(Tier::Segment(Arc::new(segment)));
        self.forget(&sealed.memtable);
        self.merge_wake.notify_one();
        self.note_flush(&meta, self.ground.clock.now().saturating_sub(started));
        // The segment stands whatever becomes of the trimming; what is left is trimmed behind the next flush.
        if let Some(log) = self.log.get()
            && let Err(error) = log.trim(position).await
        {
            tracing::warn!(table = %self.ground.name, ?error, "the log could not be trimmed; it is tried again");
        }
        Ok(())
    }

    async fn wait_indexed(&self, sealed: &Sealed) {
        while sealed.memtable.indexed() < sealed.memtable.rows() {
            self.ground.indexer.wake();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Writes the segment's files, unless an earlier attempt has.
    async fn build(&self, sealed: &Sealed) -> Result<SegmentMeta> {
        if let Some(built) = sealed.built.lock().clone() {
            return Ok(built);
        }
        // A number is used once, so a failed attempt leaves garbage and never half a segment under a good name.
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let id = segment_id(self.epoch, number);
        let dir = self.ground.paths.segment_dir(&id);
        let mut meta = build_segment(&self.ground.store, &dir, &id, &sealed.memtable, &sealed.marks).await?;
        meta.first_seq = sealed.first.0;
        meta.last_seq = Seq(sealed.end.0.0 - 1);
        meta.first_publication = sealed.first.1;
        meta.last_publication = PubNo(sealed.end.1.0 - 1);
        *sealed.built.lock() = Some(meta.clone());
        Ok(meta)
    }

    async fn open_segment(&self, meta: &SegmentMeta) -> Result<Segment> {
        let dir = self.ground.paths.segment_dir(&meta.id);
        Segment::open(&self.ground.store, &dir, meta, &self.ground.schema).await
    }

    /// Where a replay has to start once the memtable's rows stand in a segment.
    fn position_behind(&self, sealed: &Sealed) -> LogPosition {
        match (&sealed.replayed_to, self.log.get()) {
            (_, Some(log)) => log.locate(sealed.end.0),
            (Some(position), None) => *position,
            (None, None) => LogPosition::default(),
        }
    }

    async fn commit_flush(&self, sealed: &Sealed, meta: &SegmentMeta, position: LogPosition) -> Result<()> {
        failpoint::hit("flush.commit.before").map_err(|e| Error::io("flushing", e))?;
        let committed = self.manifest.commit(self.epoch, |now| Ok(with_segment(now, sealed, meta, position))).await;
        committed.map(drop)
    }

    fn note_flush(&self, meta: &SegmentMeta, took: Duration) {
        let mut stats = self.flush_stats.lock();
        stats.done += 1;
        stats.bytes += meta.parts.iter().map(|p| p.len).sum::<u64>();
        stats.last_ms = took.as_secs_f64() * 1e3;
        stats.max_ms = stats.max_ms.max(stats.last_ms);
    }

    fn flush_failed(&self, error: &Error, pause: Duration) {
        tracing::warn!(table = %self.ground.name, ?error, ?pause, "a flush failed; it is tried again");
        if error.kind() == ErrorKind::Fenced {
            self.watermark.fail(error);
        } else {
            self.set_trouble(Task::Flush, Some(format!("flushing fails and is being retried: {error}")));
        }
        self.note_failed_flush(error);
    }

    fn note_failed_flush(&self, error: &Error) {
        self.flush_stats.lock().failed += 1;
        self.flush_progress.send_modify(|p| {
            p.failures += 1;
            p.error = Some(error.clone());
        });
    }

    fn seal_if_old(&self) {
        let interval = Duration::from_millis(self.ground.options.flush_interval_ms);
        let mut section = self.section.lock();
        let is_old = section.born.is_some_and(|born| self.ground.clock.now().saturating_sub(born) >= interval);
        if interval.is_zero() || !is_old {
            return;
        }
        if let Err(error) = self.seal(&mut section) {
            tracing::error!(table = %self.ground.name, ?error, "cannot start a new memtable");
        }
    }

    /// Seals the active memtable and waits until everything published so far stands in segments.
    ///
    /// # Errors
    /// The flush's error, if an attempt fails meanwhile; the rows stay where they are and flushing goes on.
    pub(crate) async fn flush_all(&self) -> Result<()> {
        if let Some(error) = self.watermark.failed() {
            return Err(error);
        }
        let mut progress = self.flush_progress.subscribe();
        let target = {
            let mut section = self.section.lock();
            self.seal(&mut section)?;
            section.next_seq
        };
        let failures = progress.borrow_and_update().failures;
        let done = progress.wait_for(|p| p.flushed_seq >= target || p.failures > failures).await;
        let done = done.map_err(|_| Error::closed("the table was closed"))?;
        match &done.error {
            Some(error) if done.flushed_seq < target => Err(error.clone().context("the flush failed (it goes on)")),
            _ => Ok(()),
        }
    }
}

/// The manifest with the segment added and the replay point moved. Recognizes its own earlier effect.
fn with_segment(now: &ShardManifest, sealed: &Sealed, meta: &SegmentMeta, position: LogPosition) -> ShardManifest {
    let mut next = now.clone();
    if now.segments.iter().any(|s| s.id == meta.id) {
        return next;
    }
    let (end_seq, end_publication, end_row) = sealed.end;
    next.segments.push(meta.clone());
    next.replay_from = next.replay_from.max(position);
    next.replay_seq = end_seq;
    next.next_row = end_row;
    next.next_publication = end_publication;
    let number = crate::store::paths::parse_segment_id(&meta.id).map_or(0, |(_, n)| n);
    next.next_segment = next.next_segment.max(number + 1);
    next
}
