//! What one access key's requests meet: their faults, their stalls, and how many of each there were.
//!
//! A test gives each client a key of its own and so can hold up one writer and not its rival. `serve` asks for a fate per
//! request. Invariant: a stalled request neither takes effect (before) nor is answered (after) until it is released.

use crate::faults::{Fate, Fault, Faults, Rng};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before its effect.
    Before,
    /// After its effect, before its answer.
    After,
}

/// A handle on the requests of one access key. Clones are the same line.
#[derive(Clone, Debug)]
pub struct Line {
    state: Arc<Mutex<State>>,
    stalled: watch::Sender<Option<Phase>>,
    /// Requests that have arrived and whose effect is still to come.
    under_way: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    rng: Rng,
    counts: BTreeMap<&'static str, u64>,
    /// What the next request of an operation meets instead.
    next: Option<(&'static str, Faults)>,
    /// The operation at whose next request the line stalls.
    stall_at: Option<&'static str>,
}

impl Default for Line {
    fn default() -> Self {
        Self { state: Arc::default(), stalled: watch::Sender::new(None), under_way: watch::Sender::new(0) }
    }
}

impl Line {
    /// From now on requests meet these.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state.lock();
        state.rng = Rng(faults.seed);
        state.faults = faults;
    }

    /// The next request of `operation` (as in [`Line::count`]) meets these instead; once.
    pub fn fail_next(&self, operation: &'static str, faults: Faults) {
        self.state.lock().next = Some((operation, faults));
    }

    /// [`Line::stall`]s before the effect of the next request of `operation`.
    pub fn stall_next(&self, operation: &'static str) {
        self.state.lock().stall_at = Some(operation);
    }

    /// From now on requests hang before or after their effect, until [`Line::release`].
    pub fn stall(&self, phase: Phase) {
        self.stalled.send_replace(Some(phase));
    }

    /// Lets the hanging requests go on.
    pub fn release(&self) {
        self.stalled.send_replace(None);
    }

    /// Waits until every request that has arrived has taken effect or never will. Does not return while stalled before.
    pub async fn settle(&self) {
        let mut under_way = self.under_way.subscribe();
        let _ = under_way.wait_for(|count| *count == 0).await;
    }

    /// How often an operation (`put_object`, `get_object`, `head_object`, `delete_object`, `delete_objects`,
    /// `list_objects`, `create_upload`, `upload_part`, `complete_upload`, `abort_upload`) was asked for, or a fault (named
    /// as its field in [`Faults`]) was met.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.state.lock().counts.get(what).copied().unwrap_or(0)
    }

    /// All counts.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().counts.clone()
    }

    pub(crate) fn draw(&self, operation: &'static str, writes: bool) -> Fate {
        let mut state = self.state.lock();
        let state = &mut *state;
        let faults = state.next.take_if(|(next, _)| *next == operation).map_or(state.faults, |(_, faults)| faults);
        let fate = faults.draw(&mut state.rng, writes);
        if state.stall_at.take_if(|at| *at == operation).is_some() {
            self.stall(Phase::Before);
        }
        for name in [Some(operation), fate.fault.map(Fault::name)].into_iter().flatten() {
            *state.counts.entry(name).or_default() += 1;
        }
        fate
    }

    /// Passes a point at which requests may be held up.
    pub(crate) async fn pass(&self, phase: Phase) {
        let _ = self.stalled.subscribe().wait_for(|at| *at != Some(phase)).await;
    }

    /// Counts a request as under way until the guard drops.
    pub(crate) fn begin(&self) -> UnderWay {
        self.under_way.send_modify(|count| *count += 1);
        UnderWay(self.clone())
    }
}

/// A request whose effect is to come.
#[derive(Debug)]
pub(crate) struct UnderWay(Line);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}
