//! Reads a shard's log back after an open: whole batches, in order, over all epochs since the replay point.
//!
//! `table/open` pulls batches with [`Replay::next`] into memtables (sealing and flushing on the way) and records
//! [`Replay::finish`]'s ends in the manifest. Invariants: the log is not written; the same log gives the same batches
//! however often it is replayed; when `next` has answered `None`, what it gave before would survive a power cut; memory
//! is bounded by a few pieces and the largest batch.

use super::assemble::Assembler;
pub(crate) use super::assemble::ReplayBatch;
use super::frame::LogSchema;
use super::index::{LOCAL_GRAIN, OBJECT_GRAIN, SeqIndex};
use super::read_local::LocalReader;
use super::read_object::{ObjectReader, Slot};
use super::{EpochEnd, earlier_epochs};
use crate::error::{Error, Result};
use crate::failpoint::hit;
use crate::ids::{Epoch, LogPosition, PubNo, Seq};
use crate::store::paths::ShardPaths;
use crate::store::{LocalDir, Store};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Rows travel from the reading task in lumps of about this size, so that one-row batches cost no task switch each.
const LUMP_BYTES: usize = 1 << 20;
const LUMP_BATCHES: usize = 1024;
/// Lumps read ahead of the caller.
const LUMPS_AHEAD: usize = 2;

/// What the manifest says about the log.
#[derive(Clone, Debug)]
pub(crate) struct ReplayPlan {
    /// Where the first frame that is needed may stand.
    pub(crate) from: LogPosition,
    /// Rows below this seq are in segments already. The first row ever has seq 1.
    pub(crate) seq: Seq,
    /// The new writer's epoch: logs of the epochs from `from.epoch` up to, not including, this one are read.
    pub(crate) current: Epoch,
    /// Ends that are recorded: those logs are read exactly so far.
    pub(crate) closed: Vec<EpochEnd>,
}

/// What a replay found, for the manifest and the new log.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// Where each old epoch's log ends, in order, recorded ones included.
    pub(crate) ends: Vec<EpochEnd>,
    /// The last seq in the log, or the one below the replay point if it held nothing.
    pub(crate) last_seq: Seq,
    /// The last publication number in the log; 0 if it held nothing.
    pub(crate) last_publication: PubNo,
    /// Where seqs stand, for the new log's `locate`.
    pub(crate) index: SeqIndex,
}

/// A replay under way.
#[derive(Debug)]
pub(crate) struct Replay {
    lumps: mpsc::Receiver<Result<Lump>>,
    ready: VecDeque<ReplayBatch>,
    recovered: Option<Recovered>,
    failed: Option<Error>,
}

/// What the reading task sends.
#[derive(Debug)]
enum Lump {
    Batches(Vec<ReplayBatch>),
    End(Recovered),
}

impl Replay {
    /// Replays a local log below `wal_dir` of `dir`; reads ahead on a blocking thread.
    pub(crate) fn local(dir: LocalDir, wal_dir: PathBuf, schema: Arc<LogSchema>, plan: ReplayPlan) -> Self {
        let (send, lumps) = mpsc::channel(LUMPS_AHEAD);
        tokio::task::spawn_blocking(move || {
            let mut outlet = Outlet { send, lump: Vec::new(), bytes: 0 };
            let last = match replay_local(&dir, &wal_dir, &schema, &plan, &mut outlet) {
                Ok(recovered) => Ok(Lump::End(recovered)),
                Err(Stopped::By(error)) => Err(error),
                Err(Stopped::NoReader) => return,
            };
            if outlet.flush().is_ok() {
                let _ = outlet.send.blocking_send(last);
            }
        });
        Self { lumps, ready: VecDeque::new(), recovered: None, failed: None }
    }

    /// Replays an object log; fetches ahead in a task of its own. `plan.closed` has to name every epoch before the current
    /// one, as [`super::fence::take_over`] returns it.
    pub(crate) fn objects(store: Arc<dyn Store>, paths: ShardPaths, schema: Arc<LogSchema>, plan: ReplayPlan) -> Self {
        let (send, lumps) = mpsc::channel(LUMPS_AHEAD);
        tokio::spawn(async move {
            let mut outlet = Outlet { send, lump: Vec::new(), bytes: 0 };
            let last = match replay_objects(&store, &paths, &schema, &plan, &mut outlet).await {
                Ok(recovered) => Ok(Lump::End(recovered)),
                Err(Stopped::By(error)) => Err(error),
                Err(Stopped::NoReader) => return,
            };
            if outlet.send_lump().await.is_ok() {
                let _ = outlet.send.send(last).await;
            }
        });
        Self { lumps, ready: VecDeque::new(), recovered: None, failed: None }
    }

    /// The next whole batch in log order; `None` at the end, when everything given so far is durable.
    ///
    /// # Errors
    /// `Corrupt`, naming file or object and offset, if the log is damaged below what was durable.
    pub(crate) async fn next(&mut self) -> Result<Option<ReplayBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            if self.recovered.is_some() {
                return Ok(None);
            }
            match self.lumps.recv().await {
                Some(Ok(Lump::Batches(batches))) => self.ready.extend(batches),
                Some(Ok(Lump::End(recovered))) => self.recovered = Some(recovered),
                Some(Err(error)) => self.failed = Some(error),
                None => self.failed = Some(Error::internal("the replay's reading task ended early")),
            }
        }
    }

    /// What was found; call it once [`Replay::next`] has answered `None`.
    ///
    /// # Errors
    /// `Internal` if the replay is not at its end.
    pub(crate) fn finish(self) -> Result<Recovered> {
        self.recovered.ok_or_else(|| Error::internal("a replay was finished before its end"))
    }
}

/// Why reading stopped early.
enum Stopped {
    By(Error),
    NoReader,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::By(error)
    }
}

/// Where the reading task puts batches.
struct Outlet {
    send: mpsc::Sender<Result<Lump>>,
    lump: Vec<ReplayBatch>,
    bytes: usize,
}

impl Outlet {
    /// Takes a batch; `true` if a lump is full and has to be sent.
    fn put(&mut self, batch: ReplayBatch, bytes: usize) -> bool {
        self.lump.push(batch);
        self.bytes += bytes;
        self.bytes >= LUMP_BYTES || self.lump.len() >= LUMP_BATCHES
    }

    fn take(&mut self) -> Option<Result<Lump>> {
        self.bytes = 0;
        (!self.lump.is_empty()).then(|| Ok(Lump::Batches(std::mem::take(&mut self.lump))))
    }

    /// Sends what is there from a blocking thread.
    fn flush(&mut self) -> Result<(), Stopped> {
        match self.take() {
            Some(lump) => self.send.blocking_send(lump).map_err(|_| Stopped::NoReader),
            None => Ok(()),
        }
    }

    /// Sends what is there from a task.
    async fn send_lump(&mut self) -> Result<(), Stopped> {
        match self.take() {
            Some(lump) => self.send.send(lump).await.map_err(|_| Stopped::NoReader),
            None => Ok(()),
        }
    }
}

fn replay_local(
    dir: &LocalDir,
    wal_dir: &Path,
    schema: &Arc<LogSchema>,
    plan: &ReplayPlan,
    outlet: &mut Outlet,
) -> Result<Recovered, Stopped> {
    let mut frames = Assembler::new(Arc::clone(schema), plan.seq, SeqIndex::new(LOCAL_GRAIN, plan.seq, plan.from));
    let mut ends = Vec::new();
    let mut readers = Vec::new();
    for epoch in earlier_epochs(plan.from, plan.current) {
        let at = if epoch == plan.from.epoch { plan.from.at } else { 0 };
        let closed = plan.closed.iter().find(|end| end.epoch == epoch).map(|end| end.at);
        let from = LogPosition { epoch, at };
        let mut reader = LocalReader::open(Arc::clone(&dir.fs), wal_dir, Arc::clone(schema), from)?;
        while let Some(frame) = reader.next(closed)? {
            let bytes = frame.body.len();
            let start = LogPosition { epoch, at: frame.header.at };
            let end = LogPosition { epoch, at: reader.position() };
            if let Some(batch) = frames.push(frame, start, end)?
                && outlet.put(batch, bytes)
            {
                outlet.flush()?;
            }
        }
        let cut = frames.drop_partial();
        if let (Some(cut), Some(_)) = (cut, closed) {
            return Err(Error::corrupt(format!(
                "the log of epoch {epoch} was recorded to end at {} but a batch that began at {cut} goes on behind it",
                reader.position()
            ))
            .into());
        }
        let at = closed.unwrap_or(cut.map_or(reader.end_position(), |cut| cut.at));
        ends.push(EpochEnd { epoch, at, last_seq: frames.last_seq() });
        readers.push(reader);
    }
    sync_recovered(wal_dir, &readers)?;
    let (last_seq, last_publication) = (frames.last_seq(), frames.last_publication());
    Ok(Recovered { ends, last_seq, last_publication, index: frames.into_index() })
}

async fn replay_objects(
    store: &Arc<dyn Store>,
    paths: &ShardPaths,
    schema: &Arc<LogSchema>,
    plan: &ReplayPlan,
    outlet: &mut Outlet,
) -> Result<Recovered, Stopped> {
    let mut frames = Assembler::new(Arc::clone(schema), plan.seq, SeqIndex::new(OBJECT_GRAIN, plan.seq, plan.from));
    let mut ends = Vec::new();
    for epoch in earlier_epochs(plan.from, plan.current) {
        let at = if epoch == plan.from.epoch { plan.from.at } else { 0 };
        let limit = plan.closed.iter().find(|end| end.epoch == epoch).map(|end| end.at);
        let limit = limit.ok_or_else(|| Error::internal(format!("the log of epoch {epoch} was not fenced")))?;
        let from = LogPosition { epoch, at };
        let mut reader = ObjectReader::new(Arc::clone(store), paths.clone(), Arc::clone(schema), from);
        while reader.position() < limit {
            let slot = reader.position();
            let object = match reader.next(reader.window(), limit).await? {
                Slot::Frames(object) => object,
                // An earlier takeover's: the first fence is the end.
                Slot::Fence => break,
                Slot::Missing => {
                    let path = reader.path(slot);
                    let what = format!("log object {path} is missing: restore the table from a backup");
                    return Err(Error::corrupt(what).into());
                }
            };
            let last = object.len() - 1;
            for (i, frame) in object.into_iter().enumerate() {
                let bytes = frame.body.len();
                // A batch before the object's last is restarted from the object: what precedes it is read over.
                let end = LogPosition { epoch, at: if i == last { slot + 1 } else { slot } };
                if let Some(batch) = frames.push(frame, LogPosition { epoch, at: slot }, end)?
                    && outlet.put(batch, bytes)
                {
                    outlet.send_lump().await?;
                }
            }
        }
        // What lies before a fence may break off inside a batch: its writer was never told that it is durable.
        let at = frames.drop_partial().map_or(reader.position(), |cut| cut.at);
        ends.push(EpochEnd { epoch, at, last_seq: frames.last_seq() });
    }
    let (last_seq, last_publication) = (frames.last_seq(), frames.last_publication());
    Ok(Recovered { ends, last_seq, last_publication, index: frames.into_index() })
}

/// Makes durable what a killed writer left in the page cache: a reader must never see a row that a power cut could
/// still take. The files' names need nothing: no frame is written to a file before its name is durable.
fn sync_recovered(wal_dir: &Path, readers: &[LocalReader]) -> Result<()> {
    let failed = |e| Error::io(format!("syncing the recovered log {}", wal_dir.display()), e);
    for file in readers.iter().flat_map(LocalReader::touched) {
        hit("wal.replay.sync.before").and_then(|()| file.sync_data()).map_err(failed)?;
    }
    Ok(())
}
