//! Reads one epoch's log objects in slot order, several fetched ahead.
//!
//! [`replay`](super::replay) and [`tail`](super::tail) call it. Each fetch is a task, so that it goes on while its reader is
//! busy with what came before. Invariants: an object is whole or an error, since a put is atomic; slots come in order; it
//! writes nothing; at most the window's objects are held.

use super::fence::Fence;
use super::frame::{FileHeader, Frame, LogSchema, Parsed, parse};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, LogPosition};
use crate::runtime::Task;
use crate::store::Store;
use crate::store::paths::{LogKind, ShardPaths};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use std::fmt;
use std::sync::Arc;

/// How many objects are fetched ahead while a log is read through: as many as make `BYTES` if they are like the last ones,
/// within limits, because the next ones may be longer.
mod ahead {
    /// About what is held of objects that are not read yet.
    pub(super) const BYTES: usize = 64 << 20;
    /// The least and the most of them. A most of full objects of the default size is 256 MiB.
    pub(super) const LEAST: usize = 8;
    pub(super) const MOST: usize = 32;
}

/// What a slot of an object log holds.
#[derive(Debug)]
pub(super) enum Slot {
    /// A group commit.
    Frames(Vec<Frame>),
    /// The end that a later writer set.
    Fence,
    /// Nothing.
    Missing,
}

/// One epoch's objects, being read.
pub(super) struct ObjectReader {
    store: Arc<dyn Store>,
    paths: ShardPaths,
    schema: Arc<LogSchema>,
    epoch: Epoch,
    /// The slot that [`ObjectReader::next`] gives next.
    position: u64,
    /// Slots asked for so far.
    asked: u64,
    ahead: FuturesOrdered<Task<Option<Bytes>>>,
    /// The size of the last objects, in bytes; a longer one counts at once, shorter ones little by little.
    size: usize,
}

impl fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectReader")
            .field("epoch", &self.epoch)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl ObjectReader {
    pub(super) fn new(store: Arc<dyn Store>, paths: ShardPaths, schema: Arc<LogSchema>, from: LogPosition) -> Self {
        let (epoch, position) = (from.epoch, from.at);
        Self { store, paths, schema, epoch, position, asked: position, ahead: FuturesOrdered::new(), size: 0 }
    }

    /// The window for reading through a log, by the size of what came last.
    pub(super) fn window(&self) -> usize {
        if self.size == 0 {
            return ahead::LEAST;
        }
        (ahead::BYTES / self.size).clamp(ahead::LEAST, ahead::MOST)
    }

    /// The slot that comes next.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Reads the next slot, with up to `window` slots below `limit` on their way. A missing slot is looked at again next
    /// time; what was fetched ahead of it is forgotten.
    ///
    /// # Errors
    /// `Corrupt`, naming object and offset, if it is no log object of this table in this place.
    pub(super) async fn next(&mut self, window: usize, limit: u64) -> Result<Slot> {
        while self.ahead.len() < window && (self.asked < limit || self.ahead.is_empty()) {
            let (store, path) = (Arc::clone(&self.store), self.path(self.asked));
            self.ahead.push_back(Task::start(async move {
                match store.get(&path).await {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(e),
                }
            }));
            self.asked += 1;
        }
        let fetched = self.ahead.next().await.expect("at least one slot was asked for");
        let slot = match fetched {
            Ok(Some(bytes)) if Fence::is_fence(&bytes) => self.fence(&bytes),
            Ok(Some(bytes)) => {
                self.size = bytes.len().max(self.size - self.size / 8);
                self.frames(&bytes).map(Slot::Frames)
            }
            Ok(None) => Ok(Slot::Missing),
            Err(e) => Err(e.context(format!("reading {}", self.path(self.position)))),
        };
        match slot {
            Ok(Slot::Frames(_)) => self.position += 1,
            _ => {
                self.ahead = FuturesOrdered::new();
                self.asked = self.position;
            }
        }
        slot
    }

    /// The path of a slot's object.
    pub(super) fn path(&self, slot: u64) -> String {
        self.paths.wal(self.epoch, slot, LogKind::Object)
    }

    fn fence(&self, bytes: &[u8]) -> Result<Slot> {
        match Fence::parse(bytes) {
            Some(fence) if fence.fenced == self.epoch && fence.slot == self.position => Ok(Slot::Fence),
            _ => Err(self.damage(0, "the fence's checksum does not match, or it belongs elsewhere")),
        }
    }

    fn frames(&self, bytes: &[u8]) -> Result<Vec<Frame>> {
        let mut offset = match self.schema.parse_file_header(bytes, self.epoch, self.position) {
            FileHeader::Whole { len } => len,
            FileHeader::Short(_) => return Err(self.damage(0, "its header is cut off")),
            FileHeader::Bad(why) | FileHeader::Foreign(why) => return Err(self.damage(0, &why)),
        };
        let mut frames = Vec::new();
        while offset < bytes.len() {
            match parse(&bytes[offset..], self.epoch, self.position) {
                Parsed::Frame { frame, len } => {
                    frames.push(frame);
                    offset += len;
                }
                Parsed::End => return Err(self.damage(offset, "nothing is written here")),
                Parsed::Bad(why) => return Err(self.damage(offset, why)),
            }
        }
        if frames.is_empty() { Err(self.damage(offset, "it holds no frame")) } else { Ok(frames) }
    }

    fn damage(&self, offset: usize, why: &str) -> Error {
        Error::corrupt(format!(
            "log object {} is damaged at byte {offset}: {why}. Restore the table from a backup; `vectide verify` shows \
             what else is affected",
            self.path(self.position)
        ))
    }
}
