//! The point up to which everything is visible.
//!
//! In: batches in publication order ([`Watermark::push`], inside the publication section), how far the log is durable,
//! and how far the graphs hold the rows. Out: the [`Cut`] that snapshots are taken at, and, behind the section, each
//! writer's acknowledgement ([`Watermark::visible`]), for which a batch that is visible at once pays nothing.
//! A batch becomes visible once all batches before it are, its rows are durable (in a durable table) and no more than
//! `tail_rows` visible rows would be missing from the graph (decision 0002). Invariant: the cut only moves forward, over
//! a gapless prefix of publications, and never past a failure of the log.

mod state;

use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId, Seq};
use crate::search::snapshot::Cut;
use crate::sync::Mutex;
use crate::wal::LogListener;
use state::{Outcome, State};
use tokio::sync::{oneshot, watch};

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

/// Tells a writer what became of its batch.
type Ack = oneshot::Sender<Result<()>>;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Watermark {
    state: Mutex<State<Ack, Error>>,
    progress: watch::Sender<Progress>,
}

impl Watermark {
    /// A watermark at `cut`, all of it durable and indexed. Visibility waits for durability if `durable_first`.
    pub(crate) fn new(cut: Cut, durable_first: bool, tail_rows: u32) -> Self {
        let progress = Progress { visible: cut.at, durable: cut.at, durable_seq: cut.seq, failed: None };
        let state = State::new(cut, durable_first, u64::from(tail_rows));
        Self { state: Mutex::new(state), progress: watch::Sender::new(progress) }
    }

    /// [`Watermark::new`] for a table without a log: [`Watermark::flushed`] says what is durable.
    pub(crate) fn without_log(cut: Cut, tail_rows: u32) -> Self {
        let mark = Self::new(cut, false, tail_rows);
        let state = State::new(cut, false, u64::from(tail_rows)).without_log();
        Self { state: Mutex::new(state), ..mark }
    }

    /// Where a snapshot taken now cuts.
    pub(crate) fn cut(&self) -> Cut {
        self.state.lock().cut()
    }

    /// Takes a batch in. Called inside the publication section, in publication order.
    pub(crate) fn push(&self, cut: Cut) {
        let due = {
            let mut state = self.state.lock();
            let due = state.push(cut);
            self.tell(&state);
            due
        };
        answer(due, None);
    }

    /// Waits until a batch that was pushed is visible. Asked for once, by its writer.
    ///
    /// # Errors
    /// The log's error if that fails first; `Closed` if the shard is gone: the outcome is unknown.
    pub(crate) async fn visible(&self, at: PubNo) -> Result<()> {
        let told = {
            let mut state = self.state.lock();
            if at <= state.cut().at {
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
            let before = (state.cut().at, state.durable());
            let due = change(&mut state);
            if (state.cut().at, state.durable()) != before {
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
        let progress = Progress { visible: state.cut().at, durable, durable_seq, failed: state.failed().cloned() };
        self.progress.send_replace(progress);
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

    fn watermark(durable_first: bool, tail: u32) -> Watermark {
        Watermark::new(Cut::default(), durable_first, tail)
    }

    #[test]
    fn a_batch_is_visible_once_durable_and_in_order() {
        let mark = watermark(true, 100);
        mark.push(cut(1, 10));
        mark.push(cut(2, 20));
        assert_eq!(mark.cut().at, PubNo(0));
        mark.set_durable(PubNo(1));
        assert_eq!((mark.cut().at, mark.cut().rows), (PubNo(1), RowId(10)));
        assert!(told(&mark, 1).expect("told").is_ok());
        assert!(told(&mark, 2).is_none(), "not yet");
    }

    #[test]
    fn the_tail_never_outgrows_its_bound() {
        let mark = watermark(true, 15);
        for (at, rows) in [(1, 10), (2, 20), (3, 30)] {
            mark.push(cut(at, rows));
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
        mark.push(cut(1, 5));
        mark.push(Cut { at: PubNo(2), rows: RowId(5), seq: Seq(6), live: 4 });
        assert_eq!((mark.cut().at, mark.cut().live), (PubNo(2), 4));
    }

    #[test]
    fn buffered_batches_are_visible_before_they_are_durable() {
        let mark = watermark(false, 100);
        mark.push(cut(1, 10));
        assert!(told(&mark, 1).expect("told").is_ok());
        assert_eq!(mark.state.lock().durable(), (PubNo(0), Seq(0)));
        mark.set_durable(PubNo(1));
        assert_eq!(mark.state.lock().durable(), (PubNo(1), Seq(10)));
    }

    #[tokio::test]
    async fn without_a_log_a_flush_makes_durable_and_wakes_who_waits() {
        let mark = Watermark::without_log(Cut::default(), 100);
        mark.push(cut(1, 10));
        assert_eq!(mark.cut().at, PubNo(1));
        let mut waiting = Box::pin(mark.wait(|p| p.durable_seq >= Seq(10)));
        assert!(futures::poll!(&mut waiting).is_pending());
        mark.flushed(PubNo(1), Seq(10));
        assert!(waiting.await.is_ok());
    }

    #[tokio::test]
    async fn a_failed_log_answers_everybody_and_moves_nothing() {
        let mark = watermark(true, 100);
        mark.push(cut(1, 10));
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
