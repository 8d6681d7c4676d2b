//! The point up to which everything is visible.
//!
//! In: batches in publication order ([`Watermark::push`], inside the publication section), how far the log is durable,
//! and how far the graphs hold the rows. Out: the [`Cut`] that snapshots are taken at, and each writer's acknowledgement.
//! A batch becomes visible once all batches before it are, its rows are durable (in a durable table) and no more than
//! `tail_rows` visible rows would be missing from the graph (decision 0002). Invariant: the cut only moves forward, over
//! a gapless prefix of publications, and never past a failure of the log.

use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId, Seq};
use crate::search::snapshot::Cut;
use crate::sync::Mutex;
use crate::wal::LogListener;
use std::collections::VecDeque;
use tokio::sync::{oneshot, watch};

/// A published batch that is not visible yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What the shard looks like once it is visible.
    pub(crate) cut: Cut,
    /// Told when it is visible, or why it never will be.
    pub(crate) ack: Option<oneshot::Sender<Result<()>>>,
}

/// How far things are, for those who wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Last visible publication.
    pub(crate) visible: PubNo,
    /// Last durable publication.
    pub(crate) durable: PubNo,
    /// Last durable seq.
    pub(crate) durable_seq: Seq,
    /// Why the log stopped, once it has.
    pub(crate) failed: Option<Error>,
}

#[derive(Debug)]
struct State {
    cut: Cut,
    durable: PubNo,
    durable_seq: Seq,
    /// Rows below this are in every graph.
    indexed: RowId,
    pending: VecDeque<Pending>,
    /// What was enqueued to the log and is not durable yet.
    in_log: VecDeque<(PubNo, Seq)>,
    failed: Option<Error>,
    tail_max: u64,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Watermark {
    state: Mutex<State>,
    /// Whether visibility waits for durability.
    durable_first: bool,
    tail_rows: u64,
    progress: watch::Sender<Progress>,
}

impl Watermark {
    /// A watermark at `cut`, all of it durable and indexed.
    pub(crate) fn new(cut: Cut, durable_first: bool, tail_rows: u32) -> Self {
        let state = State {
            cut,
            durable: cut.at,
            durable_seq: cut.seq,
            indexed: cut.rows,
            pending: VecDeque::new(),
            in_log: VecDeque::new(),
            failed: None,
            tail_max: 0,
        };
        let progress = Progress { visible: cut.at, durable: cut.at, durable_seq: cut.seq, failed: None };
        let tail_rows = u64::from(tail_rows);
        Self { state: Mutex::new(state), durable_first, tail_rows, progress: watch::Sender::new(progress) }
    }

    /// Where a snapshot taken now cuts.
    pub(crate) fn cut(&self) -> Cut {
        self.state.lock().cut
    }

    /// Takes a batch in. Called inside the publication section, in publication order.
    pub(crate) fn push(&self, pending: Pending) {
        let acks = {
            let mut state = self.state.lock();
            debug_assert!(state.pending.back().is_none_or(|last| last.cut.at < pending.cut.at), "publication order");
            if let Some(error) = state.failed.clone() {
                return answer(pending.ack.map(|ack| (ack, Err(error))).into_iter().collect());
            }
            if pending.cut.at <= state.durable {
                // The log was faster than this call.
                state.durable_seq = pending.cut.seq;
            } else {
                state.in_log.push_back((pending.cut.at, pending.cut.seq));
            }
            state.pending.push_back(pending);
            let acks = self.advance(&mut state);
            self.tell(&state);
            acks
        };
        answer(acks);
    }

    /// The log is durable up to `upto`.
    pub(crate) fn set_durable(&self, upto: PubNo) {
        let acks = {
            let mut state = self.state.lock();
            state.durable = state.durable.max(upto);
            while let Some(&(publication, seq)) = state.in_log.front()
                && publication <= upto
            {
                state.durable_seq = seq;
                state.in_log.pop_front();
            }
            let acks = self.advance(&mut state);
            self.tell(&state);
            acks
        };
        answer(acks);
    }

    /// The graphs hold every row below `rows`.
    pub(crate) fn set_indexed(&self, rows: RowId) {
        let acks = {
            let mut state = self.state.lock();
            if rows <= state.indexed {
                return;
            }
            state.indexed = rows;
            self.advance(&mut state)
        };
        answer(acks);
    }

    /// The log failed: nothing that is not visible will ever be.
    pub(crate) fn fail(&self, error: &Error) {
        let acks: Vec<_> = {
            let mut state = self.state.lock();
            state.failed.get_or_insert_with(|| error.clone());
            state.in_log.clear();
            self.tell(&state);
            state.pending.drain(..).filter_map(|p| Some((p.ack?, Err(error.clone())))).collect()
        };
        answer(acks);
    }

    /// Why the log stopped, once it has.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.lock().failed.clone()
    }

    fn advance(&self, state: &mut State) -> Vec<(oneshot::Sender<Result<()>>, Result<()>)> {
        let mut acks = Vec::new();
        let before = state.cut.at;
        while let Some(next) = state.pending.front() {
            let undurable = self.durable_first && next.cut.at > state.durable;
            // A batch without rows (deletes) adds no tail, however long the tail is.
            let tail = if next.cut.rows == state.cut.rows { 0 } else { next.cut.rows.0.saturating_sub(state.indexed.0) };
            if undurable || tail > self.tail_rows {
                break;
            }
            state.tail_max = state.tail_max.max(tail);
            state.cut = next.cut;
            let done = state.pending.pop_front().expect("looked at above");
            acks.extend(done.ack.map(|ack| (ack, Ok(()))));
        }
        if state.cut.at != before {
            self.tell(state);
        }
        acks
    }

    fn tell(&self, state: &State) {
        self.progress.send_replace(Progress {
            visible: state.cut.at,
            durable: state.durable,
            durable_seq: state.durable_seq,
            failed: state.failed.clone(),
        });
    }

    /// Visible rows that the graphs do not hold, now and at the maximum.
    pub(crate) fn tail(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.cut.rows.0.saturating_sub(state.indexed.0), state.tail_max)
    }

    /// Waits until `reached` holds. The log's error if that fails first; `Closed` if the shard is gone.
    pub(crate) async fn wait(&self, reached: impl Fn(&Progress) -> bool) -> Result<()> {
        let mut progress = self.progress.subscribe();
        let found = progress.wait_for(|p| reached(p) || p.failed.is_some()).await;
        let found = found.map_err(|_| Error::closed("the table was closed"))?;
        if reached(&found) {
            return Ok(());
        }
        Err(found.failed.clone().expect("one of the two held"))
    }
}

impl LogListener for Watermark {
    fn durable(&self, upto: PubNo) {
        self.set_durable(upto);
    }

    fn failed(&self, error: Error) {
        tracing::error!(?error, "the log failed; the writer must be opened anew");
        self.fail(&error);
    }
}

fn answer(acks: Vec<(oneshot::Sender<Result<()>>, Result<()>)>) {
    for (ack, result) in acks {
        // A writer that was cancelled no longer listens; its batch stands all the same.
        let _ = ack.send(result);
    }
}

#[cfg(all(test, not(vectide_loom)))]
mod tests {
    use super::*;

    fn pending(at: u64, rows: u64) -> (Pending, oneshot::Receiver<Result<()>>) {
        let (ack, told) = oneshot::channel();
        let cut = Cut { at: PubNo(at), rows: RowId(rows), seq: Seq(rows), live: rows };
        (Pending { cut, ack: Some(ack) }, told)
    }

    fn watermark(durable_first: bool, tail: u32) -> Watermark {
        Watermark::new(Cut::default(), durable_first, tail)
    }

    #[test]
    fn a_batch_is_visible_once_durable_and_in_order() {
        let mark = watermark(true, 100);
        let (first, mut first_told) = pending(1, 10);
        let (second, mut second_told) = pending(2, 20);
        mark.push(first);
        mark.push(second);
        assert_eq!(mark.cut().at, PubNo(0));
        mark.set_durable(PubNo(1));
        assert_eq!((mark.cut().at, mark.cut().rows), (PubNo(1), RowId(10)));
        assert!(first_told.try_recv().expect("told").is_ok());
        assert!(second_told.try_recv().is_err(), "not yet");
    }

    #[test]
    fn the_tail_never_outgrows_its_bound() {
        let mark = watermark(true, 15);
        for (at, rows) in [(1, 10), (2, 20), (3, 30)] {
            mark.push(pending(at, rows).0);
        }
        mark.set_durable(PubNo(3));
        assert_eq!(mark.cut().rows, RowId(10), "20 rows would be a tail of 20");
        mark.set_indexed(RowId(5));
        assert_eq!(mark.cut().rows, RowId(20));
        mark.set_indexed(RowId(30));
        assert_eq!(mark.cut().rows, RowId(30));
        assert!(mark.tail().1 <= 15);
    }

    #[test]
    fn a_delete_does_not_wait_for_the_graph() {
        let mark = watermark(false, 5);
        mark.push(pending(1, 5).0);
        mark.push(Pending { cut: Cut { at: PubNo(2), rows: RowId(5), seq: Seq(6), live: 4 }, ack: None });
        assert_eq!((mark.cut().at, mark.cut().live), (PubNo(2), 4));
    }

    #[test]
    fn buffered_batches_are_visible_before_they_are_durable() {
        let mark = watermark(false, 100);
        let (batch, mut told) = pending(1, 10);
        mark.push(batch);
        assert!(told.try_recv().expect("told").is_ok());
        assert_eq!(mark.progress.borrow().durable_seq, Seq(0));
        mark.set_durable(PubNo(1));
        assert_eq!(mark.progress.borrow().durable_seq, Seq(10));
    }

    #[tokio::test]
    async fn a_failed_log_answers_everybody_and_moves_nothing() {
        let mark = watermark(true, 100);
        let (batch, told) = pending(1, 10);
        mark.push(batch);
        mark.fail(&Error::fenced("epoch 7 took over"));
        let error = told.await.expect("told").expect_err("failed");
        assert_eq!(error.kind(), crate::ErrorKind::Fenced);
        assert_eq!(mark.cut().at, PubNo(0));
        assert!(mark.wait(|p| p.visible >= PubNo(1)).await.is_err());
        assert!(mark.wait(|p| p.visible >= PubNo(0)).await.is_ok(), "what was reached stays reached");
    }
}
