//! The background task that merges a table's segments into its base.
//!
//! One per open table, started by `open`. In: the manifest and the view. Out: one manifest version per job, and a new view.
//! `merge::policy` says what is next, the merge thread inserts the rows of a step, this task writes, commits and publishes.
//! Every job is safe to be killed in at any point: before its commit it leaves an object that nothing names, after it the
//! next open goes on behind it. After a failure everything is taken from the manifest again. Invariant: the view's base is
//! one that the manifest has named, and its rows were in the cache before it was in the view.

use super::open::{find_segment, open_base};
use super::shard::{Shard, Task};
use crate::base::{self, Base, NewLinks};
use crate::ends::Ends;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;
use crate::ids::{Epoch, PubNo};
use crate::manifest::{AdoptedMeta, BaseMeta, SegmentMeta, ShardManifest};
use crate::merge::gc::Garbage;
use crate::merge::pace::Pace;
use crate::merge::policy::{self, Job, Known, Target};
use crate::options::Invalidation;
use crate::search::snapshot::{Source, Tier};
use crate::segment::Segment;
use crate::stats::MergeStats;
use crate::store::paths::{ShardPaths, segment_id};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use vectide_graph::BaseChanges;

/// First and longest pause between attempts of a job that fails.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How often it is looked whether dead rows have become reason enough for a job.
const TICK: Duration = Duration::from_millis(500);

/// What the task keeps from job to job. All of it can be had again from the manifest.
#[derive(Default)]
struct Progress {
    /// The next base, as of its newest version.
    next: Option<Arc<Base>>,
    /// The order of the rows of the segment that is being merged.
    order: Option<Order>,
    /// Whether a job has failed since the manifest was read.
    is_unsure: bool,
    garbage: Garbage,
    /// Whether earlier writers' leavings were looked for.
    has_looked: bool,
    /// The version at which old manifests were last removed.
    trimmed_at: u64,
}

/// In which order the rows of a segment are merged into a base.
struct Order {
    base: String,
    segment: String,
    /// By vector column.
    rows: Arc<Vec<Vec<u32>>>,
}

/// Starts the task, if the table has vectors and merging is wanted.
pub(super) fn start(shard: &Arc<Shard>) {
    if !shard.ground.options.merge.enabled || shard.ground.schema.vectors().is_empty() {
        return;
    }
    let (wake, closing) = (Arc::clone(&shard.merge_wake), shard.closing.subscribe());
    let running = tokio::spawn(run(Arc::downgrade(shard), wake, closing));
    let shard = Arc::downgrade(shard);
    tokio::spawn(async move {
        let Err(panicked) = running.await else { return };
        if let Some(shard) = shard.upgrade().filter(|_| panicked.is_panic()) {
            let trouble = "merging has stopped: its task panicked; open the table anew".to_owned();
            tracing::error!(table = %shard.ground.name, ?panicked, "{trouble}");
            shard.set_trouble(Task::Merge, Some(trouble));
        }
    });
}

/// Runs until the shard closes or is dropped. Holds the shard only while it has work.
async fn run(shard: Weak<Shard>, wake: Arc<Notify>, mut closing: watch::Receiver<bool>) {
    let mut progress = Progress::default();
    let mut pause = RETRY_PAUSE.0;
    loop {
        let Some(held) = shard.upgrade() else { return };
        let done = tokio::select! {
            done = held.merge_once(&mut progress) => done,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        let wait = match done {
            Ok(true) => {
                pause = RETRY_PAUSE.0;
                held.set_trouble(Task::Merge, None);
                continue;
            }
            Ok(false) => TICK,
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Closed) => {
                if error.kind() == ErrorKind::Fenced {
                    held.watermark.fail(&error);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(table = %held.ground.name, ?error, ?pause, "a merge failed; it is tried again");
                held.merge_stats.lock().stats.failed += 1;
                held.set_trouble(Task::Merge, Some(format!("merging fails and is being retried: {error}")));
                // What was garbage stays garbage.
                (progress.next, progress.order, progress.is_unsure) = (None, None, true);
                pause = (pause * 2).min(RETRY_PAUSE.1);
                pause
            }
        };
        drop(held);
        tokio::select! {
            () = wake.notified() => {}
            () = tokio::time::sleep(wait) => {}
            _ = closing.wait_for(|closing| *closing) => return,
        }
    }
}

/// The segments of a view with their end marks, by name.
type Open = HashMap<String, (Arc<Segment>, Arc<Ends>)>;

impl Shard {
    /// What merging did, and what waits.
    pub(crate) fn merge_stats(&self) -> MergeStats {
        let mut figures = *self.merge_stats.lock();
        if let Some(manifest) = self.manifest.cached() {
            let open = self.open_segments();
            let (segments, rows) =
                policy::backlog(&manifest, &self.ground.options.merge, &|segment| self.known(&open, segment));
            (figures.stats.backlog_segments, figures.stats.backlog_rows) = (segments, rows);
        }
        if let Some(since) = figures.waiting_since {
            let waited = self.ground.clock.now().saturating_sub(since).as_millis();
            figures.stats.backlog_ms = u64::try_from(waited).unwrap_or(u64::MAX);
        }
        let stats = &mut figures.stats;
        let links: u64 = self.ground.schema.vectors().iter().map(|column| 8 * u64::from(column.m)).sum();
        if stats.rows > 0 && links > 0 {
            stats.bytes_written_per_byte = stats.bytes_written as f64 / (stats.rows * links) as f64;
        }
        figures.stats
    }

    fn open_segments(&self) -> Open {
        let view = self.view();
        let open = view.sources.iter().filter_map(|source| match source.tier() {
            Tier::Segment(segment) => Some((segment.id().to_owned(), (segment, Arc::clone(&source.ends)))),
            Tier::Memtable(_) => None,
        });
        open.collect()
    }

    fn known(&self, open: &Open, segment: &SegmentMeta) -> Known {
        // A segment that was committed and is not in the view yet is looked at when it is.
        let Some((opened, ends)) = open.get(&segment.id) else { return Known::default() };
        let horizon = self.manifest.cached().map_or(PubNo(0), |manifest| PubNo(manifest.next_publication.0 - 1));
        let is_dead = |offset| ends.ended_by(offset).is_some_and(|end| end <= horizon);
        let is_gone = ends.dead() >= segment.rows && (0..segment.rows).all(is_dead);
        Known { dead: ends.dead(), can_adopt: base::can_adopt(&self.ground.schema, opened), is_gone }
    }

    /// Does the next job; whether there was one.
    async fn merge_once(&self, progress: &mut Progress) -> Result<bool> {
        let manifest = match self.manifest.cached().filter(|_| !progress.is_unsure) {
            Some(manifest) => manifest,
            None => self.start_over(progress).await?,
        };
        let open = self.open_segments();
        let job = policy::next(&manifest, &self.ground.options.merge, &|segment| self.known(&open, segment));
        self.note_backlog(job.is_some());
        self.collect(progress, &manifest).await?;
        let Some(job) = job else { return Ok(false) };
        let started = self.ground.clock.now();
        match &job {
            Job::Begin { target, segment } => self.begin(progress, &open, *target, segment.as_deref()).await?,
            Job::Step { target, segment, rows } => {
                self.step(progress, &manifest, &open, *target, segment, *rows).await?;
            }
            Job::Switch => self.switch(progress).await?,
            Job::Fold => self.fold(progress).await?,
            Job::Retire(segments) => self.retire(progress, &manifest, &open, segments).await?,
        }
        let ms = self.ground.clock.now().saturating_sub(started).as_secs_f64() * 1e3;
        let stats = &mut self.merge_stats.lock().stats;
        stats.last_ms = ms;
        stats.max_ms = stats.max_ms.max(ms);
        Ok(true)
    }

    fn note_backlog(&self, is_waiting: bool) {
        let mut figures = self.merge_stats.lock();
        figures.waiting_since = match (is_waiting, figures.waiting_since) {
            (false, _) => None,
            (true, None) => Some(self.ground.clock.now()),
            (true, since) => since,
        };
    }

    /// Takes everything from the manifest: after a failure nobody knows what was committed.
    async fn start_over(&self, progress: &mut Progress) -> Result<Arc<ShardManifest>> {
        let manifest = self.manifest.load_latest().await?.ok_or_else(|| Error::corrupt("the table has no manifest"))?;
        if manifest.epoch > self.epoch {
            return Err(Error::fenced(format!("the writer of epoch {} took over", manifest.epoch)));
        }
        let view = self.view();
        let base = open_base(&self.ground, &manifest, &view.sources, view.base()).await?;
        self.set_base(base);
        (progress.next, progress.order, progress.is_unsure) = (None, None, false);
        Ok(manifest)
    }

    /// A name for a new file: used once, so that a failed attempt leaves garbage and never half a file under a good name.
    fn new_id(&self) -> String {
        segment_id(self.epoch, self.next_segment.fetch_add(1, Ordering::Relaxed))
    }

    /// Commits an edit of the manifest that names the files `ids` for the first time.
    async fn commit_merge(
        &self,
        id: &str,
        mut edit: impl FnMut(&mut ShardManifest) -> Result<()> + Send,
    ) -> Result<()> {
        failpoint::hit("merge.commit.before").map_err(|e| Error::io("merging", e))?;
        let number = crate::store::paths::parse_segment_id(id).map_or(0, |(_, n)| n);
        self.manifest
            .commit(self.epoch, |now| {
                let mut next = now.clone();
                next.next_segment = next.next_segment.max(number + 1);
                edit(&mut next)?;
                Ok(next)
            })
            .await?;
        failpoint::hit("merge.commit.after").map_err(|e| Error::io("merging", e))
    }

    /// Begins a base with a segment's graph as it is, or without rows.
    async fn begin(&self, progress: &mut Progress, open: &Open, target: Target, segment: Option<&str>) -> Result<()> {
        let ground = self.ground.base_ground();
        let id = self.new_id();
        let mut begun = Base::empty(&ground, id.clone())?;
        if let Some(name) = segment {
            let (segment, _) = open.get(name).ok_or_else(|| Error::internal(format!("segment {name} is not open")))?;
            let NewLinks { meta, file: _ } = base::write_seed(&ground, &id, Arc::clone(segment)).await?;
            self.merge_stats.lock().stats.bytes_written += meta.len;
            let adopted = AdoptedMeta {
                id: name.to_owned(),
                first_node: 0,
                horizon: PubNo(0),
                inserted: crate::rows::RowSource::rows(&**segment),
                is_complete: true,
            };
            let meta = BaseMeta { file: Some(meta), segments: vec![adopted], ..begun.meta };
            begun = Base::open(&ground, &meta, &|_| Some(Arc::clone(segment)), None).await?;
        }
        let meta = begun.meta.clone();
        self.commit_merge(&id, |manifest| {
            match target {
                Target::Current => manifest.base = Some(meta.clone()),
                Target::Next => manifest.next_base = Some(meta.clone()),
            }
            Ok(())
        })
        .await?;
        tracing::debug!(table = %self.ground.name, base = %id, ?target, ?segment, "a base was begun");
        let begun = Arc::new(begun);
        match target {
            Target::Current => self.set_base(Some(begun)),
            Target::Next => progress.next = Some(begun),
        }
        Ok(())
    }

    /// The newest version of the base that a step goes into.
    async fn target_base(&self, progress: &Progress, manifest: &ShardManifest, target: Target) -> Result<Arc<Base>> {
        let missing = || Error::internal("a step without a base");
        match target {
            Target::Current => self.view().base().cloned().ok_or_else(missing),
            Target::Next => match &progress.next {
                Some(next) => Ok(Arc::clone(next)),
                None => {
                    let meta = manifest.next_base.as_ref().ok_or_else(missing)?;
                    let view = self.view();
                    let find = |id: &str| find_segment(&view.sources, id);
                    Base::open(&self.ground.base_ground(), meta, &find, None).await.map(Arc::new)
                }
            },
        }
    }

    /// Inserts some rows of a segment and commits that.
    async fn step(
        &self,
        progress: &mut Progress,
        manifest: &ShardManifest,
        open: &Open,
        target: Target,
        name: &str,
        rows: usize,
    ) -> Result<()> {
        let (segment, ends) = open.get(name).ok_or_else(|| Error::internal(format!("segment {name} is not open")))?;
        let before = self.target_base(progress, manifest, target).await?;
        let mut base = Base::clone(&before);
        if before.meta.segment(name).is_none() {
            let horizon = PubNo(manifest.next_publication.0 - 1);
            let first_node = before.next_first();
            let adopted = AdoptedMeta { id: name.to_owned(), first_node, horizon, inserted: 0, is_complete: false };
            base = base.with_segment(&adopted, Arc::clone(segment))?;
        }
        let mut adopted = base.meta.segment(name).cloned().ok_or_else(|| Error::internal("a segment left its base"))?;
        let order = self.order(progress, &base, &adopted, segment, ends).await?;
        let all = order.iter().map(Vec::len).max().unwrap_or(0);
        let from = adopted.inserted as usize;
        let to = (from + rows).min(all);
        let changes = self.insert(&Arc::new(base.clone()), &order, from, to).await?;
        let changes = Arc::new(changes);
        let id = self.new_id();
        let NewLinks { meta, file } = base::write_delta(&self.ground.base_ground(), &id, Arc::clone(&changes)).await?;
        adopted.inserted = to as u32;
        adopted.is_complete = to == all;
        let mut after = base.after_step(meta, file, &changes);
        if let Some(last) = after.meta.segments.last_mut() {
            *last = adopted.clone();
        }
        let meta = after.meta.clone();
        self.commit_merge(&id, |manifest| {
            let place = match target {
                Target::Current => &mut manifest.base,
                Target::Next => &mut manifest.next_base,
            };
            let expected = place.as_ref().is_some_and(|now| now.id == meta.id && now.version <= meta.version);
            if !expected {
                return Err(Error::internal("the base was changed by somebody else"));
            }
            *place = Some(meta.clone());
            Ok(())
        })
        .await?;
        self.note_step(&after, &changes, to - from, adopted.is_complete);
        let after = Arc::new(after);
        match target {
            Target::Current => self.set_base(Some(after)),
            Target::Next => progress.next = Some(after),
        }
        Ok(())
    }

    /// The order in which the segment's rows are merged.
    async fn order(
        &self,
        progress: &mut Progress,
        base: &Base,
        adopted: &AdoptedMeta,
        segment: &Arc<Segment>,
        ends: &Arc<Ends>,
    ) -> Result<Arc<Vec<Vec<u32>>>> {
        let known = progress.order.as_ref();
        if let Some(known) = known.filter(|known| known.base == base.meta.id && known.segment == adopted.id) {
            return Ok(Arc::clone(&known.rows));
        }
        let (columns, horizon) = (self.ground.schema.vectors().len(), adopted.horizon);
        let (segment, ends) = (Arc::clone(segment), Arc::clone(ends));
        let find = move || {
            let is_dead = |offset| ends.ended_by(offset).is_some_and(|end| end <= horizon);
            Base::order(&segment, columns, &is_dead)
        };
        let rows = Arc::new(self.ground.merger.run(find).await?);
        let (base, segment) = (base.meta.id.clone(), adopted.id.clone());
        progress.order = Some(Order { base, segment, rows: Arc::clone(&rows) });
        Ok(rows)
    }

    /// Inserts the rows from the `from`th to the `to`th of the order, on the merge thread.
    async fn insert(
        &self,
        base: &Arc<Base>,
        order: &Arc<Vec<Vec<u32>>>,
        from: usize,
        to: usize,
    ) -> Result<Vec<BaseChanges>> {
        let (base, order) = (Arc::clone(base), Arc::clone(order));
        let clock = Arc::clone(&self.ground.clock);
        let (stop, core_pct) = (Arc::clone(&self.merge_stop), self.ground.options.merge.core_pct);
        let work = move || {
            let mut pace = Pace::new(clock, stop, core_pct);
            let rows: Vec<&[u32]> = order.iter().map(|rows| &rows[from.min(rows.len())..to.min(rows.len())]).collect();
            let changes = base.step(&rows, &mut || pace.rest());
            changes.map(|changes| (changes, pace.busy()))
        };
        let (changes, busy) = self.ground.merger.run(work).await??;
        self.merge_stats.lock().stats.busy_ms += busy.as_secs_f64() * 1e3;
        Ok(changes)
    }

    /// Brings the cache up to a committed step, and counts it.
    fn note_step(&self, after: &Base, changes: &[BaseChanges], rows: usize, is_complete: bool) {
        let options = &self.ground.options.merge;
        let sum = |each: fn(&BaseChanges) -> usize| changes.iter().map(each).sum::<usize>() as u64;
        let (touched, dirty) = (sum(|c| c.touched.len()), sum(|c| c.nodes.len()));
        let invalidated = match (options.invalidation, options.publish) {
            // Publishing replaces exactly the rows that changed: nothing has to leave.
            (Invalidation::Dirty, true) => 0,
            (Invalidation::Dirty, false) => after.forget(|column| Some(&changes[column].nodes)),
            (Invalidation::Touched, _) => after.forget(|column| Some(&changes[column].touched)),
            (Invalidation::All, _) => after.forget(|_| None),
        };
        if options.publish {
            after.publish(changes);
        }
        let stats = &mut self.merge_stats.lock().stats;
        stats.steps += 1;
        stats.rows += rows as u64;
        stats.segments += u64::from(is_complete);
        stats.nodes_touched += touched;
        stats.nodes_dirty += dirty;
        stats.nodes_invalidated += invalidated;
        (stats.last_touched, stats.last_dirty) = (touched, dirty);
        stats.bytes_written += after.meta.deltas.last().map_or(0, |delta| delta.len);
        let version = after.meta.version;
        tracing::debug!(table = %self.ground.name, version, rows, touched, dirty, invalidated, "a merge step");
    }

    /// Puts the next base in the place of the current one.
    async fn switch(&self, progress: &mut Progress) -> Result<()> {
        let manifest = self.manifest.cached().ok_or_else(|| Error::internal("a merge without a manifest"))?;
        let next = self.target_base(progress, &manifest, Target::Next).await?;
        self.commit_merge("", |manifest| {
            manifest.base = manifest.next_base.take().filter(|base| !base.segments.is_empty());
            Ok(())
        })
        .await?;
        self.merge_stats.lock().stats.bases += 1;
        if let Some(old) = &manifest.base {
            self.drop_files(progress, old);
        }
        if next.segments.is_empty() {
            self.drop_files(progress, &next.meta);
        }
        progress.next = None;
        self.set_base(Some(next).filter(|base| !base.segments.is_empty()));
        Ok(())
    }

    /// Writes a base file that holds everything up to the current version.
    async fn fold(&self, progress: &mut Progress) -> Result<()> {
        let base = self.view().base().cloned().ok_or_else(|| Error::internal("a fold without a base"))?;
        let id = self.new_id();
        let NewLinks { meta, file } = base::write_fold(&self.ground.base_ground(), &id, Arc::clone(&base)).await?;
        let bytes = meta.len;
        let folded = base.after_fold(meta, file, base.meta.version);
        let meta = folded.meta.clone();
        self.commit_merge(&id, |manifest| {
            manifest.base = Some(meta.clone());
            Ok(())
        })
        .await?;
        let stats = &mut self.merge_stats.lock().stats;
        stats.folds += 1;
        stats.bytes_written += bytes;
        self.set_base(Some(Arc::new(folded)));
        self.drop_files(progress, &base.meta);
        Ok(())
    }

    /// Gives back the space of segments whose rows are all dead for everybody. What is left of one are the marks that its
    /// rows set on older ones, for as long as there are such.
    async fn retire(
        &self,
        progress: &mut Progress,
        manifest: &ShardManifest,
        open: &Open,
        gone: &[String],
    ) -> Result<()> {
        let horizon = PubNo(manifest.next_publication.0 - 1);
        let is_gone = |s: &SegmentMeta| gone.contains(&s.id);
        let held: Vec<(u64, u64)> = (manifest.segments.iter())
            .filter(|s| s.rows > 0 && !is_gone(s))
            .map(|s| (s.first_row.0, s.end_row()))
            .collect();
        // By name: what is left of it, if anything.
        let mut left: HashMap<String, Option<SegmentMeta>> = HashMap::new();
        for meta in manifest.segments.iter().filter(|s| s.rows == 0 || is_gone(s)) {
            let Some((segment, _)) = open.get(&meta.id) else { continue };
            let marks = segment.marks()?;
            let means_something = marks.iter().any(|(row, _)| held.iter().any(|h| (h.0..h.1).contains(&row.0)));
            let mut rest = meta.clone();
            rest.rows = 0;
            rest.parts.retain(|part| part.name == crate::store::paths::ENDS);
            left.insert(meta.id.clone(), means_something.then_some(rest));
        }
        let mut sources = HashMap::new();
        for (id, rest) in &left {
            let source = match rest {
                Some(rest) => {
                    let dir = self.ground.paths.segment_dir(id);
                    let segment = Segment::open(&self.ground.store, &dir, rest, &self.ground.schema).await?;
                    Some(Source::new(rest.first_row, Arc::default(), Tier::Segment(Arc::new(segment))))
                }
                None => None,
            };
            sources.insert(id.clone(), source);
        }
        self.commit_merge("", |manifest| {
            let rest = |s: &SegmentMeta| left.get(&s.id).cloned().unwrap_or_else(|| Some(s.clone()));
            manifest.segments = manifest.segments.iter().filter_map(rest).collect();
            Ok(())
        })
        .await?;
        self.replace_sources(horizon, |source| match source.tier() {
            Tier::Segment(segment) => sources.get(segment.id()).cloned(),
            Tier::Memtable(_) => None,
        });
        let version = self.manifest.cached().map_or(0, |manifest| manifest.version);
        for meta in manifest.segments.iter().filter(|s| left.contains_key(&s.id)) {
            let is_kept = |name: &str| left[&meta.id].as_ref().is_some_and(|rest| rest.part(name).is_some());
            let parts = meta.parts.iter().filter(|part| !is_kept(&part.name));
            let paths = parts.map(|part| self.ground.paths.segment_part(&meta.id, &part.name));
            progress.garbage.dropped(version, paths);
        }
        self.merge_stats.lock().stats.retired += gone.len() as u64;
        Ok(())
    }

    /// The newest manifest is the first that does without these files.
    fn drop_files(&self, progress: &mut Progress, base: &BaseMeta) {
        let version = self.manifest.cached().map_or(0, |manifest| manifest.version);
        let dir = self.ground.paths.base_dir();
        let paths = base.files().map(|file| format!("{dir}{}", ShardPaths::links_name(&file.id)));
        progress.garbage.dropped(version, paths);
    }

    /// Removes what nothing names any more: files of links, what writers before this one left unfinished, old manifests.
    async fn collect(&self, progress: &mut Progress, manifest: &ShardManifest) -> Result<()> {
        if !progress.has_looked {
            // The first writer has nobody's leavings to look for.
            if self.epoch > Epoch(1) {
                self.find_leavings(progress, manifest).await?;
            }
            progress.has_looked = true;
            progress.trimmed_at = manifest.version;
        }
        let kept = self.ground.options.merge.kept_versions;
        // ORDERING: SeqCst, as where it is raised: whoever raised it before this look loads its manifest after that, and
        // none of the newest manifests names what is collected here.
        while self.verifying.load(Ordering::SeqCst) == 0
            && let Some(path) = progress.garbage.take(manifest.version, kept)
        {
            failpoint::hit("merge.collect.before").map_err(|e| Error::io("collecting garbage", e))?;
            if let Err(error) = self.ground.store.delete(&path).await {
                progress.garbage.put_back(manifest.version, path);
                return Err(error);
            }
            self.merge_stats.lock().stats.collected += 1;
        }
        if manifest.version >= progress.trimmed_at + kept.div_ceil(2) {
            let removed = self.manifest.trim(kept, &[]).await?;
            self.merge_stats.lock().stats.collected += removed;
            progress.trimmed_at = manifest.version;
        }
        Ok(())
    }

    /// Files of links and segments that writers before this one wrote and that the manifest does not name: from unfinished
    /// jobs, or named by versions that are old by now.
    async fn find_leavings(&self, progress: &mut Progress, manifest: &ShardManifest) -> Result<()> {
        let paths = &self.ground.paths;
        let bases = manifest.base.iter().chain(&manifest.next_base);
        let links: HashSet<&str> = bases.flat_map(|base| base.files().map(|file| file.id.as_str())).collect();
        let segments: HashSet<&str> = manifest.segments.iter().map(|segment| segment.id.as_str()).collect();
        let is_earlier =
            |id: &str| crate::store::paths::parse_segment_id(id).is_some_and(|(epoch, _)| epoch < self.epoch);
        let mut left = Vec::new();
        for object in self.ground.store.list(&paths.base_dir()).await? {
            let is_left = paths.parse_links(&object.path).is_some_and(|id| is_earlier(id) && !links.contains(id));
            left.extend(is_left.then_some(object.path));
        }
        for object in self.ground.store.list(&paths.segments_dir()).await? {
            let id = object.path.strip_prefix(&paths.segments_dir()).and_then(|rest| rest.split('/').next());
            let is_left = id.is_some_and(|id| is_earlier(id) && !segments.contains(id));
            left.extend(is_left.then_some(object.path));
        }
        progress.garbage.dropped(manifest.version, left);
        Ok(())
    }
}
