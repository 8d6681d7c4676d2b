//! A shard in its writer's hands: the active memtable, the sealed ones, the segments, the log, and what moves rows on.
//!
//! `open` builds it, `writer` publishes through it, `maintain` flushes it, `Table` reads it. Invariant: the view's last
//! source is the active memtable; sources before it are older, their rows dense and ascending.

use super::budget::{Budget, Holder};
use super::indexer::{Indexed, Indexer};
use super::section::Section;
use super::watermark::Watermark;
use crate::base::node_cache::NodeCache;
use crate::base::{Base, BaseGround};
use crate::clock::Clock;
use crate::ends::Ends;
use crate::error::{Error, Result};
use crate::ids::{Epoch, LogPosition, PubNo, RowId, Seq};
use crate::manifest::{EpochEnd, SegmentMeta, ShardManifest, Versioned};
use crate::memtable::Memtable;
use crate::merge::pace::Stop;
use crate::merge::worker::Worker;
use crate::options::{Durability, Options};
use crate::rows::RowSource;
use crate::schema::TableSchema;
use crate::search::snapshot::{Pinned, Source, Tier, View};
use crate::stats::{DrainStats, FlushStats, Health, HealthStatus, MergeStats, RecoveryStats};
use crate::store::Store;
use crate::store::paths::ShardPaths;
use crate::wal::Log;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Sealed memtables that wait for their flush before the active one is let grow beyond its limits.
const MAX_SEALED: usize = 4;
/// Rows that an index worker takes at a time: few, so that the watermark follows closely.
const INDEX_STEP_ROWS: u32 = 32;

/// A memtable that takes no more rows and waits to be flushed, with everything its flush commits.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) source: Arc<Source>,
    /// Marks that its batches set on older row files.
    pub(crate) marks: Vec<(RowId, PubNo)>,
    /// Its first seq and publication.
    pub(crate) first: (Seq, PubNo),
    /// The first seq, publication and row behind it.
    pub(crate) end: (Seq, PubNo, RowId),
    /// Where the log goes on behind it, if it was sealed during replay.
    pub(crate) replayed_to: Option<LogPosition>,
    /// The segment that an earlier attempt built and whose commit has an unknown outcome.
    pub(crate) built: Mutex<Option<SegmentMeta>>,
}

/// A memtable in memory, active or sealed.
#[derive(Clone, Debug)]
pub(crate) struct InMemory {
    pub(crate) first_row: RowId,
    pub(crate) memtable: Arc<Memtable>,
}

/// How far flushing has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlushProgress {
    /// Everything below this seq is in segments.
    pub(crate) flushed_seq: Seq,
    /// Attempts that failed.
    pub(crate) failures: u64,
    /// The last failure.
    pub(crate) error: Option<Error>,
}

/// What the shard stands on.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) name: String,
    pub(crate) schema: TableSchema,
    pub(crate) log_schema: Arc<crate::wal::frame::LogSchema>,
    pub(crate) options: Arc<Options>,
    pub(crate) paths: ShardPaths,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) indexer: Arc<Indexer>,
    pub(crate) node_cache: Arc<NodeCache>,
    pub(crate) merger: Arc<Worker>,
    /// Never read: keeps the directory locked for as long as anything of the shard runs.
    pub(crate) _lock: Option<Arc<dyn crate::store::LockGuard>>,
}

/// The background tasks that can be in trouble.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Flush = 0,
    Merge = 1,
}

/// What merging did, and since when there is something to merge.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeFigures {
    pub(crate) stats: MergeStats,
    pub(crate) waiting_since: Option<Duration>,
}

impl Ground {
    /// What a base of this table stands on.
    pub(crate) fn base_ground(&self) -> BaseGround {
        BaseGround {
            store: Arc::clone(&self.store),
            paths: self.paths.clone(),
            schema: self.schema.clone(),
            cache: Arc::clone(&self.node_cache),
        }
    }
}

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) batches: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) stalled_nanos: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        // ORDERING: Relaxed: counts for people, publishing nothing.
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) ground: Ground,
    pub(crate) epoch: Epoch,
    pub(crate) manifest: Versioned<ShardManifest>,
    /// Ends of earlier writers' logs, as of opening.
    pub(crate) closed_epochs: OnceLock<Vec<EpochEnd>>,
    pub(crate) section: Mutex<Section>,
    view: RwLock<Arc<View>>,
    in_memory: RwLock<Vec<InMemory>>,
    pub(crate) sealed: Mutex<VecDeque<Arc<Sealed>>>,
    /// Shared with the log, which tells it how far things are durable without keeping the shard alive.
    pub(crate) watermark: Arc<Watermark>,
    pub(crate) log: OnceLock<Arc<dyn Log>>,
    pub(crate) next_segment: AtomicU64,
    pub(crate) flush_wake: Arc<Notify>,
    pub(crate) flush_progress: watch::Sender<FlushProgress>,
    pub(crate) flush_stats: Mutex<FlushStats>,
    pub(crate) merge_wake: Arc<Notify>,
    pub(crate) merge_stats: Mutex<MergeFigures>,
    /// Ends a step that is under way.
    pub(crate) merge_stop: Arc<Stop>,
    /// Readers of whole files under way: nothing is collected meanwhile.
    pub(crate) verifying: AtomicU64,
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) counters: Counters,
    pub(crate) searches: Arc<crate::search::Counters>,
    pub(crate) recovery: Mutex<RecoveryStats>,
    pub(crate) drain: Mutex<DrainStats>,
    /// The runtime that the shard was opened on: whose timers a blocking writer borrows.
    pub(crate) runtime: tokio::runtime::Handle,
    /// What is failing and being retried, and since when, by task.
    troubles: Mutex<[Option<(String, Duration)>; 2]>,
}

impl Shard {
    /// A shard over the manifest's segments with an empty active memtable and no log yet.
    pub(crate) fn new(
        ground: Ground,
        manifest: Versioned<ShardManifest>,
        now: &ShardManifest,
        mut sources: Vec<Arc<Source>>,
        base: Option<Arc<Base>>,
    ) -> Result<Self> {
        let publication = PubNo(now.next_publication.0 - 1);
        let live = sources.iter().map(|s| s.ends.count_live(0..s.rows().rows(), PubNo(u64::MAX))).sum();
        let cut =
            crate::search::snapshot::Cut { at: publication, rows: now.next_row, seq: Seq(now.replay_seq.0 - 1), live };
        // Without vectors there is no graph to wait for.
        let tail_rows = if ground.schema.vectors().is_empty() { u32::MAX } else { ground.options.tail_rows };
        let watermark = Watermark::new(cut, ground.options.durability, ground.options.visibility, tail_rows);
        let ends = Arc::new(Ends::default());
        let active = Arc::new(Memtable::new(ground.schema.clone(), Arc::clone(&ends), now.next_row)?);
        let source = Source::new(now.next_row, Arc::clone(&ends), Tier::Memtable(Arc::clone(&active)));
        sources.push(Arc::clone(&source));
        let in_memory = vec![InMemory { first_row: now.next_row, memtable: Arc::clone(&active) }];
        let section = Section {
            active,
            source,
            marks: Vec::new(),
            first: (now.replay_seq, now.next_publication),
            next_seq: now.replay_seq,
            next_publication: now.next_publication,
            next_row: now.next_row,
            live,
            born: None,
            replayed_to: None,
            closed: None,
        };
        let progress = FlushProgress { flushed_seq: now.replay_seq, ..FlushProgress::default() };
        Ok(Self {
            epoch: now.epoch,
            next_segment: AtomicU64::new(now.next_segment),
            ground,
            manifest,
            closed_epochs: OnceLock::new(),
            section: Mutex::new(section),
            view: RwLock::new(Arc::new(View::new(sources, base, PubNo(0)))),
            in_memory: RwLock::new(in_memory),
            sealed: Mutex::new(VecDeque::new()),
            watermark: Arc::new(watermark),
            log: OnceLock::new(),
            flush_wake: Arc::default(),
            flush_progress: watch::Sender::new(progress),
            flush_stats: Mutex::new(FlushStats::default()),
            merge_wake: Arc::default(),
            merge_stats: Mutex::default(),
            merge_stop: Arc::default(),
            verifying: AtomicU64::new(0),
            closing: watch::Sender::new(false),
            counters: Counters::default(),
            searches: Arc::default(),
            recovery: Mutex::new(RecoveryStats::default()),
            drain: Mutex::new(DrainStats::default()),
            runtime: tokio::runtime::Handle::current(),
            troubles: Mutex::default(),
        })
    }

    /// The current view.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// The view and cut of a read that begins now.
    pub(crate) fn pin(&self) -> Pinned {
        loop {
            // The cut first: the view then holds every row below it.
            let cut = self.watermark.cut();
            let view = self.view();
            // A view leaves rows out that were dead at its horizon. Whoever took his cut before that, and then slept until
            // the view was there, looks again.
            if view.horizon <= cut.at {
                return Pinned { view, cut };
            }
        }
    }

    /// Puts another base, or another version of it, before reads that begin from now on.
    pub(crate) fn set_base(&self, base: Option<Arc<Base>>) {
        let mut view = self.view.write();
        *view = Arc::new(View::new(view.sources.clone(), base, view.horizon));
    }

    /// Puts other sources in the places of some, none of whose rows live at or after `horizon`.
    pub(crate) fn replace_sources(
        &self,
        horizon: PubNo,
        replace: impl Fn(&Arc<Source>) -> Option<Option<Arc<Source>>>,
    ) {
        let mut view = self.view.write();
        let replaced = |source: &Arc<Source>| replace(source).unwrap_or_else(|| Some(Arc::clone(source)));
        let sources = view.sources.iter().filter_map(replaced).collect();
        *view = Arc::new(View::new(sources, view.base().cloned(), view.horizon.max(horizon)));
    }

    /// The memtables in memory, oldest first.
    pub(crate) fn in_memory(&self) -> Vec<InMemory> {
        self.in_memory.read().clone()
    }

    /// Whether batches are logged. Without a log, rows are durable once they are flushed.
    pub(crate) fn has_log(&self) -> bool {
        self.ground.options.durability != Durability::None
    }

    /// The log; `Closed` before it was started.
    pub(crate) fn log(&self) -> Result<&Arc<dyn Log>> {
        self.log.get().ok_or_else(|| Error::closed("the table is not open for writing"))
    }

    /// Freezes the active memtable, if it holds anything, and puts an empty one in its place. Called with the section.
    pub(crate) fn seal(&self, section: &mut Section) -> Result<()> {
        if section.is_empty() {
            return Ok(());
        }
        let first_row = section.next_row;
        let ends = Arc::new(Ends::default());
        let active = Arc::new(Memtable::new(self.ground.schema.clone(), Arc::clone(&ends), first_row)?);
        let source = Source::new(first_row, Arc::clone(&ends), Tier::Memtable(Arc::clone(&active)));
        section.active.seal();
        let sealed = Sealed {
            memtable: std::mem::replace(&mut section.active, Arc::clone(&active)),
            source: std::mem::replace(&mut section.source, Arc::clone(&source)),
            marks: std::mem::take(&mut section.marks),
            first: section.first,
            end: (section.next_seq, section.next_publication, section.next_row),
            replayed_to: section.replayed_to,
            built: Mutex::new(None),
        };
        section.first = (section.next_seq, section.next_publication);
        section.born = None;
        self.in_memory.write().push(InMemory { first_row, memtable: active });
        let mut view = self.view.write();
        let mut sources = view.sources.clone();
        sources.push(source);
        *view = Arc::new(View::new(sources, view.base().cloned(), view.horizon));
        drop(view);
        self.sealed.lock().push_back(Arc::new(sealed));
        self.flush_wake.notify_one();
        Ok(())
    }

    /// Whether a batch of `rows` and `bytes` belongs into a new memtable.
    pub(crate) fn is_full(&self, section: &Section, rows: u64, bytes: u64) -> bool {
        let options = &self.ground.options;
        let rows = u64::from(section.active.rows()) + rows;
        let is_over = || {
            rows > u64::from(options.memtable_rows)
                || section.active.memory().total() + marks_bytes(section.marks.len()) + bytes > options.memtable_bytes
                || (self.has_log()
                    && self.log.get().is_some_and(|log| log.stats().objects >= options.memtable_log_objects))
        };
        // While flushing lags, the active memtable grows on instead (the memory budget bounds it): a row of small
        // sealed memtables would be looked through by every write and search.
        let lags = || self.sealed.lock().len() >= MAX_SEALED && rows < u64::from(u32::MAX / 2);
        !section.is_empty() && is_over() && !lags()
    }

    /// Forgets a memtable whose rows now stand in a segment.
    pub(crate) fn forget(&self, memtable: &Arc<Memtable>) {
        self.in_memory.write().retain(|held| !Arc::ptr_eq(&held.memtable, memtable));
        self.ground.budget.freed();
    }

    /// Rows below this are in every graph.
    fn indexed(&self) -> RowId {
        let held = self.in_memory.read();
        let mut indexed = RowId(0);
        for InMemory { first_row, memtable, .. } in held.iter() {
            let (prefix, rows) = (memtable.indexed(), memtable.rows());
            indexed = first_row.plus(u64::from(prefix.min(rows)));
            if prefix < rows {
                break;
            }
        }
        indexed
    }

    /// Says that something fails, or with `None` that it works again.
    pub(crate) fn set_trouble(&self, task: Task, trouble: Option<String>) {
        let known = &mut self.troubles.lock()[task as usize];
        *known = match (known.take(), trouble) {
            (_, None) => None,
            // The first failure's time is what "since when" means.
            (Some((_, since)), Some(reason)) => Some((reason, since)),
            (None, Some(reason)) => Some((reason, self.ground.clock.now())),
        };
    }

    /// Whether everything works.
    pub(crate) fn health(&self) -> Health {
        if let Some(error) = self.watermark.failed() {
            let reason = format!("the writer has stopped and must be opened anew: {error}");
            return Health { status: HealthStatus::Failed, reason: Some(reason), for_ms: None };
        }
        match self.troubles.lock().iter().flatten().next() {
            None => Health::default(),
            Some((reason, since)) => {
                let for_ms = self.ground.clock.now().saturating_sub(*since).as_millis();
                Health {
                    status: HealthStatus::Degraded,
                    reason: Some(reason.clone()),
                    for_ms: u64::try_from(for_ms).ok(),
                }
            }
        }
    }
}

/// Heap bytes of that many marks.
pub(crate) const fn marks_bytes(marks: usize) -> u64 {
    (marks * size_of::<(RowId, PubNo)>()) as u64
}

impl Holder for Shard {
    fn memory_bytes(&self) -> u64 {
        self.in_memory.read().iter().map(|held| held.memtable.memory().total()).sum()
    }

    fn active_bytes(&self) -> u64 {
        self.in_memory.read().last().map_or(0, |held| held.memtable.memory().total())
    }

    fn seal(&self) {
        let mut section = self.section.lock();
        if let Err(error) = Self::seal(self, &mut section) {
            tracing::error!(table = %self.ground.name, ?error, "cannot start a new memtable");
        }
    }
}

impl Indexed for Shard {
    fn index_step(&self) -> bool {
        for held in self.in_memory() {
            if held.memtable.index_some(INDEX_STEP_ROWS) > 0 {
                self.watermark.set_indexed(self.indexed());
                return true;
            }
        }
        false
    }
}
