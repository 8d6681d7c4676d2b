//! Puts frames together into whole batches and checks that the log is one story.
//!
//! [`replay`](super::replay) and [`tail`](super::tail) push frames in log order. Invariants: a batch comes out whole or
//! not at all; seqs follow one another without a gap from the replay point on, across epochs; publication numbers rise.

use super::frame::{Frame, FrameKind, LogSchema};
use super::index::SeqIndex;
use crate::error::{Error, Result};
use crate::ids::{Epoch, LogPosition, PubNo, Seq};
use arrow::array::RecordBatch;
use std::sync::Arc;

/// A whole batch out of the log.
#[derive(Clone, Debug)]
pub(crate) struct ReplayBatch {
    /// What it does.
    pub(crate) kind: FrameKind,
    /// The seq of its first row; the others follow.
    pub(crate) first_seq: Seq,
    /// Rows put or keys deleted, over all parts.
    pub(crate) rows: u64,
    /// Its place in the order of visibility.
    pub(crate) publication: PubNo,
    /// The rows, in order; views on buffers that nothing else shares.
    pub(crate) parts: Vec<RecordBatch>,
    /// The caller's idempotency key.
    pub(crate) idempotency_key: Option<Box<[u8]>>,
    /// Whose log it is from.
    pub(crate) epoch: Epoch,
    /// Where it stands.
    pub(crate) position: LogPosition,
    /// Where the log goes on behind it.
    pub(crate) position_after: LogPosition,
}

/// Frames in, whole batches out.
#[derive(Debug)]
pub(super) struct Assembler {
    schema: Arc<LogSchema>,
    /// Rows below this are in segments already.
    replay_seq: Seq,
    /// The seq that the next batch must have; `None` before the first one.
    next_seq: Option<Seq>,
    last_publication: PubNo,
    partial: Option<Partial>,
    index: SeqIndex,
}

#[derive(Debug)]
struct Partial {
    frames: Vec<Frame>,
    position: LogPosition,
    next_seq: Seq,
}

impl Assembler {
    /// Batches wholly below `replay_seq` are read over; the first one must not begin above it.
    pub(super) fn new(schema: Arc<LogSchema>, replay_seq: Seq, index: SeqIndex) -> Self {
        Self { schema, replay_seq, next_seq: None, last_publication: PubNo(0), partial: None, index }
    }

    /// Takes the frame that stands from `start` to `end`; gives the batch that it completes.
    ///
    /// # Errors
    /// `Corrupt` if the frame does not follow the one before it, or its body is no batch of the table's schema.
    pub(super) fn push(&mut self, frame: Frame, start: LogPosition, end: LogPosition) -> Result<Option<ReplayBatch>> {
        let header = &frame.header;
        let (first_seq, publication, part, parts) = (header.first_seq, header.publication, header.part, header.parts);
        let next_seq = first_seq.plus(u64::from(header.rows));
        match &mut self.partial {
            None if part == 0 => {
                self.check_order(&frame, start)?;
                self.partial = Some(Partial { frames: vec![frame], position: start, next_seq });
            }
            Some(partial) => {
                let head = &partial.frames[0].header;
                let follows = part as usize == partial.frames.len()
                    && (parts, publication, header.kind, first_seq)
                        == (head.parts, head.publication, head.kind, partial.next_seq);
                if !follows {
                    return Err(out_of_order(start, "a batch breaks off before its last part"));
                }
                partial.frames.push(frame);
                partial.next_seq = next_seq;
            }
            None => return Err(out_of_order(start, "a batch lacks its first part")),
        }
        if part + 1 < parts {
            return Ok(None);
        }
        let partial = self.partial.take().expect("set above");
        self.complete(partial, end)
    }

    fn check_order(&self, frame: &Frame, start: LogPosition) -> Result<()> {
        let (first, publication) = (frame.header.first_seq, frame.header.publication);
        match self.next_seq {
            Some(expected) if first != expected => {
                Err(out_of_order(start, format!("its first seq is {first} where {expected} follows")))
            }
            None if first > self.replay_seq.max(Seq(1)) => {
                let needed = self.replay_seq;
                Err(out_of_order(start, format!("the log begins at seq {first}, but rows from {needed} on are needed")))
            }
            _ if publication <= self.last_publication => {
                let last = self.last_publication;
                Err(out_of_order(start, format!("its publication number is {publication}, after {last}")))
            }
            _ => Ok(()),
        }
    }

    fn complete(&mut self, partial: Partial, end: LogPosition) -> Result<Option<ReplayBatch>> {
        let Partial { mut frames, position, next_seq } = partial;
        let head = &mut frames[0].header;
        let (kind, first_seq, publication) = (head.kind, head.first_seq, head.publication);
        let key = std::mem::take(&mut head.key);
        self.next_seq = Some(next_seq);
        self.last_publication = publication;
        self.index.note(first_seq, position, next_seq, end);
        if next_seq <= self.replay_seq {
            return Ok(None);
        }
        if first_seq < self.replay_seq {
            let needed = self.replay_seq;
            return Err(out_of_order(position, format!("replay starts at seq {needed}, inside a batch")));
        }
        let decode =
            |frame: &Frame| frame.decode(&self.schema).map_err(|e| e.context(format!("log position {position}")));
        let parts = frames.iter().map(decode).collect::<Result<Vec<_>>>()?;
        Ok(Some(ReplayBatch {
            kind,
            first_seq,
            rows: next_seq.0 - first_seq.0,
            publication,
            parts,
            idempotency_key: (!key.is_empty()).then_some(key),
            epoch: position.epoch,
            position,
            position_after: end,
        }))
    }

    /// Drops a batch that the end of an epoch's log cut off; returns where it began.
    pub(super) fn drop_partial(&mut self) -> Option<LogPosition> {
        self.partial.take().map(|partial| partial.position)
    }

    /// The last seq in the log so far, or the one before the first that a replay would want.
    pub(super) fn last_seq(&self) -> Seq {
        self.next_seq.map_or(Seq(self.replay_seq.0.saturating_sub(1)), |next| Seq(next.0 - 1))
    }

    /// The last publication number in the log so far; 0 if there was none.
    pub(super) fn last_publication(&self) -> PubNo {
        self.last_publication
    }

    /// Where seqs stand.
    pub(super) fn into_index(self) -> SeqIndex {
        self.index
    }
}

fn out_of_order(at: LogPosition, what: impl AsRef<str>) -> Error {
    Error::corrupt(format!(
        "the log is out of order at position {at}: {}. Restore the table from a backup",
        what.as_ref()
    ))
}
