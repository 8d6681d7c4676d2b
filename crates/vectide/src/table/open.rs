//! From a manifest and a log to a shard that takes writes.
//!
//! Steps, each safe to be killed in: read the manifest, raise the epoch (from here on earlier writers are fenced), put
//! fences into their logs (object stores), open the segments and apply their end marks, replay the log into memtables
//! (flushing on the way when it outgrows memory), record where the old logs end, start the own log. Called by `Database`.
//! Invariant: the log is read, never rewritten; opening again gives the same rows.

use super::maintain::let_go;
use super::section::{Change, Condition, OlderRows};
use super::shard::{Ground, Shard};
use crate::base::Base;
use crate::ends::Ends;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, PubNo, RowId};
use crate::keys::KeyArray;
use crate::manifest::{EpochEnd, ShardManifest, Versioned};
use crate::memtable::Prepared;
use crate::schema::TableSchema;
use crate::search::snapshot::{Source, Tier};
use crate::segment::Segment;
use crate::wal::frame::{FrameKind, LogSchema};
use crate::wal::index::SeqIndex;
use crate::wal::replay::{Recovered, Replay, ReplayBatch, ReplayPlan};
use crate::wal::{Log, LogListener};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;
use std::sync::Weak;

/// Opens a table's shard for writing.
pub(crate) async fn open(ground: Ground) -> Result<Arc<Shard>> {
    let started = ground.clock.now();
    let dir = ground.paths.manifest_dir();
    let manifest: Versioned<ShardManifest> =
        Versioned::new(Arc::clone(&ground.store), dir, crate::runtime::random_u64());
    manifest.load_latest().await?.ok_or_else(|| {
        Error::corrupt(format!("table {}: the catalog names it, but it has no manifest", ground.name))
    })?;
    let now = manifest.raise_epoch().await?;
    let rival = Versioned::new(Arc::clone(&ground.store), ground.paths.manifest_dir(), crate::runtime::random_u64());
    match recover(ground, manifest, &now).await {
        Ok(shard) => {
            shard.recovery.lock().ms = shard.ground.clock.now().saturating_sub(started).as_secs_f64() * 1e3;
            Ok(shard)
        }
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
            Err(missing_or_taken_over(&rival, &now, error).await)
        }
        Err(error) => Err(error),
    }
}

/// Everything behind the raised epoch.
async fn recover(ground: Ground, manifest: Versioned<ShardManifest>, now: &Arc<ShardManifest>) -> Result<Arc<Shard>> {
    pass("open.epoch.after")?;
    let fenced = fence_earlier_writers(&ground, now).await?;
    pass("open.fences.after")?;
    let sources = open_segments(&ground, now).await?;
    let base = open_base(&ground, now, &sources, None).await?;
    pass("open.segments.after")?;
    let shard = Arc::new(Shard::new(ground, manifest, now, sources, base)?);
    register(&shard);
    let index = replay(&shard, now, fenced).await?;
    start(&shard, index)?;
    Ok(shard)
}

/// What is missing was removed by a writer that took over meanwhile, if there is one: it has flushed or merged what this one
/// was about to read. Otherwise it is damage.
async fn missing_or_taken_over(rival: &Versioned<ShardManifest>, now: &ShardManifest, error: Error) -> Error {
    match rival.load_latest().await {
        Ok(Some(newest)) if newest.epoch > now.epoch => {
            Error::fenced(format!("the writer of epoch {} took over while this one opened: open anew", newest.epoch))
                .with_source(error)
        }
        _ => error.with_kind(ErrorKind::Corrupt),
    }
}

fn pass(point: &'static str) -> Result<()> {
    crate::failpoint::hit(point).map_err(|e| Error::io("opening", e))
}

/// The schemas of the table's log.
pub(crate) fn log_schema(schema: &TableSchema) -> Result<Arc<LogSchema>> {
    let delete = schema.delete().cloned().unwrap_or_else(|| Arc::new(arrow::datatypes::Schema::empty()));
    LogSchema::new(Arc::clone(schema.stored()), delete)
}

/// How often and how fast fencing is tried while rivals change the log under it.
const FENCE_ATTEMPTS: u32 = 20;
const FENCE_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Shuts earlier writers out of their logs. On a local directory the lock has done so already.
async fn fence_earlier_writers(ground: &Ground, now: &ShardManifest) -> Result<Vec<EpochEnd>> {
    if ground.store.local().is_some() {
        return Ok(now.closed.clone());
    }
    for _ in 0..FENCE_ATTEMPTS {
        let fenced =
            crate::wal::fence::take_over(&ground.store, &ground.paths, now.replay_from, &now.closed, now.epoch).await;
        match fenced {
            // A rival that takes over too removed an object between our two looks at it (a surplus fence, or a log that
            // it has flushed). Fencing is idempotent: look again.
            Err(error) if error.kind() == ErrorKind::NotFound => tokio::time::sleep(FENCE_PAUSE).await,
            other => return other,
        }
    }
    Err(Error::unavailable(
        "other writers keep taking the shard over at the same time: open it again when they have settled",
    ))
}

/// Segments that are opened at once: a remote one takes several round trips, one file after the other.
const SEGMENTS_AT_ONCE: usize = 16;

/// Maps every segment and applies the end marks that they carry.
pub(crate) async fn open_segments(ground: &Ground, now: &ShardManifest) -> Result<Vec<Arc<Source>>> {
    let mut metas = now.segments.clone();
    metas.sort_by_key(|m| (m.first_row, m.first_seq));
    let mut sources: Vec<Arc<Source>> = Vec::with_capacity(metas.len());
    let mut marks = Vec::new();
    let opening = metas.clone().into_iter().map(|meta| {
        let (store, schema) = (Arc::clone(&ground.store), ground.schema.clone());
        let dir = ground.paths.segment_dir(&meta.id);
        async move { Segment::open(&store, &dir, &meta, &schema).await }
    });
    let mut opened = stream::iter(opening).buffered(SEGMENTS_AT_ONCE);
    for meta in &metas {
        let segment = opened.try_next().await?.ok_or_else(|| Error::internal("a segment was not opened"))?;
        let ends = Arc::new(Ends::default());
        marks.extend(segment.marks()?);
        sources.push(Source::new(meta.first_row, ends, Tier::Segment(Arc::new(segment))));
    }
    for (row, publication) in marks {
        apply_mark(&sources, now.next_row, row, publication)?;
    }
    Ok(sources)
}

/// The segment of that name among the sources.
pub(crate) fn find_segment(sources: &[Arc<Source>], id: &str) -> Option<Arc<Segment>> {
    sources.iter().find_map(|source| match source.tier() {
        Tier::Segment(segment) if segment.id() == id => Some(segment),
        _ => None,
    })
}

/// Opens the base that the manifest names, from an earlier version of it where one is open.
pub(crate) async fn open_base(
    ground: &Ground,
    now: &ShardManifest,
    sources: &[Arc<Source>],
    before: Option<&Arc<Base>>,
) -> Result<Option<Arc<Base>>> {
    let Some(meta) = &now.base else { return Ok(None) };
    let opened = Base::open(&ground.base_ground(), meta, &|id| find_segment(sources, id), before).await?;
    Ok(Some(Arc::new(opened)))
}

/// Sets an end mark by row id. A row below `next_row` that no segment holds was given back: its mark means nothing.
fn apply_mark(sources: &[Arc<Source>], next_row: RowId, row: RowId, publication: PubNo) -> Result<()> {
    let behind = sources.partition_point(|s| s.first_row <= row);
    let found = sources[..behind].iter().rev().find_map(|source| {
        let offset = u32::try_from(row.0 - source.first_row.0).ok()?;
        (offset < source.rows().rows()).then_some((source, offset))
    });
    match found {
        Some((source, offset)) => drop(source.ends.set(offset, publication)),
        None if row < next_row => {}
        None => return Err(Error::corrupt(format!("an end mark names row {row}, which was never given out"))),
    }
    Ok(())
}

/// Replays the log into memtables and records where earlier writers' logs end.
async fn replay(shard: &Arc<Shard>, now: &ShardManifest, fenced: Vec<EpochEnd>) -> Result<SeqIndex> {
    let plan = ReplayPlan { from: now.replay_from, seq: now.replay_seq, current: now.epoch, closed: fenced };
    let ground = &shard.ground;
    let schema = &ground.log_schema;
    let mut replay = match ground.store.local() {
        Some(dir) => {
            let wal_dir = dir.root.join(ground.paths.wal_dir());
            Replay::local(dir, wal_dir, Arc::clone(schema), plan)
        }
        None => Replay::objects(Arc::clone(&ground.store), ground.paths.clone(), Arc::clone(schema), plan),
    };
    while let Some(batch) = replay.next().await? {
        make_room(shard, &batch).await?;
        apply(shard, batch)?;
    }
    all_visible(shard).await?;
    pass("open.replay.after")?;
    let recovered = replay.finish()?;
    check_end(shard, &recovered)?;
    let ends = merged_ends(&now.closed, &recovered.ends);
    let changed = ends != now.closed;
    let closed = ends.clone();
    if changed {
        shard.manifest.commit(shard.epoch, |m| Ok(ShardManifest { closed: closed.clone(), ..m.clone() })).await?;
    }
    pass("open.ends.after")?;
    let _ = shard.closed_epochs.set(ends);
    Ok(recovered.index)
}

/// The shard must stand exactly where its log ends.
fn check_end(shard: &Shard, recovered: &Recovered) -> Result<()> {
    let section = shard.section.lock();
    if section.next_seq != recovered.last_seq.plus(1) || section.next_publication <= recovered.last_publication {
        return Err(Error::internal(format!(
            "replay ended at seq {} and publication {}, the log at {} and {}",
            section.next_seq, section.next_publication, recovered.last_seq, recovered.last_publication
        )));
    }
    Ok(())
}

/// Flushes what was replayed so far if the next batch would not fit into memory beside it.
async fn make_room(shard: &Arc<Shard>, batch: &ReplayBatch) -> Result<()> {
    let bytes: u64 = batch.parts.iter().map(|p| p.get_array_memory_size() as u64).sum();
    // Room for what the flush takes beside the memtable: gathered vectors, a graph's sections, pieces on their way.
    let reserve = shard.ground.options.memtable_bytes / 4;
    let full = {
        let mut section = shard.section.lock();
        let full = shard.is_full(&section, batch.rows, bytes + reserve);
        if full {
            shard.seal(&mut section)?;
        }
        full
    };
    let head = if full { shard.sealed.lock().front().cloned() } else { None };
    if let Some(sealed) = head {
        shard.flush(&sealed).await?;
        shard.sealed.lock().pop_front();
        shard.flush_progress.send_modify(|p| p.flushed_seq = sealed.end.0);
        shard.recovery.lock().flushes += 1;
        let_go(sealed).await;
    }
    Ok(())
}

/// Waits until everything that was applied is visible: it is durable, but the graphs must follow.
pub(crate) async fn all_visible(shard: &Shard) -> Result<()> {
    shard.ground.indexer.wake();
    let next = shard.section.lock().next_publication;
    let last = PubNo(next.0 - 1);
    let nothing = shard.section.lock().is_empty();
    if nothing {
        return Ok(());
    }
    shard.watermark.wait(|progress| progress.visible >= last).await
}

/// Puts the shard into the care of the index workers and under the memory budget.
pub(crate) fn register(shard: &Arc<Shard>) {
    let indexed: Weak<dyn super::indexer::Indexed> =
        Arc::downgrade(&(Arc::clone(shard) as Arc<dyn super::indexer::Indexed>));
    shard.ground.indexer.register(indexed);
    let holder: Weak<dyn super::budget::Holder> =
        Arc::downgrade(&(Arc::clone(shard) as Arc<dyn super::budget::Holder>));
    shard.ground.budget.register(holder);
}

/// Publishes a batch out of the log.
pub(crate) fn apply(shard: &Arc<Shard>, batch: ReplayBatch) -> Result<()> {
    let schema = &shard.ground.schema;
    let keys = match (schema.key(), batch.kind) {
        (None, _) => None,
        (Some(key), FrameKind::Put) => Some(hash_parts(&batch, key.index)?),
        (Some(_), FrameKind::Delete) => Some(hash_parts(&batch, 0)?),
    };
    let change = match batch.kind {
        FrameKind::Put => Change::Put(Prepared::new(schema, batch.parts)?),
        FrameKind::Delete => Change::Delete(batch.rows),
    };
    let older = OlderRows::look_up(&shard.view(), keys.as_ref())?;
    let mut section = shard.section.lock();
    if section.next_seq != batch.first_seq {
        return Err(Error::corrupt(format!(
            "the log goes on at seq {} where {} was due, at {}",
            batch.first_seq, section.next_seq, batch.position
        )));
    }
    // Publication numbers may skip what an earlier writer gave out and lost.
    section.next_publication = section.next_publication.max(batch.publication);
    let published = section.publish(change, keys.as_ref(), older, || shard.view(), Condition::None, |_, _| {})?;
    section.replayed_to = Some(batch.position_after);
    section.born.get_or_insert_with(|| shard.ground.clock.now());
    shard.watermark.push(published.cut, || shard.ground.clock.now());
    if shard.has_log() {
        shard.watermark.set_durable(published.cut.at);
    }
    let memtable = Arc::clone(&section.active);
    drop(section);
    memtable.pack_if_due()?;
    shard.ground.indexer.wake();
    let mut recovery = shard.recovery.lock();
    recovery.batches += 1;
    recovery.rows += batch.rows;
    Ok(())
}

fn hash_parts(batch: &ReplayBatch, column: usize) -> Result<(KeyArray, Vec<u64>)> {
    let columns: Vec<&dyn arrow::array::Array> = batch.parts.iter().map(|p| &**p.column(column)).collect();
    let keys = match &columns[..] {
        [one] => KeyArray::new(*one)?,
        many => KeyArray::new(&*arrow::compute::concat(many)?)?,
    };
    let hashes = keys.hashes();
    Ok((keys, hashes))
}

/// Recorded ends and newly found ones, by ascending epoch; a recorded one stands.
fn merged_ends(recorded: &[EpochEnd], found: &[EpochEnd]) -> Vec<EpochEnd> {
    let mut ends = recorded.to_vec();
    ends.extend(found.iter().filter(|end| recorded.iter().all(|r| r.epoch != end.epoch)));
    ends.sort_by_key(|end| end.epoch);
    ends
}

/// Starts the log and the background task.
fn start(shard: &Arc<Shard>, index: SeqIndex) -> Result<()> {
    let ground = &shard.ground;
    let listener: Arc<dyn LogListener> = Arc::clone(&shard.watermark) as Arc<dyn LogListener>;
    let log = start_log(ground, shard.epoch, index, listener)?;
    shard.log.set(log).map_err(|_| Error::internal("the log was started twice"))?;
    super::maintain::start(shard);
    super::merging::start(shard);
    Ok(())
}

fn start_log(ground: &Ground, epoch: Epoch, index: SeqIndex, listener: Arc<dyn LogListener>) -> Result<Arc<dyn Log>> {
    let (schema, clock) = (Arc::clone(&ground.log_schema), Arc::clone(&ground.clock));
    let options = &ground.options.wal;
    match ground.store.local() {
        Some(dir) => {
            let wal_dir = dir.root.join(ground.paths.wal_dir());
            let log = crate::wal::local::LocalLog::open(
                dir.fs,
                wal_dir,
                epoch,
                schema,
                index,
                options.into(),
                clock,
                listener,
            )?;
            Ok(Arc::new(log))
        }
        None => {
            let store = Arc::clone(&ground.store);
            let log = crate::wal::object::ObjectLog::open(
                store,
                ground.paths.clone(),
                epoch,
                schema,
                index,
                options.into(),
                clock,
                listener,
            )?;
            Ok(Arc::new(log))
        }
    }
}
