//! The log of a local directory: append-only files, one thread, one `fdatasync` for everybody who waits.
//!
//! `table/writer` admits and enqueues batches from any thread; the log thread drains the queue, seals the headers, writes
//! the whole group at once, syncs, publishes the durable mark and tells the listener. It commits at once when idle, and
//! under load a group is whatever came during the last sync; there is no timer. A log position counts bytes since the
//! epoch's start, file headers included; a file `wal/<epoch>/<start>.log` is named by the position of its first byte.
//! Invariants: nothing is created before the first admitted write; a batch is queued only with its disk space already
//! preallocated, so that a full disk is found before anything is written; after a failed write or sync nothing is ever
//! acknowledged again.

mod files;

use super::frame::{EncodedBatch, LogSchema, Place};
use super::index::SeqIndex;
use super::queue::{LogPermit, LogStats, Queue, QueueLimits, Space, SpaceHold};
use super::{Admission, EpochEnd, Log, LogListener};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::ids::{Epoch, LogPosition, PubNo, Seq};
use crate::store::Fs;
use async_trait::async_trait;
pub(super) use files::list_files;
use files::{FileSizes, Files, NoSpace};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Bodies up to this size are copied beside their headers, so that many small frames are one slice of the write.
const SMALL_BODY: usize = 4 << 10;

/// Sizes of a local log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalLogOptions {
    /// A log file is replaced once it has grown to this many bytes.
    pub(crate) file_bytes: u64,
    /// What the first file of an epoch starts with; it doubles, so that a small table has a small log.
    pub(crate) first_file_bytes: u64,
    /// Space kept back for deletes, so that a full disk can be emptied.
    pub(crate) delete_reserve_bytes: u64,
    /// A group commit takes no further batch once it has this many bytes.
    pub(crate) group_bytes: u64,
    /// What may be appended and not yet durable.
    pub(crate) queue: QueueLimits,
}

impl From<&crate::options::WalOptions> for LocalLogOptions {
    fn from(options: &crate::options::WalOptions) -> Self {
        let defaults = Self::default();
        Self {
            file_bytes: options.file_bytes,
            first_file_bytes: defaults.first_file_bytes.min(options.file_bytes),
            queue: QueueLimits { bytes: options.queue_bytes, rows: options.queue_rows },
            ..defaults
        }
    }
}

impl Default for LocalLogOptions {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            first_file_bytes: 1 << 20,
            delete_reserve_bytes: 256 << 10,
            group_bytes: 8 << 20,
            queue: QueueLimits { bytes: 64 << 20, rows: 1 << 20 },
        }
    }
}

/// A local log in its writer's hands. Dropping it writes what is queued, waits for the thread and leaves the log as a
/// crash would: the next writer recovers it.
pub(crate) struct LocalLog {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    epoch: Epoch,
    fs: Arc<dyn Fs>,
    wal_dir: PathBuf,
}

struct Shared {
    queue: Arc<Queue>,
    space: Arc<Space>,
    reserve: u64,
    inbox: Mutex<Inbox>,
    wake: Condvar,
    index: Mutex<SeqIndex>,
}

#[derive(Default)]
struct Inbox {
    batches: VecDeque<Pending>,
    space: Vec<SpaceRequest>,
    retire: Vec<(LogPosition, oneshot::Sender<Option<u64>>)>,
    is_closing: bool,
    closers: Vec<oneshot::Sender<Result<EpochEnd>>>,
    /// Set when the thread has ended: nothing is taken any more.
    ended: Option<Result<EpochEnd>>,
}

/// A batch in the queue.
struct Pending {
    batch: Arc<EncodedBatch>,
    first_seq: Seq,
    publication: PubNo,
    since: Duration,
    /// Room in the queue, given back when the batch is durable.
    _permit: LogPermit,
}

struct SpaceRequest {
    bytes: u64,
    reserve: u64,
    answer: oneshot::Sender<Result<SpaceHold>>,
}

impl LocalLog {
    /// Opens `epoch`'s log below `wal_dir`. Creates nothing yet; starts the log's thread. `index` is what replay found,
    /// and names the seq that the first batch will have.
    #[allow(clippy::too_many_arguments, reason = "each is a seam of its own; a builder would only rename them")]
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        wal_dir: PathBuf,
        epoch: Epoch,
        schema: Arc<LogSchema>,
        mut index: SeqIndex,
        options: LocalLogOptions,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn LogListener>,
    ) -> Result<Self> {
        index.begin_epoch(epoch);
        let last_seq = index.last_seq();
        let space = Arc::new(Space::default());
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queue, clock),
            space: Arc::clone(&space),
            reserve: options.delete_reserve_bytes,
            inbox: Mutex::default(),
            wake: Condvar::new(),
            index: Mutex::new(index),
        });
        let sizes = FileSizes { full: options.file_bytes, first: options.first_file_bytes };
        let worker = Worker {
            shared: Arc::clone(&shared),
            files: Files::new(Arc::clone(&fs), wal_dir.clone(), epoch, schema, sizes, space),
            listener,
            epoch,
            last_seq,
            group_bytes: options.group_bytes,
            is_full: false,
        };
        let thread = crate::runtime::spawn_thread("vectide-log".into(), move || worker.run())
            .map_err(|e| Error::io("starting the log's thread", e))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), epoch, fs, wal_dir })
    }

    /// Disk space for a permit: from what is preallocated, or else from the log's thread.
    async fn add_space(&self, permit: LogPermit, admission: Admission) -> Result<LogPermit> {
        let (bytes, reserve) = (permit.bytes(), self.reserve_for(admission));
        if let Some(space) = self.shared.space.take(bytes, reserve) {
            return Ok(permit.with_space(space));
        }
        let (answer, reply) = oneshot::channel();
        {
            let mut inbox = self.shared.inbox.lock();
            if inbox.ended.is_some() {
                return Err(self.stopped());
            }
            inbox.space.push(SpaceRequest { bytes, reserve, answer });
            self.shared.wake.notify_one();
        }
        match reply.await {
            Ok(space) => Ok(permit.with_space(space?)),
            Err(_) => Err(self.stopped()),
        }
    }

    fn reserve_for(&self, admission: Admission) -> u64 {
        match admission {
            Admission::Write => self.shared.reserve,
            Admission::Delete => 0,
        }
    }

    fn stopped(&self) -> Error {
        self.shared.queue.check().err().unwrap_or_else(|| Error::closed("the log was closed: open the table anew"))
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl Log for LocalLog {
    fn try_admit(&self, rows: u64, bytes: u64, admission: Admission) -> Result<Option<LogPermit>> {
        let Some(permit) = self.shared.queue.try_reserve(rows, bytes)? else { return Ok(None) };
        Ok(self.shared.space.take(bytes, self.reserve_for(admission)).map(|space| permit.with_space(space)))
    }

    async fn admit(&self, rows: u64, bytes: u64, admission: Admission) -> Result<LogPermit> {
        let permit = self.shared.queue.reserve(rows, bytes).await?;
        self.add_space(permit, admission).await
    }

    fn enqueue(&self, mut permit: LogPermit, batch: Arc<EncodedBatch>, first_seq: Seq, publication: PubNo) {
        debug_assert!(batch.bytes() <= permit.bytes() && batch.rows() <= permit.rows(), "admitted for less");
        permit.spend_space();
        let since = self.shared.queue.now();
        let mut inbox = self.shared.inbox.lock();
        if inbox.ended.is_some() {
            return;
        }
        self.shared.queue.appended(batch.rows(), batch.bytes(), since);
        inbox.batches.push_back(Pending { batch, first_seq, publication, since, _permit: permit });
        drop(inbox);
        self.shared.wake.notify_one();
    }

    fn locate(&self, seq: Seq) -> LogPosition {
        self.shared.index.lock().locate(seq)
    }

    async fn trim(&self, position: LogPosition) -> Result<()> {
        let (answer, reply) = oneshot::channel();
        {
            let mut inbox = self.shared.inbox.lock();
            if inbox.ended.is_some() {
                return Err(self.stopped());
            }
            inbox.retire.push((position, answer));
            self.shared.wake.notify_one();
        }
        let current = reply.await.map_err(|_| self.stopped())?;
        let (fs, wal_dir, epoch) = (Arc::clone(&self.fs), self.wal_dir.clone(), self.epoch);
        let removed = tokio::task::spawn_blocking(move || files::trim(fs.as_ref(), &wal_dir, position, epoch, current))
            .await
            .map_err(|e| Error::internal("trimming the log was cut short").with_source(e))??;
        self.shared.queue.objects_trimmed(removed);
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
            self.shared.wake.notify_one();
        }
        reply.await.map_err(|_| Error::closed("the log's thread ended early"))?
    }

    fn stats(&self) -> LogStats {
        self.shared.queue.stats()
    }
}

impl Drop for LocalLog {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.shared.inbox.lock().is_closing = true;
        self.shared.wake.notify_one();
        // The directory's lock may be released once we return: by then nothing may write any more.
        self.join();
    }
}

impl fmt::Debug for LocalLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLog").field("epoch", &self.epoch).field("dir", &self.wal_dir).finish_non_exhaustive()
    }
}

/// The log's thread.
struct Worker {
    shared: Arc<Shared>,
    files: Files,
    listener: Arc<dyn LogListener>,
    epoch: Epoch,
    last_seq: Seq,
    group_bytes: u64,
    /// The disk was full when space was last asked for: only a writer's request tries again.
    is_full: bool,
}

/// What the thread found to do.
#[derive(Default)]
struct Work {
    group: Vec<Pending>,
    space: Vec<SpaceRequest>,
    retire: Vec<(LogPosition, oneshot::Sender<Option<u64>>)>,
    /// When the oldest batch left in the queue came.
    next_since: Option<Duration>,
    is_last: bool,
}

impl Worker {
    fn run(mut self) {
        loop {
            let mut work = self.wait();
            let done = self.serve_space(std::mem::take(&mut work.space)).and_then(|()| self.commit(&work));
            if let Err(error) = done {
                return self.die(error, work);
            }
            drop(work.group);
            for (position, answer) in work.retire {
                let current = if self.files.retire(position) { None } else { self.files.current_start() };
                let _ = answer.send(current);
            }
            if work.is_last {
                return self.finish();
            }
            if self.files.is_low(self.shared.reserve) && !self.is_full {
                match self.extend(0, 0) {
                    Err(NoSpace::Broken(error)) => return self.die(error, Work::default()),
                    Err(NoSpace::Full(_)) => self.is_full = true,
                    Ok(()) => {}
                }
            }
        }
    }

    /// Sleeps until there is work and takes it: everything but batches beyond the group's limit.
    fn wait(&self) -> Work {
        let mut inbox = self.shared.inbox.lock();
        while inbox.batches.is_empty() && inbox.space.is_empty() && inbox.retire.is_empty() && !inbox.is_closing {
            self.shared.wake.wait(&mut inbox);
        }
        let mut work = Work {
            space: std::mem::take(&mut inbox.space),
            retire: std::mem::take(&mut inbox.retire),
            ..Work::default()
        };
        let mut bytes = 0;
        while bytes < self.group_bytes
            && let Some(pending) = inbox.batches.pop_front()
        {
            bytes += pending.batch.bytes();
            work.group.push(pending);
        }
        work.next_since = inbox.batches.front().map(|pending| pending.since);
        work.is_last = inbox.is_closing && inbox.batches.is_empty() && inbox.space.is_empty();
        work
    }

    fn serve_space(&mut self, requests: Vec<SpaceRequest>) -> Result<()> {
        let mut requests = requests.into_iter();
        while let Some(request) = requests.next() {
            let answer = match self.find_space(request.bytes, request.reserve) {
                Ok(hold) => Ok(hold),
                Err(NoSpace::Full(e)) => {
                    self.is_full = true;
                    let what = "disk full: nothing was written; free space or delete rows; reads and deletes go on";
                    Err(Error::unavailable(what).with_source(e))
                }
                Err(NoSpace::Broken(error)) => {
                    let _ = request.answer.send(Err(error.clone()));
                    for other in requests {
                        let _ = other.answer.send(Err(error.clone()));
                    }
                    return Err(error);
                }
            };
            // A writer that went away meanwhile gives the space back as the answer is dropped.
            let _ = request.answer.send(answer);
        }
        Ok(())
    }

    fn find_space(&mut self, bytes: u64, reserve: u64) -> Result<SpaceHold, NoSpace> {
        loop {
            if let Some(hold) = self.shared.space.take(bytes, reserve) {
                return Ok(hold);
            }
            // Others may take some of it meanwhile, hence the loop. The reserve is filled up on the way if there is room.
            let free = self.shared.space.free();
            self.extend((bytes + self.shared.reserve).saturating_sub(free), (bytes + reserve).saturating_sub(free))?;
        }
    }

    fn extend(&mut self, need: u64, least: u64) -> Result<(), NoSpace> {
        if self.files.extend(need, least)? {
            self.shared.queue.object_created();
        }
        self.is_full = false;
        Ok(())
    }

    /// Writes a group and makes it durable, then says so.
    fn commit(&mut self, work: &Work) -> Result<()> {
        let (Some(first), Some(last)) = (work.group.first(), work.group.last()) else { return Ok(()) };
        let start = self.files.position();
        let group = Group::seal(&work.group, self.epoch, start);
        self.files.append(&group.slices(&work.group), group.bytes)?;
        self.shared.queue.synced();
        let next_seq = last.first_seq.plus(last.batch.rows());
        self.last_seq = Seq(next_seq.0 - 1);
        let at = |at| LogPosition { epoch: self.epoch, at };
        self.shared.index.lock().note(first.first_seq, at(start), next_seq, at(self.files.position()));
        self.files.publish(last.publication);
        self.shared.queue.written(group.rows, group.bytes, first.since, work.next_since);
        self.listener.durable(last.publication);
        Ok(())
    }

    fn finish(mut self) {
        self.files.finish();
        self.shared.queue.close();
        self.end(Ok(EpochEnd { epoch: self.epoch, at: self.files.position(), last_seq: self.last_seq }));
    }

    fn die(self, error: Error, work: Work) {
        self.shared.queue.fail(error.clone());
        self.end(Err(error.clone()));
        drop(work);
        self.listener.failed(error);
    }

    /// Answers everybody who still waits; what is queued is dropped.
    fn end(&self, ended: Result<EpochEnd>) {
        let left = {
            let mut inbox = self.shared.inbox.lock();
            std::mem::replace(&mut *inbox, Inbox { ended: Some(ended.clone()), ..Inbox::default() })
        };
        // Requests for space and trims are told by the drop of their channels.
        for closer in left.closers {
            let _ = closer.send(ended.clone());
        }
    }
}

/// Sealed headers of a group, and the small bodies beside them.
struct Group {
    staged: Vec<u8>,
    /// How the frames follow one another: a run of staged bytes, or a body of its own.
    pieces: Vec<Piece>,
    rows: u64,
    bytes: u64,
}

enum Piece {
    Staged { from: usize, to: usize },
    Body { pending: usize, part: usize },
}

impl Group {
    fn seal(group: &[Pending], epoch: Epoch, start: u64) -> Self {
        let mut sealed = Self { staged: Vec::new(), pieces: Vec::new(), rows: 0, bytes: 0 };
        let mut from = 0;
        for (i, pending) in group.iter().enumerate() {
            let batch = &pending.batch;
            for part in 0..batch.part_count() {
                let place = Place {
                    epoch,
                    at: start + sealed.bytes,
                    first_seq: pending.first_seq,
                    publication: pending.publication,
                    synced_to: start,
                };
                batch.seal_header(part, &place, &mut sealed.staged);
                let body = batch.part_body(part);
                if body.len() <= SMALL_BODY {
                    sealed.staged.extend_from_slice(body);
                } else {
                    sealed.pieces.push(Piece::Staged { from, to: sealed.staged.len() });
                    sealed.pieces.push(Piece::Body { pending: i, part });
                    from = sealed.staged.len();
                }
                sealed.bytes += batch.part_bytes(part);
            }
            sealed.rows += batch.rows();
        }
        sealed.pieces.push(Piece::Staged { from, to: sealed.staged.len() });
        sealed
    }

    fn slices<'a>(&'a self, group: &'a [Pending]) -> Vec<&'a [u8]> {
        self.pieces
            .iter()
            .map(|piece| match *piece {
                Piece::Staged { from, to } => &self.staged[from..to],
                Piece::Body { pending, part } => group[pending].batch.part_body(part).as_slice(),
            })
            .filter(|slice| !slice.is_empty())
            .collect()
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
