//! The watermark and the end marks under loom, which tries every interleaving and every value that the memory model lets a
//! load return.
//!
//! `RUSTFLAGS="--cfg vectide_loom" cargo test -p vectide --no-default-features --lib -- loom`
//!
//! The publication section is a modelled lock around what it does: store a row, set an end mark, push the batch. The
//! canaries leave one step out or do it too late, and expect to be caught.

use super::state::{Outcome, State};
use crate::ends::Ends;
use crate::ids::{PubNo, RowId, Seq};
use crate::search::snapshot::Cut;
use crate::sync::{AtomicU32, Mutex, Ordering};
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

/// Batches: batch `n` stores row `n` and ends row `n - 1`.
const BATCHES: u64 = 2;

/// Runs a model; preemptions are bounded unless the environment says otherwise.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(body);
}

struct Shard {
    /// The publication section: the next publication.
    section: Mutex<u64>,
    watermark: Mutex<State<(), ()>>,
    ends: Ends,
    /// The rows' bytes, which nothing but the watermark publishes.
    rows: [AtomicU32; BATCHES as usize + 1],
}

impl Shard {
    fn new(durable_first: bool) -> Arc<Self> {
        Self::with(State::new(Cut { rows: RowId(1), ..Cut::default() }, durable_first, 100))
    }

    fn with(watermark: State<(), ()>) -> Arc<Self> {
        let ends = Ends::default();
        for row in 0..=BATCHES {
            ends.slot_or_make(row as u32);
        }
        Arc::new(Self {
            section: Mutex::new(1),
            watermark: Mutex::new(watermark),
            ends,
            rows: std::array::from_fn(|_| AtomicU32::new(0)),
        })
    }

    /// What a writer does; with `is_late` the mark is set only after the batch was pushed.
    fn publish(&self, is_late: bool) -> PubNo {
        let mut next = self.section.lock();
        let n = *next;
        let mark = || assert!(self.ends.set(n as u32 - 1, PubNo(n)), "each row ends once");
        self.rows[n as usize].store(n as u32, Ordering::Relaxed);
        if !is_late {
            mark();
        }
        let cut = Cut { at: PubNo(n), rows: RowId(n + 1), seq: Seq(n), live: 1 };
        self.watermark.lock().push(cut, Duration::default);
        if is_late {
            mark();
        }
        *next += 1;
        PubNo(n)
    }

    /// What a reader must find at whatever cut it gets.
    fn read(&self) -> PubNo {
        let cut = self.watermark.lock().cut();
        for n in 1..=cut.at.0 {
            assert_eq!(self.rows[n as usize].load(Ordering::Relaxed), n as u32, "a visible row's bytes");
            assert!(!self.ends.is_live_at(n as u32 - 1, cut.at), "row {} was replaced by {n}", n - 1);
        }
        assert!(self.ends.is_live_at(cut.at.0 as u32, cut.at), "the newest row lives");
        cut.at
    }
}

#[test]
fn loom_a_reader_sees_every_row_and_end_mark_of_its_cut() {
    model(|| {
        let shard = Shard::new(false);
        let writers: Vec<_> = (0..BATCHES)
            .map(|_| {
                let shard = Arc::clone(&shard);
                thread::spawn(move || shard.publish(false))
            })
            .collect();
        let first = shard.read();
        assert!(shard.read() >= first, "the cut only moves forward");
        for writer in writers {
            writer.join().expect("no panic");
        }
        assert_eq!(shard.read(), PubNo(BATCHES));
    });
}

#[test]
fn loom_nothing_is_visible_before_the_log_has_it_and_everything_is_after() {
    model(|| {
        let shard = Shard::new(true);
        let durable = Arc::new(AtomicU32::new(0));
        let writer = {
            let (shard, durable) = (Arc::clone(&shard), Arc::clone(&durable));
            thread::spawn(move || {
                // The log may be faster than the push that follows the enqueue.
                let log = {
                    let shard = Arc::clone(&shard);
                    thread::spawn(move || {
                        durable.store(1, Ordering::Relaxed);
                        let _ = shard.watermark.lock().set_durable(PubNo(1));
                    })
                };
                shard.publish(false);
                log.join().expect("no panic");
            })
        };
        if shard.read() == PubNo(1) {
            assert_eq!(durable.load(Ordering::Relaxed), 1, "seen before it was durable");
        }
        writer.join().expect("no panic");
        assert_eq!(shard.read(), PubNo(1));
    });
}

/// The log stalls: nobody is acknowledged, and everybody's rows are seen whole all the same.
#[test]
fn loom_in_an_unordered_table_a_stalled_log_hides_nothing_and_acknowledges_nothing() {
    model(|| {
        let state = State::new(Cut { rows: RowId(1), ..Cut::default() }, true, 100).unordered();
        let shard = Shard::with(state);
        let writers: Vec<_> = (0..BATCHES)
            .map(|_| {
                let shard = Arc::clone(&shard);
                thread::spawn(move || {
                    let at = shard.publish(false);
                    assert!(shard.read() >= at, "a batch is seen when it is linked");
                    assert_eq!(shard.watermark.lock().listen(at, ()), Outcome::Pending);
                })
            })
            .collect();
        shard.read();
        for writer in writers {
            writer.join().expect("no panic");
        }
        assert_eq!(shard.read(), PubNo(BATCHES));
        assert_eq!(shard.watermark.lock().set_durable(PubNo(BATCHES)).len() as u64, BATCHES, "all told at last");
    });
}

/// A writer asks for its batch behind the section, when the log may have said already that it is durable.
#[test]
fn loom_a_writer_that_asks_late_is_answered_once() {
    model(|| {
        let shard = Shard::new(true);
        let log = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || shard.watermark.lock().set_durable(PubNo(1)).len())
        };
        let at = shard.publish(false);
        let outcome = shard.watermark.lock().listen(at, ());
        let told = log.join().expect("no panic");
        let expected = match outcome {
            Outcome::Pending => 1,
            _ => 0,
        };
        assert_eq!((outcome == Outcome::Failed, told), (false, expected), "told as often as asked");
        assert_eq!(shard.read(), at);
    });
}

#[test]
#[should_panic(expected = "was replaced by")]
fn loom_canary_a_mark_that_is_set_after_the_push_is_noticed() {
    model(|| {
        let shard = Shard::new(false);
        let writer = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || shard.publish(true))
        };
        shard.read();
        writer.join().expect("no panic");
    });
}

#[test]
#[should_panic(expected = "a visible row's bytes")]
fn loom_canary_a_cut_that_passes_no_lock_is_noticed() {
    model(|| {
        let shard = Shard::new(false);
        let shortcut = Arc::new(AtomicU32::new(0));
        let writer = {
            let (shard, shortcut) = (Arc::clone(&shard), Arc::clone(&shortcut));
            thread::spawn(move || {
                let at = shard.publish(false);
                shortcut.store(at.0 as u32, Ordering::Relaxed);
            })
        };
        let at = shortcut.load(Ordering::Relaxed);
        if at > 0 {
            assert_eq!(shard.rows[at as usize].load(Ordering::Relaxed), at, "a visible row's bytes");
        }
        writer.join().expect("no panic");
    });
}
