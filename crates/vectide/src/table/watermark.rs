//! The point up to which everything is visible and may be acknowledged, and what snapshots see.
//!
//! In: batches in publication order ([`Watermark::push`], inside the publication section), how far the log is durable,
//! and how far the graphs hold the rows. Out: the [`Cut`] that snapshots are taken at, and, behind the section, each
//! writer's acknowledgement ([`Watermark::visible`]), for which a batch that is visible at once pays nothing.
//! The watermark passes a batch once it has passed all before it, the batch's rows are durable (in a durable table) and
//! no more than `tail_rows` rows below it would be missing from the graph (decision 0002). In an ordered table snapshots
//! are cut at the watermark; in an unordered one behind the last linked batch, and only acknowledgements wait (decision
//! 0008). Invariant: both only move forward, over a gapless prefix of publications, and never past a failure of the log.

mod state;

use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId, Seq};
use crate::options::{Durability, Visibility};
use crate::search::snapshot::Cut;
use crate::stats::{HeldBackStats, WaitsFor};
use crate::sync::Mutex;
use crate::wal::LogListener;
use state::{Outcome, State};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How far things are, for those who wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Last publication that may be acknowledged.
    pub(crate) visible: PubNo,
    /// Last durable publication.
    pub(crate) durable: PubNo,
    /// Last durable seq.
    pub(crate) durable_seq: Seq,
    /// Why the log stopped, once it has.
    pub(crate) failed: Option<Error>,
}

/// Tells a writer what became of its batch.
type Ack = oneshot::Sender<Result<()>>;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Watermark {
    state: Mutex<State<Ack, Error>>,
    progress: watch::Sender<Progress>,
}

impl Watermark {
    /// A watermark at `cut`, all of it durable and indexed. Without a log, [`Watermark::flushed`] says what is durable.
    pub(crate) fn new(cut: Cut, durability: Durability, visibility: Visibility, tail_rows: u32) -> Self {
        let progress = Progress { visible: cut.at, durable: cut.at, durable_seq: cut.seq, failed: None };
        let state = State::new(cut, durability == Durability::Durable, u64::from(tail_rows));
        let state = if durability == Durability::None { state.without_log() } else { state };
        let state = if visibility == Visibility::Unordered { state.unordered() } else { state };
        Self { state: Mutex::new(state), progress: watch::Sender::new(progress) }
    }

    /// Where a snapshot taken now cuts.
    pub(crate) fn cut(&self) -> Cut {
        self.state.lock().cut()
    }

    /// Takes a batch in. Called inside the publication section, in publication order; `now` is asked if it has to wait.
    pub(crate) fn push(&self, cut: Cut, now: impl FnOnce() -> Duration) {
        let due = {
            let mut state = self.state.lock();
            let due = state.push(cut, now);
            self.tell(&state);
            due
        };
        answer(due, None);
    }

    /// Whether a batch that was pushed may be acknowledged already.
    pub(crate) fn is_passed(&self, at: PubNo) -> bool {
        at <= self.state.lock().watermark()
    }

    /// Waits until a batch that was pushed may be acknowledged. Asked for once, by its writer.
    ///
    /// # Errors
    /// The log's error if that fails first; `Closed` if the shard is gone: the outcome is unknown.
    pub(crate) async fn visible(&self, at: PubNo) -> Result<()> {
        let told = {
            let mut state = self.state.lock();
            if at <= state.watermark() {
                return Ok(());
            }
            let (ack, told) = oneshot::channel();
            match state.listen(at, ack) {
                Outcome::Visible => return Ok(()),
                Outcome::Failed => return Err(state.failed().cloned().unwrap_or_else(unknown_outcome)),
                Outcome::Pending => told,
            }
        };
        told.await.unwrap_or_else(|_| Err(unknown_outcome()))
    }

    /// Without a log: everything up to `upto` and `seq` stands in segments.
    pub(crate) fn flushed(&self, upto: PubNo, seq: Seq) {
        let mut state = self.state.lock();
        state.flushed(upto, seq);
        self.tell(&state);
    }

    /// The log is durable up to `upto`.
    pub(crate) fn set_durable(&self, upto: PubNo) {
        self.change(|state| state.set_durable(upto));
    }

    /// The graphs hold every row below `rows`.
    pub(crate) fn set_indexed(&self, rows: RowId) {
        self.change(|state| state.set_indexed(rows));
    }

    /// Whether the row of `seq` would survive a power cut.
    pub(crate) fn is_durable(&self, seq: Seq) -> bool {
        self.state.lock().durable().1 >= seq
    }

    fn change(&self, change: impl FnOnce(&mut State<Ack, Error>) -> Vec<Ack>) {
        let due = {
            let mut state = self.state.lock();
            let before = (state.watermark(), state.durable());
            let due = change(&mut state);
            if (state.watermark(), state.durable()) != before {
                self.tell(&state);
            }
            due
        };
        answer(due, None);
    }

    /// The log failed: nothing that is not visible will ever be.
    pub(crate) fn fail(&self, error: &Error) {
        let lost = {
            let mut state = self.state.lock();
            let lost = state.fail(error.clone());
            self.tell(&state);
            lost
        };
        answer(lost, Some(error));
    }

    /// Why the log stopped, once it has.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.lock().failed().cloned()
    }

    /// Publishes how far things are, if anybody waits. Called with the state's lock, as is the first look of a waiter,
    /// so that one who subscribes later looks for himself.
    fn tell(&self, state: &State<Ack, Error>) {
        if self.progress.receiver_count() > 0 {
            self.refresh(state);
        }
    }

    fn refresh(&self, state: &State<Ack, Error>) {
        let (durable, durable_seq) = state.durable();
        let progress = Progress { visible: state.watermark(), durable, durable_seq, failed: state.failed().cloned() };
        self.progress.send_replace(progress);
    }

    /// The oldest batch that is not acknowledged, and what it waits for, at `now`.
    pub(crate) fn held_back(&self, now: Duration) -> Option<HeldBackStats> {
        let oldest = self.state.lock().oldest()?;
        Some(HeldBackStats {
            publication: oldest.publication.0,
            rows: oldest.rows,
            for_ms: now.saturating_sub(oldest.since).as_secs_f64() * 1e3,
            waits_for: if oldest.waits_for_log { WaitsFor::Log } else { WaitsFor::Graph },
        })
    }

    /// Visible rows that the graphs do not hold, now and at the maximum.
    pub(crate) fn tail(&self) -> (u64, u64) {
        self.state.lock().tail()
    }

    /// Waits until `reached` holds. The log's error if that fails first; `Closed` if the shard is gone.
    pub(crate) async fn wait(&self, reached: impl Fn(&Progress) -> bool) -> Result<()> {
        let mut progress = self.progress.subscribe();
        self.refresh(&self.state.lock());
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

/// Tells writers that their batches are visible, or with an error that they never will be.
fn answer(acks: Vec<Ack>, failed: Option<&Error>) {
    for ack in acks {
        // A writer that was cancelled no longer listens; its batch stands all the same.
        let _ = ack.send(failed.map_or(Ok(()), |error| Err(error.clone())));
    }
}

fn unknown_outcome() -> Error {
    Error::closed("the table was closed before the write was acknowledged; its outcome is unknown")
}

#[cfg(all(test, vectide_loom))]
mod loom_tests;
#[cfg(all(test, not(vectide_loom)))]
mod tests {
    use super::*;

    fn cut(at: u64, rows: u64) -> Cut {
        Cut { at: PubNo(at), rows: RowId(rows), seq: Seq(rows), live: rows }
    }

    /// Whether the batch is visible, by asking for it.
    fn told(mark: &Watermark, at: u64) -> Option<Result<()>> {
        use futures::FutureExt;
        mark.visible(PubNo(at)).now_or_never()
    }

    fn watermark(durability: Durability, tail: u32) -> Watermark {
        Watermark::new(Cut::default(), durability, Visibility::Ordered, tail)
    }

    fn unordered(durability: Durability, tail: u32) -> Watermark {
        Watermark::new(Cut::default(), durability, Visibility::Unordered, tail)
    }

    fn push(mark: &Watermark, cut: Cut) {
        mark.push(cut, || Duration::from_millis(cut.at.0));
    }

    #[test]
    fn a_batch_is_visible_once_durable_and_in_order() {
        let mark = watermark(Durability::Durable, 100);
        push(&mark, cut(1, 10));
        push(&mark, cut(2, 20));
        assert_eq!(mark.cut().at, PubNo(0));
        mark.set_durable(PubNo(1));
        assert_eq!((mark.cut().at, mark.cut().rows), (PubNo(1), RowId(10)));
        assert!(told(&mark, 1).expect("told").is_ok());
        assert!(told(&mark, 2).is_none(), "not yet");
    }

    #[test]
    fn the_tail_never_outgrows_its_bound() {
        let mark = watermark(Durability::Durable, 15);
        for (at, rows) in [(1, 10), (2, 20), (3, 30)] {
            push(&mark, cut(at, rows));
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
        let mark = watermark(Durability::Buffered, 5);
        push(&mark, cut(1, 5));
        push(&mark, Cut { at: PubNo(2), rows: RowId(5), seq: Seq(6), live: 4 });
        assert_eq!((mark.cut().at, mark.cut().live), (PubNo(2), 4));
    }

    #[test]
    fn buffered_batches_are_visible_before_they_are_durable() {
        let mark = watermark(Durability::Buffered, 100);
        push(&mark, cut(1, 10));
        assert!(told(&mark, 1).expect("told").is_ok());
        assert_eq!(mark.state.lock().durable(), (PubNo(0), Seq(0)));
        mark.set_durable(PubNo(1));
        assert_eq!(mark.state.lock().durable(), (PubNo(1), Seq(10)));
    }

    #[test]
    fn what_holds_the_watermark_back_is_named() {
        let mark = watermark(Durability::Durable, 15);
        assert_eq!(mark.held_back(Duration::from_millis(9)), None);
        for (at, rows) in [(1, 10), (2, 30), (3, 35)] {
            push(&mark, cut(at, rows));
        }
        let held = |waits_for, publication, rows, for_ms| Some(HeldBackStats { publication, rows, for_ms, waits_for });
        assert_eq!(mark.held_back(Duration::from_millis(9)), held(WaitsFor::Log, 1, 35, 8.0));
        mark.set_durable(PubNo(3));
        assert_eq!(mark.held_back(Duration::from_millis(9)), held(WaitsFor::Graph, 2, 25, 7.0));
        mark.set_indexed(RowId(35));
        assert_eq!(mark.held_back(Duration::from_millis(9)), None);
    }

    #[test]
    fn in_an_unordered_table_nothing_holds_back_what_others_see() {
        let mark = unordered(Durability::Durable, 15);
        // A batch that outgrows the tail's bound by far, and one behind it.
        push(&mark, cut(1, 1_000));
        push(&mark, cut(2, 1_001));
        assert_eq!((mark.cut().at, mark.cut().rows), (PubNo(2), RowId(1_001)), "both are seen when they are linked");
        assert_eq!(mark.tail(), (1_001, 1_001), "and the tail says what that costs");
        assert!(told(&mark, 1).is_none() && !mark.is_passed(PubNo(1)), "but neither is acknowledged");
        mark.set_durable(PubNo(2));
        assert!(told(&mark, 2).is_none(), "durable, and not indexed");
        mark.set_indexed(RowId(986));
        assert!(mark.is_passed(PubNo(2)));
        assert!(told(&mark, 2).expect("told").is_ok());
    }

    #[tokio::test]
    async fn in_an_unordered_table_a_failed_log_answers_everybody_and_shows_nothing_more() {
        let mark = unordered(Durability::Durable, 100);
        push(&mark, cut(1, 10));
        let mut early = Box::pin(mark.visible(PubNo(1)));
        assert!(futures::poll!(&mut early).is_pending());
        mark.fail(&Error::fenced("epoch 7 took over"));
        assert_eq!(early.await.expect_err("failed").kind(), crate::ErrorKind::Fenced);
        push(&mark, cut(2, 20));
        assert_eq!(mark.cut().at, PubNo(1), "what was published after the failure is not seen");
        assert!(mark.visible(PubNo(2)).await.is_err());
    }

    #[tokio::test]
    async fn without_a_log_a_flush_makes_durable_and_wakes_who_waits() {
        let mark = watermark(Durability::None, 100);
        push(&mark, cut(1, 10));
        assert_eq!(mark.cut().at, PubNo(1));
        let mut waiting = Box::pin(mark.wait(|p| p.durable_seq >= Seq(10)));
        assert!(futures::poll!(&mut waiting).is_pending());
        mark.flushed(PubNo(1), Seq(10));
        assert!(waiting.await.is_ok());
    }

    #[tokio::test]
    async fn a_failed_log_answers_everybody_and_moves_nothing() {
        let mark = watermark(Durability::Durable, 100);
        push(&mark, cut(1, 10));
        let mut early = Box::pin(mark.visible(PubNo(1)));
        assert!(futures::poll!(&mut early).is_pending());
        mark.fail(&Error::fenced("epoch 7 took over"));
        let error = early.await.expect_err("failed");
        assert_eq!(error.kind(), crate::ErrorKind::Fenced);
        let error = mark.visible(PubNo(1)).await.expect_err("and whoever asks later hears it too");
        assert_eq!(error.kind(), crate::ErrorKind::Fenced);
        assert_eq!(mark.cut().at, PubNo(0));
        assert!(mark.wait(|p| p.visible >= PubNo(1)).await.is_err());
        assert!(mark.wait(|p| p.visible >= PubNo(0)).await.is_ok(), "what was reached stays reached");
    }
}
