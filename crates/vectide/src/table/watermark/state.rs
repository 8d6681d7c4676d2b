//! The watermark's state: what is published, durable and indexed goes in, the cut and who may be told come out.
//!
//! A plain machine without locks or wake-ups, so that loom can try it under a modelled lock; `watermark` puts the lock and
//! the notification around it. `A` is what an acknowledgement is sent through, `F` why the log failed. Invariants: the
//! watermark and the cut only move forward, over a gapless prefix of what was pushed; the cut is never behind the
//! watermark, and before it only in an unordered table.

use crate::ids::{PubNo, RowId, Seq};
use crate::search::snapshot::Cut;
use std::collections::VecDeque;
use std::time::Duration;

/// See the module's description.
#[derive(Debug)]
pub(super) struct State<A, F> {
    /// What a snapshot taken now sees.
    cut: Cut,
    /// Up to here batches may be acknowledged.
    watermark: Cut,
    durable: PubNo,
    durable_seq: Seq,
    /// Rows below this are in every graph.
    indexed: RowId,
    pending: VecDeque<Pending<A>>,
    /// What was enqueued to the log and is not durable yet.
    in_log: VecDeque<(PubNo, Seq)>,
    failed: Option<F>,
    tail_max: u64,
    /// Whether the watermark waits for durability.
    durable_first: bool,
    /// Whether the cut waits for the watermark.
    is_ordered: bool,
    /// Whether there is a log that says how far things are durable; without one, flushes do.
    is_logged: bool,
    tail_rows: u64,
}

/// A batch that the watermark has not passed.
#[derive(Debug)]
struct Pending<A> {
    cut: Cut,
    since: Duration,
    listener: Option<A>,
}

/// The oldest batch that the watermark has not passed: everything behind it waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    pub(super) publication: PubNo,
    /// Its rows and those that wait behind it.
    pub(super) rows: u64,
    /// When it was published.
    pub(super) since: Duration,
    /// Whether it waits for the log; if not, for the graph.
    pub(super) waits_for_log: bool,
}

/// What became of a batch that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It may be acknowledged: every read sees it.
    Visible,
    /// It never will be visible: the log failed.
    Failed,
    /// Whoever asked will be told.
    Pending,
}

impl<A, F> State<A, F> {
    /// At `cut`, all of it durable and indexed.
    pub(super) fn new(cut: Cut, durable_first: bool, tail_rows: u64) -> Self {
        Self {
            cut,
            watermark: cut,
            durable: cut.at,
            durable_seq: cut.seq,
            indexed: cut.rows,
            pending: VecDeque::new(),
            in_log: VecDeque::new(),
            failed: None,
            tail_max: 0,
            durable_first,
            is_ordered: true,
            is_logged: true,
            tail_rows,
        }
    }

    /// The same without a log: [`State::flushed`] says what is durable.
    pub(super) fn without_log(self) -> Self {
        Self { durable_first: false, is_logged: false, ..self }
    }

    /// The same with each batch visible when it is linked, whatever those before it wait for.
    pub(super) fn unordered(self) -> Self {
        Self { is_ordered: false, ..self }
    }

    /// Takes a batch in; returns the acknowledgements that are due. After a failure of the log it is forgotten. Costs a
    /// few words' stores where nothing waits; `now` is asked only if the batch has to.
    pub(super) fn push(&mut self, cut: Cut, now: impl FnOnce() -> Duration) -> Vec<A> {
        debug_assert!(self.pending.back().is_none_or(|last| last.cut.at < cut.at), "publication order");
        if self.failed.is_some() {
            return Vec::new();
        }
        if !self.is_logged {
            // Nothing to note: a flush says how far things are durable.
        } else if cut.at <= self.durable {
            // The log was faster than this call.
            self.durable_seq = cut.seq;
        } else {
            self.in_log.push_back((cut.at, cut.seq));
        }
        if !self.is_ordered {
            self.show(cut);
        }
        if self.pending.is_empty() && self.is_due(&cut) {
            self.pass(cut);
            return Vec::new();
        }
        self.pending.push_back(Pending { cut, since: now(), listener: None });
        self.advance()
    }

    /// Asks for a batch that was pushed: `ack` is given out once the watermark passes it, or with the others when the log
    /// fails, if the answer is [`Outcome::Pending`].
    pub(super) fn listen(&mut self, at: PubNo, ack: A) -> Outcome {
        if at <= self.watermark.at {
            return Outcome::Visible;
        }
        let place = self.pending.partition_point(|pending| pending.cut.at < at);
        match self.pending.get_mut(place) {
            Some(pending) if pending.cut.at == at => {
                pending.listener = Some(ack);
                Outcome::Pending
            }
            _ => Outcome::Failed,
        }
    }

    /// What holds the watermark back, if anything does.
    pub(super) fn oldest(&self) -> Option<Oldest> {
        let (first, last) = (self.pending.front()?, self.pending.back()?);
        Some(Oldest {
            publication: first.cut.at,
            rows: last.cut.rows.0 - self.watermark.rows.0,
            since: first.since,
            waits_for_log: self.durable_first && first.cut.at > self.durable,
        })
    }

    /// Without a log: everything up to `upto` and `seq` stands in segments.
    pub(super) fn flushed(&mut self, upto: PubNo, seq: Seq) {
        debug_assert!(!self.is_logged, "the log says what is durable");
        (self.durable, self.durable_seq) = (self.durable.max(upto), self.durable_seq.max(seq));
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
        self.pending.drain(..).filter_map(|pending| pending.listener).collect()
    }

    fn advance(&mut self) -> Vec<A> {
        let mut due = Vec::new();
        while let Some(next) = self.pending.front()
            && self.is_due(&next.cut)
        {
            let next = self.pending.pop_front().expect("looked at above");
            self.pass(next.cut);
            due.extend(next.listener);
        }
        due
    }

    /// Whether the batch that follows the watermark may be acknowledged.
    fn is_due(&self, next: &Cut) -> bool {
        let undurable = self.durable_first && next.at > self.durable;
        !undurable && self.tail_with(next) <= self.tail_rows
    }

    /// The tail's length if the batch were visible. One without rows (deletes) adds none, however long the tail is.
    fn tail_with(&self, next: &Cut) -> u64 {
        if next.rows == self.watermark.rows { 0 } else { next.rows.0.saturating_sub(self.indexed.0) }
    }

    fn pass(&mut self, next: Cut) {
        if self.is_ordered {
            self.show(next);
        }
        self.watermark = next;
    }

    fn show(&mut self, next: Cut) {
        self.tail_max = self.tail_max.max(next.rows.0.saturating_sub(self.indexed.0));
        self.cut = next;
    }

    /// The last publication that may be acknowledged.
    pub(super) fn watermark(&self) -> PubNo {
        self.watermark.at
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
