//! Store calls go through late, twice, not at all, or with the wrong answer, as a seed or a test says.
//!
//! Tests of the manifest, the object log and the engine put it around any [`Store`]. Invariant: it never makes a store
//! break its promises other than by what a real one does: it delays, it fails before or after the effect, its effect comes
//! after the failure was reported, its listing is stale; what it answers as done is done.

use super::fault_fs::Phase;
use super::rng::SplitMix;
use super::{LocalDir, ObjectMeta, ObjectWriter, PutOutcome, Store, StoreStats, Written};
use crate::error::{Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Every operation that has points: `<op>.before` and `<op>.after`.
pub const STORE_OPS: [&str; 8] = [
    "store.put",
    "store.put_if_absent",
    "store.get",
    "store.list",
    "store.delete",
    "store.create",
    "store.finish",
    "store.map",
];

/// Puts that a stale listing may lack.
const RECENT: usize = 4;

/// How a [`FaultStore`] misbehaves on its own. The default is not at all. Shares are per mille of calls.
#[derive(Clone, Debug, Default)]
pub struct FaultOptions {
    /// Decides everything below.
    pub seed: u64,
    /// Each call waits from zero to this before its effect, and again after it: concurrent calls change places.
    pub max_delay_us: u64,
    /// Fails with `Unavailable`, without effect.
    pub error_before: u32,
    /// Fails with `Unavailable` although its effect took place.
    pub error_after: u32,
    /// A put fails with `Unavailable` at once, and its effect takes place up to ten times `max_delay_us` later.
    pub late: u32,
    /// A listing lacks some of the objects that were put last.
    pub stale_list: u32,
}

/// A named place in a call.
#[derive(Clone, Copy, Debug)]
pub struct StorePoint<'a> {
    /// One of [`STORE_OPS`].
    pub op: &'static str,
    /// Before or after its effect.
    pub phase: Phase,
    /// The object or prefix.
    pub path: &'a str,
}

impl fmt::Display for StorePoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.op, self.phase.as_str())
    }
}

/// Called at every point. An error becomes the call's answer, see [`super::fault_fs::FsHook`].
pub type StoreHook = Arc<dyn Fn(&StorePoint<'_>) -> Result<()> + Send + Sync>;

/// A store that fails as told. Clones share their faults.
#[derive(Clone)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    options: FaultOptions,
    state: Arc<Mutex<State>>,
    stalled: watch::Sender<Option<Phase>>,
}

struct State {
    rng: SplitMix,
    hook: Option<StoreHook>,
    failing: Vec<Failing>,
    slow: Vec<(&'static str, String, Duration)>,
    calls: BTreeMap<&'static str, u64>,
    /// Objects put lately, the last one last: a stale listing may lack them.
    recent: Vec<String>,
    late: JoinSet<()>,
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            rng: SplitMix::new(seed),
            hook: None,
            failing: Vec::new(),
            slow: Vec::new(),
            calls: BTreeMap::new(),
            recent: Vec::new(),
            late: JoinSet::new(),
        }
    }
}

struct Failing {
    op: &'static str,
    path: String,
    phase: Phase,
    times: u64,
}

/// What the seed has decided for one call.
struct Fate {
    delay_before: Duration,
    delay_after: Duration,
    error: Option<Phase>,
    late: Option<Duration>,
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultStore({:?}, {:?})", self.inner, self.options)
    }
}

impl FaultStore {
    /// Faults around `inner`. Needs a Tokio runtime with its timer enabled if there are delays.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, options: FaultOptions) -> Self {
        let state = State::new(options.seed);
        Self { inner, options, state: Arc::new(Mutex::new(state)), stalled: watch::Sender::new(None) }
    }

    /// The same, for callers that take a [`Store`].
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    /// Has `hook` called at every point from now on.
    pub fn set_hook(&self, hook: StoreHook) {
        self.state.lock().hook = Some(hook);
    }

    /// Makes the next `times` calls of `op` (one of [`STORE_OPS`]) on a path that contains `path` fail with `Unavailable`,
    /// before or after their effect.
    pub fn fail_next(&self, op: &'static str, path: &str, phase: Phase, times: u64) {
        self.state.lock().failing.push(Failing { op, path: path.to_owned(), phase, times });
    }

    /// Makes the next call of `op` on a path that contains `path` wait for so long before its effect.
    pub fn delay_next(&self, op: &'static str, path: &str, delay: Duration) {
        self.state.lock().slow.push((op, path.to_owned(), delay));
    }

    /// From now on calls hang before or after their effect, until [`FaultStore::release`].
    pub fn stall(&self, phase: Phase) {
        self.stalled.send_replace(Some(phase));
    }

    /// Lets the hanging calls go on.
    pub fn release(&self) {
        self.stalled.send_replace(None);
    }

    /// Calls of an operation so far.
    #[must_use]
    pub fn calls(&self, op: &str) -> u64 {
        self.state.lock().calls.get(op).copied().unwrap_or(0)
    }

    /// Waits until every late put has taken effect.
    pub async fn settle(&self) {
        loop {
            let mut late = std::mem::take(&mut self.state.lock().late);
            if late.is_empty() {
                return;
            }
            while late.join_next().await.is_some() {}
        }
    }

    fn fate(&self, op: &'static str, path: &str) -> Fate {
        let mut state = self.state.lock();
        *state.calls.entry(op).or_default() += 1;
        let options = &self.options;
        let rng = &mut state.rng;
        let mut delay = |n: u64| Duration::from_micros(rng.below(n.saturating_mul(options.max_delay_us) + 1));
        let (mut delay_before, delay_after, later) = (delay(1), delay(1), delay(10));
        let is_put = op == "store.put" || op == "store.put_if_absent";
        let late = (rng.hits(options.late) && is_put).then_some(later);
        let (before, after) = (rng.hits(options.error_before), rng.hits(options.error_after));
        let mut error = if before { Some(Phase::Before) } else { after.then_some(Phase::After) };
        let chosen = state.failing.iter_mut().find(|f| f.times > 0 && f.op == op && path.contains(&f.path));
        if let Some(failing) = chosen {
            failing.times -= 1;
            error = Some(failing.phase);
        }
        if let Some(at) = state.slow.iter().position(|(slow, name, _)| *slow == op && path.contains(name.as_str())) {
            delay_before += state.slow.remove(at).2;
        }
        Fate { delay_before, delay_after, error, late }
    }

    async fn around<T>(&self, op: &'static str, path: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let fate = self.fate(op, path);
        self.reach(op, path, Phase::Before, &fate).await?;
        let done = call.await?;
        self.reach(op, path, Phase::After, &fate).await?;
        Ok(done)
    }

    /// Passes one point of a call: its delay, a stall, the hook, its error.
    async fn reach(&self, op: &'static str, path: &str, phase: Phase, fate: &Fate) -> Result<()> {
        let delay = if phase == Phase::Before { fate.delay_before } else { fate.delay_after };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut stalled = self.stalled.subscribe();
        let _ = stalled.wait_for(|at| *at != Some(phase)).await;
        let hook = self.state.lock().hook.clone();
        let point = StorePoint { op, phase, path };
        if let Some(hook) = hook {
            hook(&point)?;
        }
        if fate.error == Some(phase) {
            return Err(Error::unavailable(format!("{path}: an injected fault at {point}")));
        }
        Ok(())
    }

    /// A put, whose effect may come after its failure.
    async fn put_sometime<T: Send + 'static>(
        &self,
        op: &'static str,
        path: &str,
        put: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let fate = self.fate(op, path);
        if let Some(later) = fate.late {
            let mut stalled = self.stalled.subscribe();
            self.state.lock().late.spawn(async move {
                tokio::time::sleep(later).await;
                let _ = stalled.wait_for(|at| *at != Some(Phase::Before)).await;
                let _ = put.await;
            });
            return Err(Error::unavailable(format!("{path}: an injected fault, the effect of {op} comes later")));
        }
        self.reach(op, path, Phase::Before, &fate).await?;
        let done = put.await?;
        self.remember(path);
        self.reach(op, path, Phase::After, &fate).await?;
        Ok(done)
    }

    fn remember(&self, path: &str) {
        let mut state = self.state.lock();
        state.recent.push(path.to_owned());
        if state.recent.len() > RECENT {
            state.recent.remove(0);
        }
    }

    /// What a stale listing does not show.
    fn hidden(&self) -> BTreeSet<String> {
        let mut state = self.state.lock();
        let rng = &mut state.rng;
        if !rng.hits(self.options.stale_list) {
            return BTreeSet::new();
        }
        let n = 1 + rng.below(RECENT as u64) as usize;
        state.recent.iter().rev().take(n).cloned().collect()
    }
}

#[async_trait]
impl Store for FaultStore {
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let (inner, name) = (self.inner.clone(), path.to_owned());
        self.put_sometime("store.put", path, async move { inner.put(&name, bytes).await }).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let (inner, name) = (self.inner.clone(), path.to_owned());
        self.put_sometime("store.put_if_absent", path, async move { inner.put_if_absent(&name, bytes).await }).await
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.around("store.get", path, self.inner.get(path)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let mut listed = self.around("store.list", prefix, self.inner.list(prefix)).await?;
        let hidden = self.hidden();
        listed.retain(|meta| !hidden.contains(&meta.path));
        Ok(listed)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.around("store.delete", path, self.inner.delete(path)).await
    }

    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>> {
        let inner = self.around("store.create", path, self.inner.create(path)).await?;
        Ok(Box::new(FaultWriter { inner, store: self.clone(), path: path.to_owned() }))
    }

    async fn map(&self, path: &str, len: u64) -> Result<Bytes> {
        self.around("store.map", path, self.inner.map(path, len)).await
    }

    fn local(&self) -> Option<LocalDir> {
        self.inner.local()
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}

struct FaultWriter {
    inner: Box<dyn ObjectWriter>,
    store: FaultStore,
    path: String,
}

#[async_trait]
impl ObjectWriter for FaultWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(bytes).await
    }

    async fn finish(self: Box<Self>) -> Result<Written> {
        let Self { inner, store, path } = *self;
        store.around("store.finish", &path, inner.finish()).await
    }
}

#[cfg(test)]
mod tests;
