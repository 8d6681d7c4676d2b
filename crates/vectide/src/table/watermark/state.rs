//! The watermark's state: what is published, durable and indexed goes in, the cut and who may be told come out.
//!
//! A plain machine without locks or wake-ups, so that loom can try it under a modelled lock; `watermark` puts the lock and
//! the notification around it. `A` is what an acknowledgement is sent through, `F` why the log failed. Invariant: the cut
//! only moves forward, over a gapless prefix of what was pushed.

use crate::ids::{PubNo, RowId, Seq};
use crate::search::snapshot::Cut;
use std::collections::VecDeque;

/// See the module's description.
#[derive(Debug)]
pub(super) struct State<A, F> {
    cut: Cut,
    durable: PubNo,
    durable_seq: Seq,
    /// Rows below this are in every graph.
    indexed: RowId,
    pending: VecDeque<(Cut, A)>,
    /// What was enqueued to the log and is not durable yet.
    in_log: VecDeque<(PubNo, Seq)>,
    failed: Option<F>,
    tail_max: u64,
    /// Whether visibility waits for durability.
    durable_first: bool,
    tail_rows: u64,
}

impl<A, F> State<A, F> {
    /// At `cut`, all of it durable and indexed.
    pub(super) fn new(cut: Cut, durable_first: bool, tail_rows: u64) -> Self {
        Self {
            cut,
            durable: cut.at,
            durable_seq: cut.seq,
            indexed: cut.rows,
            pending: VecDeque::new(),
            in_log: VecDeque::new(),
            failed: None,
            tail_max: 0,
            durable_first,
            tail_rows,
        }
    }

    /// Takes a batch in; returns the acknowledgements that are due. Gives the batch's own back if the log has failed.
    pub(super) fn push(&mut self, cut: Cut, ack: A) -> Result<Vec<A>, A> {
        debug_assert!(self.pending.back().is_none_or(|(last, _)| last.at < cut.at), "publication order");
        if self.failed.is_some() {
            return Err(ack);
        }
        if cut.at <= self.durable {
            // The log was faster than this call.
            self.durable_seq = cut.seq;
        } else {
            self.in_log.push_back((cut.at, cut.seq));
        }
        self.pending.push_back((cut, ack));
        Ok(self.advance())
    }

    /// The log is durable up to `upto`.
    pub(super) fn set_durable(&mut self, upto: PubNo) -> Vec<A> {
        self.durable = self.durable.max(upto);
        while let Some(&(publication, seq)) = self.in_log.front()
            && publication <= upto
        {
            self.durable_seq = seq;
            self.in_log.pop_front();
        }
        self.advance()
    }

    /// The graphs hold every row below `rows`.
    pub(super) fn set_indexed(&mut self, rows: RowId) -> Vec<A> {
        if rows <= self.indexed {
            return Vec::new();
        }
        self.indexed = rows;
        self.advance()
    }

    /// The log failed: returns the acknowledgements of everything that will never be visible.
    pub(super) fn fail(&mut self, why: F) -> Vec<A> {
        self.failed.get_or_insert(why);
        self.in_log.clear();
        self.pending.drain(..).map(|(_, ack)| ack).collect()
    }

    fn advance(&mut self) -> Vec<A> {
        let mut due = Vec::new();
        while let Some((next, _)) = self.pending.front() {
            let undurable = self.durable_first && next.at > self.durable;
            // A batch without rows (deletes) adds no tail, however long the tail is.
            let tail = if next.rows == self.cut.rows { 0 } else { next.rows.0.saturating_sub(self.indexed.0) };
            if undurable || tail > self.tail_rows {
                break;
            }
            self.tail_max = self.tail_max.max(tail);
            let (cut, ack) = self.pending.pop_front().expect("looked at above");
            self.cut = cut;
            due.push(ack);
        }
        due
    }

    /// Where a snapshot taken now cuts.
    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// The last durable publication and seq.
    pub(super) fn durable(&self) -> (PubNo, Seq) {
        (self.durable, self.durable_seq)
    }

    /// Why the log failed, if it has.
    pub(super) fn failed(&self) -> Option<&F> {
        self.failed.as_ref()
    }

    /// Visible rows that the graphs do not hold, now and at the maximum.
    pub(super) fn tail(&self) -> (u64, u64) {
        (self.cut.rows.0.saturating_sub(self.indexed.0), self.tail_max)
    }
}
