//! Follows a shard's log from another process while its writer goes on.
//!
//! `table/reader` opens a [`Tail`] at what a manifest says and pulls batches with [`Tail::next`]; a newer manifest means
//! a new tail. Invariant: it never yields what could still be lost: on local files nothing beyond the writer's durable
//! mark or a recorded end, on objects nothing behind the first gap.

use super::assemble::{Assembler, ReplayBatch};
use super::durable::DurableMark;
use super::epoch_name;
use super::frame::{Frame, LogSchema};
use super::index::{LOCAL_GRAIN, OBJECT_GRAIN, SeqIndex};
use super::local::list_files;
use super::read_local::LocalReader;
use super::read_object::{ObjectReader, Slot};
use crate::error::{Error, Result};
use crate::ids::{Epoch, LogPosition};
use crate::manifest::{EpochEnd, ShardManifest};
use crate::store::paths::ShardPaths;
use crate::store::{LocalDir, Store};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// A local tail hands over what it read once it has this many bytes of it.
const LUMP_BYTES: usize = 1 << 20;
/// Objects fetched ahead while they keep coming.
const MAX_WINDOW: usize = 8;

/// A reader's place in the log.
#[derive(Debug)]
pub(crate) struct Tail {
    source: Source,
    ready: VecDeque<ReplayBatch>,
    /// Set while a blocking read has the state, and after one was cut short.
    follow: Option<Follow>,
}

#[derive(Debug)]
enum Source {
    Local { dir: LocalDir, wal_dir: PathBuf },
    Objects { store: Arc<dyn Store>, paths: ShardPaths },
}

/// How far the tail has come.
#[derive(Debug)]
struct Follow {
    schema: Arc<LogSchema>,
    frames: Assembler,
    /// Where the next frame is expected.
    position: LogPosition,
    current: Epoch,
    closed: Vec<EpochEnd>,
    /// Objects fetched ahead.
    objects: Option<ObjectReader>,
    /// How many, while they keep coming.
    window: usize,
}

impl Follow {
    /// The recorded end of the log at the position, if it is recorded.
    fn end(&self) -> Option<u64> {
        if self.position.epoch == Epoch(0) {
            // Nobody writes as epoch 0: a new shard's replay point.
            return Some(0);
        }
        self.closed.iter().find(|end| end.epoch == self.position.epoch).map(|end| end.at)
    }

    /// Goes on to the next epoch's log if the current one is at its recorded end; `false` if there is none yet.
    fn enter_next_epoch(&mut self) -> bool {
        let is_over = self.end().is_some_and(|end| self.position.at >= end) && self.position.epoch < self.current;
        if is_over {
            self.position = LogPosition { epoch: self.position.epoch.plus(1), at: 0 };
        }
        is_over
    }

    fn push(&mut self, frame: Frame, at: u64) -> Result<Option<ReplayBatch>> {
        let start = LogPosition { at: frame.header.at, ..self.position };
        self.position.at = at;
        self.frames.push(frame, start, self.position)
    }
}

impl Tail {
    /// A tail from the manifest's replay point on. Reads nothing yet.
    pub(crate) fn open(
        store: &Arc<dyn Store>,
        paths: &ShardPaths,
        schema: Arc<LogSchema>,
        manifest: &ShardManifest,
    ) -> Self {
        let (source, grain) = match store.local() {
            Some(dir) => {
                let wal_dir = dir.root.join(paths.wal_dir());
                (Source::Local { dir, wal_dir }, LOCAL_GRAIN)
            }
            None => (Source::Objects { store: Arc::clone(store), paths: paths.clone() }, OBJECT_GRAIN),
        };
        let index = SeqIndex::new(grain, manifest.replay_seq, manifest.replay_from);
        let follow = Follow {
            frames: Assembler::new(Arc::clone(&schema), manifest.replay_seq, index),
            schema,
            position: manifest.replay_from,
            current: manifest.epoch,
            closed: manifest.closed.clone(),
            objects: None,
            window: 1,
        };
        Self { source, ready: VecDeque::new(), follow: Some(follow) }
    }

    /// The next batch that is durable; `None` when the tail has caught up with the writer, or with what this manifest
    /// tells.
    ///
    /// # Errors
    /// `Expired` if the log was trimmed under the tail: read the newest manifest and open a new one. `Corrupt` if what
    /// should be durable is damaged.
    pub(crate) async fn next(&mut self) -> Result<Option<ReplayBatch>> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(Some(batch));
        }
        let mut follow =
            self.follow.take().ok_or_else(|| Error::expired("an earlier read of the log was cut short"))?;
        match &self.source {
            Source::Local { dir, wal_dir } => {
                let (dir, wal_dir) = (dir.clone(), wal_dir.clone());
                let read = move || follow.read_local(&dir, &wal_dir).map(|batches| (batches, follow));
                let (batches, follow) = tokio::task::spawn_blocking(read)
                    .await
                    .map_err(|e| Error::internal("reading the log was cut short").with_source(e))??;
                self.ready.extend(batches);
                self.follow = Some(follow);
            }
            Source::Objects { store, paths } => {
                self.ready.extend(follow.read_objects(store, paths).await?);
                self.follow = Some(follow);
            }
        }
        Ok(self.ready.pop_front())
    }
}

impl Follow {
    /// Reads what is durable and not yet read, about a lump of it.
    fn read_local(&mut self, dir: &LocalDir, wal_dir: &std::path::Path) -> Result<Vec<ReplayBatch>> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        loop {
            let mark =
                DurableMark::read(dir.fs.as_ref(), wal_dir).map_err(|e| Error::io("reading the durable mark", e))?;
            let marked = mark.map(|mark| mark.position).filter(|position| position.epoch == self.position.epoch);
            let Some(limit) = self.end().or(marked.map(|position| position.at)) else { return Ok(batches) };
            if self.position.at < limit {
                self.read_to(dir, wal_dir, limit, &mut batches, &mut bytes)
                    .map_err(|e| self.expired(e, dir, wal_dir))?;
            }
            if bytes >= LUMP_BYTES || !self.enter_next_epoch() {
                return Ok(batches);
            }
        }
    }

    fn read_to(
        &mut self,
        dir: &LocalDir,
        wal_dir: &std::path::Path,
        limit: u64,
        batches: &mut Vec<ReplayBatch>,
        bytes: &mut usize,
    ) -> Result<()> {
        let mut reader = LocalReader::open(Arc::clone(&dir.fs), wal_dir, Arc::clone(&self.schema), self.position)?;
        while *bytes < LUMP_BYTES
            && let Some(frame) = reader.next(Some(limit))?
        {
            *bytes += frame.body.len();
            batches.extend(self.push(frame, reader.position())?);
        }
        Ok(())
    }

    /// `Expired` instead of `error` if the file at the position is gone.
    fn expired(&self, error: Error, dir: &LocalDir, wal_dir: &std::path::Path) -> Error {
        let files = list_files(dir.fs.as_ref(), &wal_dir.join(epoch_name(self.position.epoch)));
        let is_gone = files.is_ok_and(|starts| starts.first().is_none_or(|&first| first > self.position.at));
        if !is_gone {
            return error;
        }
        Error::expired(format!("the log was trimmed beyond position {}", self.position)).with_source(error)
    }

    /// Reads about a lump of what stands behind the position; stops at the first gap.
    async fn read_objects(&mut self, store: &Arc<dyn Store>, paths: &ShardPaths) -> Result<Vec<ReplayBatch>> {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        loop {
            if self.enter_next_epoch() {
                self.objects = None;
                continue;
            }
            let end = self.end();
            if bytes >= LUMP_BYTES || end.is_some_and(|end| self.position.at >= end) {
                return Ok(batches);
            }
            let new = || ObjectReader::new(Arc::clone(store), paths.clone(), Arc::clone(&self.schema), self.position);
            let reader = self.objects.get_or_insert_with(new);
            let slot = reader.position();
            match reader.next(self.window, end.unwrap_or(u64::MAX)).await? {
                Slot::Frames(frames) => {
                    self.window = (self.window * 2).min(MAX_WINDOW);
                    let last = frames.len() - 1;
                    for (i, frame) in frames.into_iter().enumerate() {
                        bytes += frame.body.len();
                        batches.extend(self.push(frame, if i == last { slot + 1 } else { slot })?);
                    }
                }
                Slot::Missing if end.is_some() => {
                    return Err(Error::expired(format!("the log was trimmed beyond position {}", self.position)));
                }
                // A fence ends this log, but where the next one begins is for a newer manifest to say.
                Slot::Missing | Slot::Fence => {
                    self.window = 1;
                    return Ok(batches);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "tail_tests.rs"]
mod tests;
