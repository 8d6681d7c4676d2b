//! Inserting a node: find candidates, select, write all forward links, then link
//! back. Called by any number of index workers at once, each with its own ids.
//!
//! **Every node is reachable, always.** Pruning that only looks at distances
//! loses nodes for good. Here each node but the first is *attached* to one
//! neighbour when it is inserted: the two links between them are pinned, and no
//! pruning drops a pinned link. So the pinned links are a spanning tree, in both
//! directions, whatever else changes. A node has room for `m` pins of its `m0`
//! slots; where a neighbour has none left, the next takes the new node. The new
//! node cannot be seen before its parent's link to it is in place, so that no
//! other node can come between them and close a circle.

use crate::codes::{Code, CodeQuery, Coded, Codes, Int4, Int8};
use crate::distance::{Isa, Kernel, Task};
use crate::error::GraphError;
use crate::graph::Graph;
use crate::hit::Key;
use crate::links::Link;
use crate::neighbors::{link_back, link_back_known, link_pinned, select};
use crate::params::{Metric, mix};
use crate::progress::Progress;
use crate::query::prepare_row;
use crate::scratch::{Scratch, Work};
use crate::search::{descend, measure, measure_one, sealed::View, traverse};
use crate::space::{Exact, Space};
use crate::spread::Spread;
use crate::sync::Ordering;
use crate::vectors::Vectors;

/// Inserts by code between two looks at how far codes are off.
const PROBE_EVERY: u32 = 8;
/// The first rows are all looked at.
const PROBED_FIRST: u32 = 256;
/// Candidates that such a look measures exactly.
const PROBED: usize = 16;
/// Inserts by exact distances after codes were found to tell too little.
const DISTRUST: u32 = 256;
/// They tell too little where their error deviates by more than this part of what
/// the candidates differ by: then nearly any order would look as good.
const NOISE: f32 = 0.4;

/// Steps along the tree after which any free slot will do.
const LONG_WALK: u64 = 256;

impl Graph {
    /// Inserts row `id`; it can be found when this returns. Returns whether a
    /// node was added: not for a row without a vector, which is only marked
    /// done, nor for one that was inserted before.
    ///
    /// Ids may come in any order and from any number of threads. `vectors` must
    /// be the same rows on every call, with norms under cosine.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] for vectors of another dimension,
    /// [`GraphError::MissingRow`] for an id that they do not hold.
    pub fn insert<V: Vectors>(&self, vectors: &V, id: u32, scratch: &mut Scratch) -> Result<bool, GraphError> {
        if vectors.dim() != self.params.dim as usize {
            return Err(GraphError::Mismatch {
                what: "the table of vectors",
                expected: format!("dimension {}", self.params.dim),
                got: format!("dimension {}", vectors.dim()),
            });
        }
        let rows = vectors.len();
        if id >= rows {
            return Err(GraphError::MissingRow { id, rows });
        }
        if !self.progress.claim(id, || self.add_bytes(Progress::SEGMENT_BYTES)) {
            return Ok(false);
        }
        // ORDERING: Release pairs with the Acquire in `View::end`.
        self.end.fetch_max(id + 1, Ordering::Release);
        let Some(row) = vectors.row(id) else {
            self.progress.finish(id, false);
            return Ok(false);
        };
        let Scratch { isa, query, work } = scratch;
        prepare_row(row.values, row.inv_norm, query);
        if let Some((_, store)) = &self.codes {
            store.ensure(id, |bytes| self.add_code_bytes(bytes));
            self.insert_coded(*isa, vectors, query, id, work);
        } else {
            isa.run(Insert { graph: self, vectors, query, id, work });
        }
        work.settle();
        Ok(true)
    }

    /// Inserts a claimed row by its code; by exact distances for a while, where
    /// codes were seen to tell too little.
    fn insert_coded<V: Vectors>(&self, isa: Isa, vectors: &V, query: &[f32], id: u32, work: &mut Work) {
        // ORDERING: Relaxed; a hint, and publishes nothing.
        let distrusted = self.distrust.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if distrusted.is_ok() {
            isa.run(Encode { graph: self, query, id, work });
            isa.run(Insert { graph: self, vectors, query, id, work });
            return;
        }
        isa.run(CodedInsert { graph: self, query, id, work });
        let probe = id < PROBED_FIRST || id.is_multiple_of(PROBE_EVERY);
        if probe && isa.run(Probe { metric: self.params.metric, vectors, query, work }) {
            // ORDERING: as above.
            self.distrust.store(DISTRUST, Ordering::Relaxed);
        }
    }

    /// Links a claimed id into the graph and marks it done.
    #[inline(always)]
    fn insert_node<S: Space>(&self, space: &S, query: &S::Query, id: u32, work: &mut Work) {
        self.ensure_segment(id);
        let level = self.level(id);
        // The first node, and one above all others, are linked one at a time:
        // the next such node must see it as the entry point.
        let outgrows = |entry: Option<u32>| entry.is_none_or(|entry| level > self.level(entry));
        let raise = outgrows(self.entry()).then(|| self.raise.lock());
        let entry = self.entry();
        let promoted = raise.is_some() && outgrows(entry);
        if let Some(entry) = entry {
            let top = level.min(self.level(entry));
            self.choose(space, query, entry, top, work);
            self.write_forward_links(id, top, work);
            self.attach_and_link_back(space, query, id, entry, work);
            for level in 1..=top {
                for key in &work.chosen[usize::from(level)] {
                    let row = self.lock_row(level, key.id());
                    link_back(space, &row, Link::new(id, key.distance()), &mut work.pruning, &mut work.held);
                }
            }
        }
        if promoted {
            self.entry.promote(entry, id);
        } else {
            self.entry.add();
        }
        drop(raise);
        self.progress.finish(id, true);
    }

    /// Selects the new node's neighbours on the levels from `top` down to 0.
    /// `work.beam` holds the candidates of level 0 afterwards.
    #[inline(always)]
    fn choose<S: Space>(&self, space: &S, query: &S::Query, entry: u32, top: u8, work: &mut Work) {
        let mut start = descend(self, space, query, entry, top, work);
        work.chosen.resize_with(work.chosen.len().max(usize::from(top) + 1), Vec::new);
        for level in (0..=top).rev() {
            let ef = self.params.ef_construction as usize;
            traverse(self, space, query, level, &[start], ef, None, work);
            let candidates = work.beam.keys();
            start = candidates.first().copied().unwrap_or(start);
            let chosen = &mut work.chosen[usize::from(level)];
            select(space, candidates, self.params.m.into(), &mut work.held, chosen);
        }
    }

    /// Writes the new node's own rows, while nobody can see it.
    fn write_forward_links(&self, id: u32, top: u8, work: &Work) {
        for level in 0..=top {
            let row = self.lock_row(level, id);
            for key in &work.chosen[usize::from(level)] {
                row.push(Link::new(key.id(), key.distance()));
            }
        }
    }

    /// Level 0: finds the new node a parent, then offers it to its other
    /// neighbours.
    #[inline(always)]
    fn attach_and_link_back<S: Space>(&self, space: &S, query: &S::Query, id: u32, entry: u32, work: &mut Work) {
        let chosen = std::mem::take(&mut work.chosen[0]);
        work.deferred.clear();
        let mut parent = None;
        for &key in &chosen {
            let row = self.lock_row(0, key.id());
            if parent.is_none() && !row.can_pin(false) {
                work.deferred.push(key);
                continue;
            }
            let link = Link { pinned: parent.is_none(), ..Link::new(id, key.distance()) };
            if link_back_known(space, query, &row, link, &work.visited, &mut work.pruning) && parent.is_none() {
                parent = Some(key);
            }
        }
        work.chosen[0] = chosen;
        let parent = match parent {
            Some(parent) => parent,
            None => self.attach(space, query, id, entry, work),
        };
        link_pinned(&self.lock_row(0, id), Link::pinned(parent.id(), parent.distance()));
        for key in work.deferred.iter().filter(|key| key.id() != parent.id()) {
            let (row, link) = (self.lock_row(0, key.id()), Link::new(id, key.distance()));
            link_back_known(space, query, &row, link, &work.visited, &mut work.pruning);
        }
    }

    /// Finds a parent for a node that no selected neighbour kept by itself: the
    /// nearest candidate with room for a pin, or else one found by walking along
    /// pinned links. Most nodes of a tree are leaves, and leaves have room, so
    /// the walk is short even among thousands of copies of one vector.
    #[inline(always)]
    pub(crate) fn attach<S: Space>(&self, space: &S, query: &S::Query, id: u32, entry: u32, work: &mut Work) -> Key {
        let candidates = work.beam.keys().iter().filter(|key| key.id() != id);
        let mut nearest = None;
        for &key in candidates {
            nearest = nearest.or(Some(key.id()));
            if self.try_attach(id, key, false) {
                return key;
            }
        }
        let (mut at, mut came_from) = (nearest.unwrap_or(entry), id);
        for step in 0u64.. {
            let key = Key::new(measure_one(space, query, at), at);
            if self.try_attach(id, key, step >= LONG_WALK) {
                return key;
            }
            // Never back the way it came: on a tree, that ends at a leaf.
            let row = self.lock_row(0, at);
            let onward: Vec<u32> = row
                .links()
                .filter(|link| link.pinned && link.id != id && link.id != came_from)
                .map(|link| link.id)
                .collect();
            let turn = mix(u64::from(id) << 32 ^ step) as usize;
            (came_from, at) = (at, onward[turn % onward.len()]);
        }
        unreachable!("a walk over a finite tree that never turns back meets a leaf")
    }

    /// Pins `id` in the row of `parent` if that has room.
    fn try_attach(&self, id: u32, parent: Key, urgent: bool) -> bool {
        let row = self.lock_row(0, parent.id());
        let room = row.can_pin(urgent);
        if room {
            link_pinned(&row, Link::pinned(id, parent.distance()));
        }
        room
    }
}

struct Insert<'a, V> {
    graph: &'a Graph,
    vectors: &'a V,
    /// The row, as queries are prepared.
    query: &'a [f32],
    id: u32,
    work: &'a mut Work,
}

impl<V: Vectors> Task for Insert<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let space = Exact::new(kernel, self.graph.params.metric, self.vectors);
        self.graph.insert_node(&space, self.query, self.id, self.work);
    }
}

/// An insert that measures by codes alone. It knows nothing of the vectors, so it
/// is compiled once for all types of them.
struct CodedInsert<'a> {
    graph: &'a Graph,
    /// The row, as queries are prepared.
    query: &'a [f32],
    id: u32,
    work: &'a mut Work,
}

impl Task for CodedInsert<'_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        match self.graph.params.codes {
            Codes::Int8 => self.by::<K, Int8>(kernel),
            Codes::Int4 => self.by::<K, Int4>(kernel),
            Codes::None => unreachable!("the graph has codes"),
        }
    }
}

impl CodedInsert<'_> {
    #[inline(always)]
    fn by<K: Kernel, C: Code>(self, kernel: K) {
        let Self { graph, query, id, work } = self;
        let (encoder, _) = graph.codes.as_ref().expect("the graph has codes");
        let mut code_query = std::mem::take(&mut work.code_query);
        encode::<K, C>(kernel, graph, query, id, &mut work.rotated, &mut code_query);
        let space = Coded::<K, C, Graph>::new(kernel, graph, encoder);
        graph.insert_node(&space, &code_query, id, work);
        work.code_query = code_query;
    }
}

/// Writes the code of a row that was claimed, and prepares it as a query.
#[inline(always)]
fn encode<K: Kernel, C: Code>(
    kernel: K,
    graph: &Graph,
    row: &[f32],
    id: u32,
    rotated: &mut Vec<f32>,
    query: &mut CodeQuery,
) {
    let (encoder, store) = graph.codes.as_ref().expect("the graph has codes");
    let rotated = encoder.rotate(kernel, row, rotated);
    // SAFETY: this thread claimed the id, once, and no link leads to it yet.
    encoder.encode::<C>(rotated, unsafe { store.row_mut(id) });
    encoder.prepare::<C>(rotated, query);
}

/// Writes a row's code only.
struct Encode<'a> {
    graph: &'a Graph,
    query: &'a [f32],
    id: u32,
    work: &'a mut Work,
}

impl Task for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Self { graph, query, id, work } = self;
        let Work { rotated, code_query, .. } = work;
        match graph.params.codes {
            Codes::Int8 => encode::<K, Int8>(kernel, graph, query, id, rotated, code_query),
            Codes::Int4 => encode::<K, Int4>(kernel, graph, query, id, rotated, code_query),
            Codes::None => unreachable!("the graph has codes"),
        }
    }
}

/// Whether codes tell too little about the candidates that an insert by code left
/// in the beam.
pub(crate) struct Probe<'a, V> {
    pub(crate) metric: Metric,
    pub(crate) vectors: &'a V,
    pub(crate) query: &'a [f32],
    pub(crate) work: &'a mut Work,
}

impl<V: Vectors> Task for Probe<'_, V> {
    type Output = bool;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> bool {
        let Self { metric, vectors, query, work } = self;
        let Work { beam, links, coded, .. } = work;
        let step = beam.keys().len() / PROBED;
        if step == 0 {
            return false;
        }
        coded.clear();
        links.clear();
        for at in 0..PROBED {
            coded.push(beam.keys()[at * step]);
            links.push(coded[at].id());
        }
        let space = Exact::new(kernel, metric, vectors);
        let (mut errors, mut distances) = (Spread::default(), Spread::default());
        measure(&space, query, links, |at, _, distance| {
            errors.add(coded[at].distance() - distance);
            distances.add(distance);
        });
        errors.deviation() > NOISE * distances.deviation()
    }
}
