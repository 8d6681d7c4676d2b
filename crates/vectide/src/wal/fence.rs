//! Fences: how a new writer ends an earlier writer's object log for good.
//!
//! `table/open` calls [`take_over`] after it has raised the epoch in the manifest and before it replays. The earlier
//! writer acknowledges object `n` only when its own put-if-absent created it and all before it; so a fence in the first
//! free slot, put with the same put-if-absent, is what it will find there, however late it wakes up. Invariants: the end
//! is never taken from a LIST; slots below the replay point are never walked, because they may have been trimmed; the
//! fence that ends a log is never removed. Idempotent: killed halfway, the next takeover finds the fence or puts its own.

use super::earlier_epochs;
use crate::error::{Error, Result};
use crate::failpoint::hit;
use crate::ids::{Epoch, LogPosition, Seq};
use crate::manifest::EpochEnd;
use crate::store::paths::{LogKind, ShardPaths};
use crate::store::{PutOutcome, Store};
use bytes::Bytes;
use crc32c::crc32c;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"VTDFNC\r\n";
/// A fence's size; no log object is as small.
pub(super) const FENCE_BYTES: usize = 40;
/// Slots tried at once: few at first, since each one behind the end is a fence too many, and one more for each slot that
/// turns out to be taken, since a long log would else cost many round trips.
const FIRST_WINDOW: usize = 4;
const WINDOW: usize = 32;

/// What a fence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    /// Whose log it ends.
    pub(super) fenced: Epoch,
    /// The slot it stands in.
    pub(super) slot: u64,
    /// The writer that put it.
    pub(super) by: Epoch,
}

impl Fence {
    fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(FENCE_BYTES);
        out.extend_from_slice(&MAGIC);
        for word in [self.fenced.0, self.slot, self.by.0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(FENCE_BYTES, 0);
        out.into()
    }

    /// Whether the object is meant as a fence: whole or not.
    pub(super) fn is_fence(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The fence in `bytes`, if it is whole.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
        let crc = u32::from_le_bytes(bytes.get(32..36)?.try_into().expect("four bytes"));
        if !Self::is_fence(bytes) || crc != crc32c(&bytes[..32]) {
            return None;
        }
        Some(Self { fenced: Epoch(word(8)?), slot: word(16)?, by: Epoch(word(24)?) })
    }
}

/// Ends the object logs of all epochs from `replay_from.epoch` up to, not including, `current` that are not in `closed`.
/// Returns `closed` with these added: `at` is the fence's slot, `last_seq` 0 until replay has read the log (what lies
/// before a fence may end in the first parts of a batch, which replay drops).
///
/// # Errors
/// `Unavailable` if the store cannot serve; call again with a later epoch.
pub(crate) async fn take_over(
    store: &Arc<dyn Store>,
    paths: &ShardPaths,
    replay_from: LogPosition,
    closed: &[EpochEnd],
    current: Epoch,
) -> Result<Vec<EpochEnd>> {
    let mut ends = closed.to_vec();
    for epoch in earlier_epochs(replay_from, current) {
        if closed.iter().any(|end| end.epoch == epoch) {
            continue;
        }
        let first = if epoch == replay_from.epoch { replay_from.at } else { 0 };
        let slot = fence_one(store, paths, epoch, first, current)
            .await
            .map_err(|e| e.context(format!("fencing the log of epoch {epoch}")))?;
        ends.push(EpochEnd { epoch, at: slot, last_seq: Seq(0) });
    }
    ends.sort_by_key(|end| end.epoch);
    Ok(ends)
}

/// Puts a fence in the first free slot from `first` on, unless another fence stands before it; returns the slot.
async fn fence_one(store: &Arc<dyn Store>, paths: &ShardPaths, epoch: Epoch, first: u64, by: Epoch) -> Result<u64> {
    // Only a takeover by an epoch between can have left a fence: else what exists is the old writer's, and is not read.
    let may_be_fenced = epoch.plus(1) < by;
    let mut trials = FuturesOrdered::new();
    let mut next = first;
    let mut end = None;
    let mut needless = Vec::new();
    let mut window = FIRST_WINDOW;
    // Slots are tried in parallel and judged in order. Fences that landed behind the first one are needless.
    while end.is_none() || !trials.is_empty() {
        while end.is_none() && trials.len() < window {
            trials.push_back(try_slot(store, paths, Fence { fenced: epoch, slot: next, by }, may_be_fenced));
            next += 1;
        }
        let Some(trial) = trials.next().await else { break };
        match trial? {
            (slot, Slot::Created) if end.is_some() => needless.push(slot),
            (slot, Slot::Created | Slot::OtherFence) => end = end.or(Some(slot)),
            (_, Slot::Taken) => window = (window + 1).min(WINDOW),
        }
    }
    // Nobody can acknowledge behind the first fence, so these protect nothing: what cannot be removed may stay.
    let removals = needless.into_iter().map(|slot| async move {
        let _ = store.delete(&paths.wal(epoch, slot, LogKind::Object)).await;
    });
    futures::future::join_all(removals).await;
    end.ok_or_else(|| Error::internal("the walk ended without a fence"))
}

enum Slot {
    Created,
    OtherFence,
    Taken,
}

async fn try_slot(
    store: &Arc<dyn Store>,
    paths: &ShardPaths,
    fence: Fence,
    may_be_fenced: bool,
) -> Result<(u64, Slot)> {
    let path = paths.wal(fence.fenced, fence.slot, LogKind::Object);
    hit("wal.fence.put.before").map_err(|e| Error::io("putting a fence", e))?;
    let outcome = store.put_if_absent(&path, fence.encode()).await?;
    hit("wal.fence.put.after").map_err(|e| Error::io("putting a fence", e))?;
    let slot = match outcome {
        PutOutcome::Created => Slot::Created,
        PutOutcome::Exists if may_be_fenced && Fence::is_fence(&store.get(&path).await?) => Slot::OtherFence,
        PutOutcome::Exists => Slot::Taken,
    };
    Ok((fence.slot, slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_says_who_ended_what() {
        let fence = Fence { fenced: Epoch(3), slot: 17, by: Epoch(5) };
        let bytes = fence.encode();
        assert_eq!((bytes.len(), Fence::parse(&bytes)), (FENCE_BYTES, Some(fence)));
        assert!(Fence::parse(&bytes[..30]).is_none());
        let mut damaged = bytes.to_vec();
        damaged[9] ^= 1;
        assert!(Fence::is_fence(&damaged) && Fence::parse(&damaged).is_none());
    }
}
