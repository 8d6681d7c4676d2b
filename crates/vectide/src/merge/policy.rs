//! What is to be merged next, from the manifest alone.
//!
//! In: a manifest, how many rows of each segment are dead, the options. Out: the next [`Job`], if there is one. Called by
//! `table/merging` after every commit. Pure. Invariant: each job brings a finite number of others nearer, so that without
//! writes the answer ends as `None`, with one base and at most `segments` others.

use crate::manifest::{BaseMeta, SegmentMeta, ShardManifest};
use crate::options::MergeOptions;

/// A segment with this many times the base's rows begins the next base.
const OUTGROWS: u64 = 2;
/// A base for which dead rows are reason enough for another one has at least this many rows, in steps.
const WORTH_STEPS: u64 = 2;
/// Deltas from which on they are folded, whatever their size.
pub(crate) const MOST_DELTAS: usize = 128;
/// Rows of a base that one step inserts: one in so many.
const STEP_SHARE: u64 = 200;
/// A segment may begin a base if at most this share of its rows is dead, in per cent.
const CLEAN_PCT: u64 = 10;

/// Which base a job is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The one that searches use.
    Current,
    /// The one that is being built.
    Next,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Begin a base with a segment's graph, or without any rows.
    Begin { target: Target, segment: Option<String> },
    /// Insert up to `rows` rows of a segment, which is adopted first if it is not yet.
    Step { target: Target, segment: String, rows: usize },
    /// Put the next base in the place of the current one.
    Switch,
    /// Fold the current base's deltas into a new base file.
    Fold,
    /// Give back the space of segments all of whose rows are dead for everybody.
    Retire(Vec<String>),
}

/// What is known of a segment beside its entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Rows that are dead for everybody.
    pub(crate) dead: u32,
    /// Whether a base can adopt it at all.
    pub(crate) can_adopt: bool,
    /// Whether all of its rows are dead in every snapshot that can still be taken.
    pub(crate) is_gone: bool,
}

/// The next job; `known` says what is known of a segment.
pub(crate) fn next(
    manifest: &ShardManifest,
    options: &MergeOptions,
    known: &dyn Fn(&SegmentMeta) -> Known,
) -> Option<Job> {
    let mut segments: Vec<(&SegmentMeta, Known)> = manifest.segments.iter().map(|s| (s, known(s))).collect();
    let is_held = |s: &SegmentMeta| manifest.base.iter().chain(&manifest.next_base).any(|b| b.segment(&s.id).is_some());
    let gone = segments.iter().filter(|(s, known)| s.rows > 0 && known.is_gone && !is_held(s));
    let gone: Vec<String> = gone.map(|(s, _)| s.id.clone()).collect();
    if !gone.is_empty() {
        return Some(Job::Retire(gone));
    }
    segments.retain(|(s, known)| known.can_adopt && known.dead < s.rows);
    segments.sort_by_key(|(s, _)| s.first_row);
    if let Some(next) = &manifest.next_base {
        return Some(build_next(manifest, next, &segments, options));
    }
    let Some(base) = &manifest.base else {
        let largest = segments.iter().max_by_key(|(s, known)| s.rows - known.dead);
        let segment = largest.filter(|_| segments.len() >= options.segments).map(|(s, _)| s.id.clone())?;
        return Some(Job::Begin { target: Target::Current, segment: Some(segment) });
    };
    let step = |segment: &str| Job::Step {
        target: Target::Current,
        segment: segment.to_owned(),
        rows: step_rows(nodes(manifest, base), options),
    };
    if let Some(last) = base.segments.last().filter(|last| !last.is_complete) {
        return Some(step(&last.id));
    }
    if is_stale(manifest, base, options, known) {
        return Some(Job::Begin { target: Target::Next, segment: cleanest(&segments) });
    }
    if let Some((outside, _)) = segments.iter().find(|(s, _)| base.segment(&s.id).is_none()) {
        let outgrows = |s: &SegmentMeta| u64::from(s.rows) > OUTGROWS * nodes(manifest, base);
        if outgrows(outside) {
            return Some(Job::Begin { target: Target::Next, segment: Some(outside.id.clone()) });
        }
        return Some(step(&outside.id));
    }
    is_fold_due(base, options).then_some(Job::Fold)
}

/// Goes on with the next base: what the current one has and is not dead comes over; then they change places.
fn build_next(
    manifest: &ShardManifest,
    next: &BaseMeta,
    segments: &[(&SegmentMeta, Known)],
    options: &MergeOptions,
) -> Job {
    let step = |segment: &str| Job::Step {
        target: Target::Next,
        segment: segment.to_owned(),
        rows: step_rows(nodes(manifest, next), options),
    };
    if let Some(last) = next.segments.last().filter(|last| !last.is_complete) {
        return step(&last.id);
    }
    let is_due = |s: &SegmentMeta| {
        next.segment(&s.id).is_none() && manifest.base.as_ref().is_some_and(|base| base.segment(&s.id).is_some())
    };
    match segments.iter().find(|(s, _)| is_due(s)) {
        Some((segment, _)) => step(&segment.id),
        None => Job::Switch,
    }
}

/// The segments that wait to be merged, and the rows that are not in yet.
pub(crate) fn backlog(
    manifest: &ShardManifest,
    options: &MergeOptions,
    known: &dyn Fn(&SegmentMeta) -> Known,
) -> (u64, u64) {
    let base = manifest.next_base.as_ref().or(manifest.base.as_ref());
    let (mut count, mut rows) = (0, 0);
    for segment in &manifest.segments {
        let Known { dead, can_adopt, .. } = known(segment);
        let adopted = base.and_then(|base| base.segment(&segment.id));
        if segment.rows == 0 || !can_adopt || dead >= segment.rows || adopted.is_some_and(|a| a.is_complete) {
            continue;
        }
        count += 1;
        rows += u64::from(segment.rows - adopted.map_or(0, |a| a.inserted).min(segment.rows));
    }
    // Too few to begin a base with: they wait for others, not for a merge.
    if base.is_none() && count < options.segments as u64 { (0, 0) } else { (count, rows) }
}

/// Rows of the segments in a base.
fn nodes(manifest: &ShardManifest, base: &BaseMeta) -> u64 {
    let rows = |id: &str| manifest.segments.iter().find(|s| s.id == id).map_or(0, |s| u64::from(s.rows));
    base.segments.iter().map(|adopted| rows(&adopted.id)).sum()
}

fn step_rows(nodes: u64, options: &MergeOptions) -> usize {
    (nodes / STEP_SHARE).max(options.step_rows.into()) as usize
}

/// Whether so many of a base's rows are dead that another one is worth its making.
fn is_stale(
    manifest: &ShardManifest,
    base: &BaseMeta,
    options: &MergeOptions,
    known: &dyn Fn(&SegmentMeta) -> Known,
) -> bool {
    // Rows that were dead when their segment was merged never came in: they are no burden, and a new base has none less.
    let (mut dead, mut rows) = (0u64, 0u64);
    for segment in manifest.segments.iter().filter(|s| base.segment(&s.id).is_some()) {
        let inserted = base.segment(&segment.id).map_or(0, |adopted| adopted.inserted);
        let left_out = segment.rows - inserted.min(segment.rows);
        dead += u64::from(known(segment).dead.saturating_sub(left_out));
        rows += u64::from(inserted);
    }
    rows >= WORTH_STEPS * u64::from(options.step_rows) && dead * 100 >= rows * u64::from(options.dead_pct)
}

/// The largest segment of which little is dead.
fn cleanest(segments: &[(&SegmentMeta, Known)]) -> Option<String> {
    let clean = |(s, known): &&(&SegmentMeta, Known)| u64::from(known.dead) * 100 <= u64::from(s.rows) * CLEAN_PCT;
    segments.iter().filter(clean).max_by_key(|(s, _)| s.rows).map(|(s, _)| s.id.clone())
}

/// Whether the deltas are as large as a new base file would be worth.
fn is_fold_due(base: &BaseMeta, options: &MergeOptions) -> bool {
    let deltas: u64 = base.deltas.iter().map(|delta| delta.len).sum();
    let file = base.file.as_ref().map_or(0, |file| file.len);
    !base.deltas.is_empty()
        && (base.deltas.len() >= MOST_DELTAS
            || u128::from(deltas) * 100 >= u128::from(file) * u128::from(options.fold_pct))
}

#[cfg(test)]
mod tests;
