//! Finds the rows of one read.
//!
//! In: a [`Reader`] and what is asked. Out: where the rows stand, or the rows. Called by `request` and `table`. Per source
//! a search goes through the graph and the exact tail, or scans exactly where that is cheaper or the graph gave too few.
//! Invariant: `k` rows come back whenever the snapshot holds `k` rows with a vector.

use super::output;
use super::snapshot::{BaseView, Source};
use super::top_k::{self, SourcedHit};
use super::{Counters, Reader};
use crate::error::Result;
use crate::keys::{KeyArray, KeyProbe, Keys};
use crate::rows::{Hit, RowSource, VectorQuery, Visible};
use arrow::array::RecordBatch;
use std::sync::Arc;

/// A graph search at beam width `ef` costs about as much as scanning this many rows per unit of `ef`: it evaluates some
/// 15 to 20 distances a beam entry at random places, a scan goes through memory in order.
const SCAN_ROWS_PER_EF: usize = 8;
/// Rows read at once by a scan.
pub(crate) const SCAN_CHUNK_ROWS: u32 = 4_096;

/// One vector search over a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct NearestQuery {
    /// Ordinal among the vector columns.
    pub(crate) column: usize,
    /// `[dim]`, checked.
    pub(crate) vector: Vec<f32>,
    pub(crate) k: usize,
    pub(crate) ef: usize,
    /// Scan instead of using the graphs.
    pub(crate) exact: bool,
}

impl Reader {
    /// The sources as rows, with what this snapshot sees of them.
    fn sources(&self) -> impl Iterator<Item = (&Arc<Source>, Arc<dyn RowSource>)> {
        self.pinned.view.sources.iter().map(|source| (source, source.rows()))
    }

    /// The `k` nearest rows of the snapshot, ascending.
    pub(crate) fn nearest(&self, query: &NearestQuery) -> Result<Vec<SourcedHit>> {
        let asked = VectorQuery { column: query.column, vector: &query.vector, k: query.k, ef: query.ef.max(query.k) };
        let base = self.pinned.view.base.as_ref().filter(|_| !query.exact);
        let mut lists = match base {
            Some(base) => self.nearest_in_base(base, &asked)?,
            None => vec![None; self.pinned.view.sources.len()],
        };
        for ((source, rows), list) in self.sources().zip(&mut lists) {
            if list.is_none() {
                let visible = self.pinned.visible(source, &*rows);
                *list = Some(self.nearest_in(&*rows, &asked, &visible, query.exact)?);
            }
        }
        let lists: Vec<Vec<Hit>> = lists.into_iter().flatten().collect();
        let hits = top_k::merge(&lists, query.k);
        Counters::add(&self.counters.queries, 1);
        if hits.len() < query.k {
            Counters::add(&self.counters.short_results, 1);
        }
        Ok(hits)
    }

    /// What the base finds, by source; `None` for the sources that are to be searched by themselves: those that it does not
    /// cover, or all, where scanning them is cheaper.
    fn nearest_in_base(&self, view: &BaseView, query: &VectorQuery<'_>) -> Result<Vec<Option<Vec<Hit>>>> {
        let sources = &self.pinned.view.sources;
        let rows: Vec<Arc<dyn RowSource>> = sources.iter().map(|source| source.rows()).collect();
        let visible = |source: usize| self.pinned.visible(&sources[source], &*rows[source]);
        let parts: Vec<Option<(usize, Visible<'_>)>> =
            view.parts.iter().map(|part| part.map(|source| (source, visible(source)))).collect();
        let mut lists: Vec<Option<Vec<Hit>>> = vec![None; sources.len()];
        let below: usize = parts.iter().flatten().map(|(_, visible)| visible.below as usize).sum();
        if below <= query.ef.saturating_mul(SCAN_ROWS_PER_EF) {
            return Ok(lists);
        }
        let sees = |part: usize, offset: u32| {
            parts.get(part).and_then(Option::as_ref).is_some_and(|(_, visible)| visible.sees(offset))
        };
        let hits = view.base.search(query, &sees)?;
        // Fewer than k: the rest may be dead or without a vector, or the graph did not lead there. A scan knows.
        let is_short = hits.len() < query.k
            && (hits.len() as u64) < parts.iter().flatten().map(|(_, visible)| visible.count()).sum::<u64>();
        if is_short {
            Counters::add(&self.counters.exact_scans, 1);
        }
        for (source, visible) in parts.iter().flatten() {
            let scanned = if is_short { rows[*source].scan_nearest(query, visible)? } else { Vec::new() };
            lists[*source] = Some(scanned);
        }
        if !is_short {
            for hit in hits {
                let Some((source, _)) = &parts[hit.part] else { continue };
                let list = lists[*source].get_or_insert_default();
                list.push(Hit { distance: hit.distance, id: hit.offset });
            }
        }
        Ok(lists)
    }

    fn nearest_in(
        &self,
        rows: &dyn RowSource,
        query: &VectorQuery<'_>,
        visible: &Visible<'_>,
        exact: bool,
    ) -> Result<Vec<Hit>> {
        let may_be_all_dead = visible.ends.dead() >= visible.below;
        if visible.below == 0 || (may_be_all_dead && visible.count() == 0) {
            return Ok(Vec::new());
        }
        let small = visible.below as usize <= query.ef.saturating_mul(SCAN_ROWS_PER_EF);
        if !exact && !small {
            let (hits, cost) = rows.search(query, visible)?;
            Counters::add(&self.counters.tail_rows_scanned, cost.scanned);
            // Fewer than k: the rest may be dead or without a vector, or the graph did not lead there. A scan knows.
            if hits.len() >= query.k || hits.len() as u64 >= visible.count() {
                return Ok(hits);
            }
        }
        if !exact && !small {
            Counters::add(&self.counters.exact_scans, 1);
        }
        rows.scan_nearest(query, visible)
    }

    /// The rows that `hits` name, in their order, as the user's columns at `projection` plus the distance.
    pub(crate) fn fetch(&self, hits: &[SourcedHit], projection: &[usize]) -> Result<RecordBatch> {
        let places: Vec<(usize, u32)> = hits.iter().map(|hit| (hit.source, hit.offset)).collect();
        let rows = self.rows_at(&places, projection)?;
        output::with_distances(&rows, hits.iter().map(|hit| hit.distance))
    }

    /// The rows of the keys that have one, in the order of the keys.
    pub(crate) fn get(&self, keys: &Keys, projection: &[usize]) -> Result<RecordBatch> {
        let column = self.schema.key().ok_or_else(|| {
            crate::Error::invalid("the table has no key column, so rows cannot be looked up by key; use scan or search")
        })?;
        let keys = KeyArray::new(&*keys.cast(column)?)?;
        let sources: Vec<_> = self.sources().collect();
        let mut places = Vec::with_capacity(keys.len());
        for row in 0..keys.len() {
            let probe = KeyProbe { keys: &keys, row, hash: keys.hash(row) };
            for (n, (source, rows)) in sources.iter().enumerate().rev() {
                let visible = self.pinned.visible(source, &**rows);
                if let Some(offset) = rows.find(&probe, visible.below)? {
                    // The newest version that the snapshot holds: if that one is dead, the key is.
                    if visible.sees(offset) {
                        places.push((n, offset));
                    }
                    break;
                }
            }
        }
        self.rows_at(&places, projection)
    }

    /// Rows by source and offset, in the given order, as the user's columns.
    fn rows_at(&self, places: &[(usize, u32)], projection: &[usize]) -> Result<RecordBatch> {
        let mut by_source: Vec<Vec<u32>> = vec![Vec::new(); self.pinned.view.sources.len()];
        let mut order = Vec::with_capacity(places.len());
        for &(source, offset) in places {
            order.push((source, by_source[source].len()));
            by_source[source].push(offset);
        }
        let mut taken = Vec::new();
        let mut position = vec![usize::MAX; by_source.len()];
        for (source, offsets) in by_source.iter().enumerate().filter(|(_, offsets)| !offsets.is_empty()) {
            position[source] = taken.len();
            taken.push(self.pinned.view.sources[source].rows().take(offsets, projection)?);
        }
        let order: Vec<(usize, usize)> = order.into_iter().map(|(source, n)| (position[source], n)).collect();
        output::interleave(&self.schema, projection, &taken, &order)
    }

    /// One chunk of a scan: the live rows of `source` from `from` on, and where the next chunk begins.
    pub(crate) fn scan_chunk(
        &self,
        source: usize,
        from: u32,
        projection: &[usize],
    ) -> Result<Option<(RecordBatch, u32)>> {
        let Some(source) = self.pinned.view.sources.get(source) else { return Ok(None) };
        let rows = source.rows();
        let visible = self.pinned.visible(source, &*rows);
        if from >= visible.below {
            return Ok(None);
        }
        let to = visible.below.min(from.saturating_add(SCAN_CHUNK_ROWS));
        let live: Vec<u32> = (from..to).filter(|&offset| visible.sees(offset)).collect();
        let stored = if live.len() == (to - from) as usize {
            rows.read(from..to, projection)?
        } else {
            rows.take(&live, projection)?
        };
        Ok(Some((output::to_user(&self.schema, projection, &stored)?, to)))
    }
}
