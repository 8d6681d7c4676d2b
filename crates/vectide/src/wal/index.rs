//! Where seqs stand in the log: a thin index that says from where a replay has to start.
//!
//! The log notes each group as it becomes durable, replay notes what it recovered; `flush` asks [`SeqIndex::locate`] when
//! it commits a segment. Invariant: the position it answers is never behind the first frame with rows at that seq or
//! later, and memory is bounded by log bytes over the grain, not by the number of groups.

use crate::ids::{Epoch, LogPosition, Seq};
use std::collections::VecDeque;

/// Log bytes between two entries of a local log's index.
pub(crate) const LOCAL_GRAIN: u64 = 64 << 10;
/// Objects between two entries of an object log's index.
pub(crate) const OBJECT_GRAIN: u64 = 1;

/// Seqs and log positions of one shard, over all epochs that are still in its log.
#[derive(Clone, Debug)]
pub(crate) struct SeqIndex {
    grain: u64,
    entries: VecDeque<(Seq, LogPosition)>,
    next_seq: Seq,
    end: LogPosition,
}

impl SeqIndex {
    /// An index of a log that holds nothing below `next_seq` and goes on at `end`.
    pub(crate) fn new(grain: u64, next_seq: Seq, end: LogPosition) -> Self {
        Self { grain, entries: VecDeque::new(), next_seq, end }
    }

    /// Notes that rows from `first_seq` up to (not including) `next_seq` stand from `start` to `end`.
    pub(crate) fn note(&mut self, first_seq: Seq, start: LogPosition, next_seq: Seq, end: LogPosition) {
        let is_due =
            self.entries.back().is_none_or(|&(_, last)| last.epoch != start.epoch || start.at - last.at >= self.grain);
        if is_due {
            self.entries.push_back((first_seq, start));
        }
        self.next_seq = next_seq;
        self.end = end;
    }

    /// The last seq in the log, or the one before its first.
    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.next_seq.0.saturating_sub(1))
    }

    /// Moves the end to the start of a new epoch's log.
    pub(crate) fn begin_epoch(&mut self, epoch: Epoch) {
        self.end = LogPosition { epoch, at: 0 };
    }

    /// A position at or before the first frame whose rows begin at `seq` or later.
    pub(crate) fn locate(&self, seq: Seq) -> LogPosition {
        if seq >= self.next_seq {
            return self.end;
        }
        let behind = self.entries.partition_point(|&(first, _)| first <= seq);
        match self.entries.get(behind.saturating_sub(1)) {
            Some(&(_, position)) => position,
            None => self.end,
        }
    }

    /// Forgets what lies before `position`.
    pub(crate) fn trim(&mut self, position: LogPosition) {
        while self.entries.get(1).is_some_and(|&(_, next)| next <= position) {
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, at: u64) -> LogPosition {
        LogPosition { epoch: Epoch(epoch), at }
    }

    #[test]
    fn a_replay_never_starts_behind_the_rows_it_needs() {
        let mut index = SeqIndex::new(100, Seq(1), at(1, 0));
        assert_eq!(index.locate(Seq(1)), at(1, 0));
        index.note(Seq(1), at(1, 50), Seq(5), at(1, 90));
        index.note(Seq(5), at(1, 90), Seq(6), at(1, 160));
        index.note(Seq(6), at(1, 160), Seq(9), at(1, 300));
        assert_eq!(index.locate(Seq(5)), at(1, 50), "the second group is below the grain");
        assert_eq!(index.locate(Seq(7)), at(1, 160));
        assert_eq!(index.locate(Seq(9)), at(1, 300));
        index.begin_epoch(Epoch(2));
        assert_eq!(index.locate(Seq(9)), at(2, 0));
        index.note(Seq(9), at(2, 40), Seq(10), at(2, 90));
        index.trim(at(2, 40));
        assert_eq!(index.locate(Seq(9)), at(2, 40));
        assert_eq!(index.locate(Seq(10)), at(2, 90));
    }
}
