//! The log of an object store: one object a group commit, several on their way at once, acknowledged in order.
//!
//! `table/writer` admits and enqueues batches from any thread; one task packs what is queued into objects
//! `wal/<epoch>/<n>` and puts each, if absent, at the next `n`. A log position counts objects. An idle log puts at once;
//! beside a PUT under way another one starts once it carries enough, or once the last one has been under way for half of
//! what PUTs take (decision 0010): so many small writers share objects, and nobody waits for a whole PUT before his own
//! begins.
//! Invariants: object `n` is reported durable only when this writer's own put created it and all before it; a slot that
//! holds anything but this writer's bytes means another writer took over, and nothing is acknowledged after that.

use super::fence::{FENCE_BYTES, Fence};
use super::frame::{EncodedBatch, LogSchema, Place};
use super::index::SeqIndex;
use super::queue::{LogPermit, LogStats, Queue, QueueLimits};
use super::{Admission, EpochEnd, Log, LogListener};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::hit;
use crate::ids::{Epoch, LogPosition, PubNo, Seq};
use crate::runtime::Task;
use crate::store::paths::{LogKind, ShardPaths};
use crate::store::{PutOutcome, Store};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered};
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Objects removed at once by a trim.
const TRIM_WINDOW: usize = 8;
/// Objects that are put or on their way and not acknowledged, as a multiple of the PUTs under way at once. The queue's
/// limits bound their bytes.
const AHEAD: usize = 4;

/// Sizes of an object log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectLogOptions {
    /// An object takes no further batch once it has this many bytes.
    pub(crate) object_bytes: u64,
    /// PUTs under way at once.
    pub(crate) puts_in_flight: usize,
    /// What must be queued for a PUT to start beside others at once.
    pub(crate) beside_bytes: u64,
    /// No PUT starts sooner than this after the one before, unless its object is full.
    pub(crate) put_interval: Duration,
    /// What may be appended and not yet durable.
    pub(crate) queue: QueueLimits,
}

impl From<&crate::options::WalOptions> for ObjectLogOptions {
    fn from(options: &crate::options::WalOptions) -> Self {
        Self {
            object_bytes: options.object_bytes,
            puts_in_flight: options.puts_in_flight,
            put_interval: Duration::from_millis(options.put_interval_ms),
            queue: QueueLimits { bytes: options.queue_bytes, rows: options.queue_rows },
            ..Self::default()
        }
    }
}

impl Default for ObjectLogOptions {
    fn default() -> Self {
        Self {
            object_bytes: 8 << 20,
            puts_in_flight: 8,
            beside_bytes: 256 << 10,
            put_interval: Duration::ZERO,
            queue: QueueLimits { bytes: 64 << 20, rows: 1 << 20 },
        }
    }
}

/// An object log in its writer's hands. Dropping it abandons what is queued: its outcome is unknown, as after a crash.
pub(crate) struct ObjectLog {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    paths: ShardPaths,
    epoch: Epoch,
    trimmed: tokio::sync::Mutex<Trimmed>,
}

#[derive(Default)]
struct Trimmed {
    /// Own objects below this are gone.
    to: u64,
    /// Nothing of earlier epochs is left but fences.
    is_old_gone: bool,
}

struct Shared {
    queue: Arc<Queue>,
    inbox: Mutex<Inbox>,
    wake: Notify,
    index: Mutex<SeqIndex>,
}

#[derive(Default)]
struct Inbox {
    batches: VecDeque<Pending>,
    bytes: u64,
    /// The task wants to be woken once so many bytes are queued; `u64::MAX` while it has no use for more.
    wake_at: u64,
    is_closing: bool,
    is_abandoned: bool,
    closers: Vec<oneshot::Sender<Result<EpochEnd>>>,
    ended: Option<Result<EpochEnd>>,
}

/// A batch in the queue; a huge one goes out in several objects, which hold nothing else.
struct Pending {
    batch: Arc<EncodedBatch>,
    first_seq: Seq,
    publication: PubNo,
    since: Duration,
    next_part: usize,
    /// The object that holds its first part.
    first_object: Option<u64>,
    _permit: LogPermit,
}

impl ObjectLog {
    /// Opens `epoch`'s log. Puts nothing yet; starts the log's task on the current Tokio runtime. `index` is what replay
    /// found, and names the seq that the first batch will have.
    #[allow(clippy::too_many_arguments, reason = "each is a seam of its own; a builder would only rename them")]
    pub(crate) fn open(
        store: Arc<dyn Store>,
        paths: ShardPaths,
        epoch: Epoch,
        schema: Arc<LogSchema>,
        mut index: SeqIndex,
        options: ObjectLogOptions,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn LogListener>,
    ) -> Result<Self> {
        index.begin_epoch(epoch);
        let last_seq = index.last_seq();
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queue, clock),
            inbox: Mutex::default(),
            wake: Notify::new(),
            index: Mutex::new(index),
        });
        let driver = Driver {
            shared: Arc::clone(&shared),
            store: Arc::clone(&store),
            paths: paths.clone(),
            schema,
            listener,
            options,
            epoch,
            last_seq,
            next: 0,
            durable: 0,
            flying_since: VecDeque::new(),
            early: BTreeMap::new(),
            is_failing: false,
            pace: Pace::new(options.put_interval),
        };
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|e| Error::invalid("an object log needs a Tokio runtime around its open").with_source(e))?;
        runtime.spawn(driver.run());
        Ok(Self { shared, store, paths, epoch, trimmed: tokio::sync::Mutex::default() })
    }

    async fn remove(&self, paths: Vec<String>) -> Result<u64> {
        let count = paths.len() as u64;
        stream::iter(paths)
            .map(|path| async move {
                hit("wal.object.trim.before").map_err(|e| Error::io("trimming the log", e))?;
                self.store.delete(&path).await
            })
            .buffer_unordered(TRIM_WINDOW)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(count)
    }

    /// Objects of earlier epochs before `position`, without fences. From a listing: what it lacks stays for a later trim.
    async fn old_objects(&self, position: LogPosition) -> Result<Vec<String>> {
        let listed = self.store.list(&self.paths.wal_dir()).await?;
        let is_old = |path: &str| match self.paths.parse_wal(path) {
            Some((epoch, at, LogKind::Object)) => epoch != self.epoch && LogPosition { epoch, at } < position,
            _ => false,
        };
        let old = listed.into_iter().filter(|object| object.size > FENCE_BYTES as u64 && is_old(&object.path));
        Ok(old.map(|object| object.path).collect())
    }
}

#[async_trait]
impl Log for ObjectLog {
    fn try_admit(&self, rows: u64, bytes: u64, _admission: Admission) -> Result<Option<LogPermit>> {
        self.shared.queue.try_reserve(rows, bytes)
    }

    async fn admit(&self, rows: u64, bytes: u64, _admission: Admission) -> Result<LogPermit> {
        self.shared.queue.reserve(rows, bytes).await
    }

    fn enqueue(&self, permit: LogPermit, batch: Arc<EncodedBatch>, first_seq: Seq, publication: PubNo) {
        debug_assert!(batch.bytes() <= permit.bytes() && batch.rows() <= permit.rows(), "admitted for less");
        let since = self.shared.queue.now();
        let mut inbox = self.shared.inbox.lock();
        if inbox.ended.is_some() {
            return;
        }
        self.shared.queue.appended(batch.rows(), batch.bytes(), since);
        inbox.bytes += batch.bytes();
        let pending =
            Pending { batch, first_seq, publication, since, next_part: 0, first_object: None, _permit: permit };
        inbox.batches.push_back(pending);
        // Once, not for every batch: many small writers would wake the task far more often than it has something to do.
        let is_due = inbox.bytes >= inbox.wake_at;
        if is_due {
            inbox.wake_at = u64::MAX;
        }
        drop(inbox);
        if is_due {
            self.shared.wake.notify_one();
        }
    }

    fn locate(&self, seq: Seq) -> LogPosition {
        self.shared.index.lock().locate(seq)
    }

    async fn trim(&self, position: LogPosition) -> Result<()> {
        let mut trimmed = self.trimmed.lock().await;
        if !trimmed.is_old_gone {
            let old = self.old_objects(position).await?;
            trimmed.is_old_gone = old.is_empty() && position.epoch == self.epoch;
            self.remove(old).await?;
        }
        if position.epoch == self.epoch && position.at > trimmed.to {
            let own = (trimmed.to..position.at).map(|n| self.paths.wal(self.epoch, n, LogKind::Object)).collect();
            let removed = self.remove(own).await?;
            self.shared.queue.objects_trimmed(removed);
            trimmed.to = position.at;
        }
        self.shared.index.lock().trim(position);
        Ok(())
    }

    async fn close(&self) -> Result<EpochEnd> {
        self.shared.queue.close();
        let (answer, reply) = oneshot::channel();
        {
            let mut inbox = self.shared.inbox.lock();
            if let Some(ended) = &inbox.ended {
                return ended.clone();
            }
            inbox.closers.push(answer);
            inbox.is_closing = true;
        }
        self.shared.wake.notify_one();
        reply.await.map_err(|_| Error::closed("the log's task ended early"))?
    }

    fn stats(&self) -> LogStats {
        self.shared.queue.stats()
    }
}

impl Drop for ObjectLog {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.shared.inbox.lock().is_abandoned = true;
        self.shared.wake.notify_one();
    }
}

impl fmt::Debug for ObjectLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectLog").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// The log's task.
struct Driver {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    paths: ShardPaths,
    schema: Arc<LogSchema>,
    listener: Arc<dyn LogListener>,
    options: ObjectLogOptions,
    epoch: Epoch,
    last_seq: Seq,
    /// The next object's number.
    next: u64,
    /// Objects below this are durable.
    durable: u64,
    /// When the oldest batch that each object that has not landed completes was appended.
    flying_since: VecDeque<Option<Duration>>,
    /// PUTs that ended before an earlier one, by number.
    early: BTreeMap<u64, Flight>,
    /// Whether one of them failed: the log fails once those before it have landed, and starts no more.
    is_failing: bool,
    pace: Pace,
}

/// An object on its way: what becomes durable with it.
struct Flight {
    number: u64,
    /// Batches whose last part it holds.
    complete: Vec<Pending>,
    /// How long it took.
    put: Result<Duration>,
}

/// When a PUT may start that is not full: decides how many of them there are.
#[derive(Debug)]
struct Pace {
    /// The least time between two PUTs.
    interval: Duration,
    /// What half of the PUTs take less than.
    median: Option<Duration>,
    last: Option<Instant>,
}

impl Pace {
    fn new(interval: Duration) -> Self {
        Self { interval, median: None, last: None }
    }

    /// When the next PUT may start, if there is a time to wait for. `is_beside`: beside others.
    fn next(&self, is_beside: bool) -> Option<Instant> {
        let beside = self.median.filter(|_| is_beside).map_or(Duration::ZERO, |median| median / 2);
        self.last.map(|last| last + self.interval.max(beside))
    }

    /// Whether it has to wait: beside others and before anything is known of how long a PUT takes, for one of them.
    fn is_due(&self, is_beside: bool, now: Instant) -> bool {
        !(is_beside && self.median.is_none()) && self.next(is_beside).is_none_or(|next| next <= now)
    }

    /// A running median: each PUT moves it by an eighth, so that the few that take very long count as one each.
    fn note(&mut self, took: Duration) {
        self.median = Some(match self.median {
            None => took,
            Some(median) if took > median => (median + median / 8 + Duration::from_micros(1)).min(took),
            Some(median) => (median - median / 8).max(took),
        });
    }
}

impl Driver {
    async fn run(mut self) {
        let mut flying: FuturesUnordered<Flying> = FuturesUnordered::new();
        loop {
            while self.may_launch(flying.len())
                && let Some(flight) = self.launch(!flying.is_empty())
            {
                flying.push(flight);
            }
            let waits = match self.look_ahead(flying.len()) {
                Ahead::Abandoned => return self.end(Err(Error::closed("the log was dropped"))),
                Ahead::Over => {
                    let end = EpochEnd { epoch: self.epoch, at: self.durable, last_seq: self.last_seq };
                    return self.end(Ok(end));
                }
                Ahead::Launches => continue,
                Ahead::Waits(until) => until,
            };
            let ended = tokio::select! {
                Some(ended) = flying.next() => Some(ended),
                () = self.shared.wake.notified() => None,
                () = until(waits) => None,
            };
            if let Some(flight) = ended
                && let Err(error) = self.land_in_order(flight)
            {
                self.shared.queue.fail(error.clone());
                self.end(Err(error.clone()));
                return self.listener.failed(error);
            }
        }
    }

    /// Whether there may be one more PUT beside `flying` ones. Those that ended before an earlier one take no place among
    /// them, so that one slow PUT does not hold up the window; but there is an end to it.
    fn may_launch(&self, flying: usize) -> bool {
        let ahead = flying + self.early.len();
        !self.is_failing && flying < self.options.puts_in_flight && ahead < AHEAD * self.options.puts_in_flight
    }

    /// Takes a PUT that ended, and lands it and those that waited for it once all before it have landed.
    fn land_in_order(&mut self, flight: Flight) -> Result<()> {
        match &flight.put {
            Ok(took) => self.pace.note(*took),
            Err(_) => self.is_failing = true,
        }
        self.early.insert(flight.number, flight);
        while let Some(next) = self.early.remove(&self.durable) {
            self.land(next)?;
        }
        Ok(())
    }

    /// What is queued that starts a PUT at once beside others: as much as an object takes, or less.
    fn beside_bytes(&self) -> u64 {
        self.options.beside_bytes.min(self.options.object_bytes)
    }

    /// Says when the task is to be woken, with `flying` PUTs under way.
    fn look_ahead(&self, flying: usize) -> Ahead {
        let mut inbox = self.shared.inbox.lock();
        if inbox.is_abandoned {
            return Ahead::Abandoned;
        }
        if inbox.is_closing && flying == 0 && self.early.is_empty() && inbox.batches.is_empty() {
            return Ahead::Over;
        }
        let is_beside = flying > 0;
        let (wake_at, until) = if !self.may_launch(flying) {
            (u64::MAX, None)
        } else if self.pace.is_due(is_beside, Instant::now()) {
            (1, None)
        } else {
            (self.wanted(is_beside), self.pace.next(is_beside).filter(|_| !is_beside || self.pace.median.is_some()))
        };
        if inbox.bytes >= wake_at {
            // Came since the task looked, when nobody was to wake it.
            return Ahead::Launches;
        }
        inbox.wake_at = wake_at;
        Ahead::Waits(until)
    }

    /// The bytes that start a PUT before its time.
    fn wanted(&self, is_beside: bool) -> u64 {
        if is_beside && self.options.put_interval.is_zero() { self.beside_bytes() } else { self.options.object_bytes }
    }

    /// Packs the next object and starts its put, if there is enough to put or it is time.
    fn launch(&mut self, is_beside: bool) -> Option<Flying> {
        let (number, now) = (self.next, Instant::now());
        let (pieces, complete) = {
            let mut inbox = self.shared.inbox.lock();
            let is_due = inbox.is_closing || self.pace.is_due(is_beside, now);
            if !is_due && inbox.bytes < self.wanted(is_beside) {
                return None;
            }
            inbox.take_object(number, self.options.object_bytes)?
        };
        self.next += 1;
        self.pace.last = Some(now);
        self.flying_since.push_back(complete.first().map(|pending| pending.since));
        let bytes = self.pack(number, &pieces);
        let (store, path) = (Arc::clone(&self.store), self.paths.wal(self.epoch, number, LogKind::Object));
        // In a task, so that signing and sending several at once takes several threads.
        let put = Task::start(async move {
            put_own(store.as_ref(), &path, bytes).await?;
            Ok(now.elapsed())
        });
        Some(async move { Flight { number, complete, put: put.await } }.boxed())
    }

    fn pack(&self, number: u64, pieces: &[Piece]) -> Bytes {
        let mut out = self.schema.file_header(self.epoch, number);
        let frames: u64 = pieces.iter().flat_map(|p| p.parts.clone().map(|part| p.batch.part_bytes(part))).sum();
        out.reserve_exact(frames as usize);
        for piece in pieces {
            for part in piece.parts.clone() {
                let place = Place {
                    epoch: self.epoch,
                    at: number,
                    first_seq: piece.first_seq,
                    publication: piece.publication,
                    synced_to: self.durable,
                };
                piece.batch.seal_header(part, &place, &mut out);
                out.extend_from_slice(piece.batch.part_body(part));
            }
        }
        out.into()
    }

    fn land(&mut self, flight: Flight) -> Result<()> {
        flight.put?;
        self.durable = flight.number + 1;
        self.flying_since.pop_front();
        self.shared.queue.synced();
        self.shared.queue.object_created();
        let (Some(first), Some(last)) = (flight.complete.first(), flight.complete.last()) else { return Ok(()) };
        let at = |at| LogPosition { epoch: self.epoch, at };
        let start = at(first.first_object.unwrap_or(flight.number));
        let next_seq = last.first_seq.plus(last.batch.rows());
        self.last_seq = Seq(next_seq.0 - 1);
        self.shared.index.lock().note(first.first_seq, start, next_seq, at(self.durable));
        let rows = flight.complete.iter().map(|p| p.batch.rows()).sum();
        let bytes = flight.complete.iter().map(|p| p.batch.bytes()).sum();
        let queued = || self.shared.inbox.lock().batches.front().map(|pending| pending.since);
        let next_since = self.flying_since.iter().copied().flatten().next().or_else(queued);
        self.shared.queue.written(rows, bytes, first.since, next_since);
        let publication = last.publication;
        drop(flight.complete);
        self.listener.durable(publication);
        Ok(())
    }

    fn end(&self, ended: Result<EpochEnd>) {
        let left = {
            let mut inbox = self.shared.inbox.lock();
            std::mem::replace(&mut *inbox, Inbox { ended: Some(ended.clone()), ..Inbox::default() })
        };
        for closer in left.closers {
            let _ = closer.send(ended.clone());
        }
    }
}

/// What the log's task does next.
enum Ahead {
    /// Packs another object.
    Launches,
    /// Waits for a PUT to land, for batches, and until then at most.
    Waits(Option<Instant>),
    /// It was closed and has put everything.
    Over,
    /// Nobody holds the log any more.
    Abandoned,
}

async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

type Flying = BoxFuture<'static, Flight>;

/// Parts of one batch in one object.
struct Piece {
    batch: Arc<EncodedBatch>,
    parts: std::ops::Range<usize>,
    first_seq: Seq,
    publication: PubNo,
}

impl Inbox {
    /// Takes what goes into the next object: whole batches up to `limit` bytes, or some parts of one huge batch.
    fn take_object(&mut self, number: u64, limit: u64) -> Option<(Vec<Piece>, Vec<Pending>)> {
        let front = self.batches.front_mut()?;
        if front.batch.part_count() > 1 {
            return Some(self.take_parts(number, limit));
        }
        let (mut pieces, mut complete, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < limit && self.batches.front().is_some_and(|pending| pending.batch.part_count() == 1) {
            let Some(pending) = self.batches.pop_front() else { break };
            bytes += pending.batch.bytes();
            pieces.push(pending.piece(0..1));
            complete.push(pending);
        }
        self.bytes -= bytes;
        Some((pieces, complete))
    }

    fn take_parts(&mut self, number: u64, limit: u64) -> (Vec<Piece>, Vec<Pending>) {
        let front = self.batches.front_mut().expect("the caller saw it");
        front.first_object.get_or_insert(number);
        let from = front.next_part;
        let mut bytes = 0;
        while front.next_part < front.batch.part_count() && bytes < limit {
            bytes += front.batch.part_bytes(front.next_part);
            front.next_part += 1;
        }
        let pieces = vec![front.piece(from..front.next_part)];
        let is_whole = front.next_part == front.batch.part_count();
        self.bytes -= bytes;
        (pieces, if is_whole { self.batches.pop_front().into_iter().collect() } else { Vec::new() })
    }
}

impl Pending {
    fn piece(&self, parts: std::ops::Range<usize>) -> Piece {
        Piece { batch: Arc::clone(&self.batch), parts, first_seq: self.first_seq, publication: self.publication }
    }
}

/// Puts an own object; what stands there already must be it, from an attempt whose answer was lost.
async fn put_own(store: &dyn Store, path: &str, bytes: Bytes) -> Result<()> {
    let doing = |e: Error| match e.kind() {
        ErrorKind::Fenced => e,
        kind => e
            .context(format!("putting {path}: the outcome of the writes in flight is unknown, open the table anew"))
            .with_kind(if kind == ErrorKind::Corrupt { kind } else { ErrorKind::Unavailable }),
    };
    hit("wal.object.put.before").map_err(|e| doing(Error::io("fail point", e)))?;
    let outcome = store.put_if_absent(path, bytes.clone()).await.map_err(doing)?;
    hit("wal.object.put.after").map_err(|e| doing(Error::io("fail point", e)))?;
    if outcome == PutOutcome::Created {
        return Ok(());
    }
    match store.get(path).await {
        Ok(there) if there == bytes => Ok(()),
        Ok(there) => Err(match Fence::parse(&there) {
            Some(fence) => Error::fenced(format!(
                "the writer of epoch {} took the shard over: this one can write no more; open the table anew",
                fence.by
            )),
            None => Error::fenced(format!("{path} was written by another: this writer can write no more")),
        }),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err(Error::fenced(format!("{path} was taken and removed by a later writer: this one can write no more")))
        }
        Err(e) => Err(doing(e)),
    }
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
