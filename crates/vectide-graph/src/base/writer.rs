//! A step of a merge: inserts nodes into a base, reading through [`BaseLinks`] and
//! keeping what it writes to itself.
//!
//! The search for a node's links starts from nodes that are known to be near:
//! those that the node's own graph links it to. Selection and pruning are
//! those of a live graph (`neighbors`); the distances of a row's links, which are
//! not stored, are measured when a full row has to be pruned. One thread, one
//! writer.

use super::rows::{BaseRows, Nodes};
use super::view::keep_links;
use super::{BaseLinks, decode_row, encode_row};
use crate::codes::{Code, CodeQuery, Coded, Codes, Encoder, Int4, Int8};
use crate::distance::{Element, Kernel, Task};
use crate::error::GraphError;
use crate::hit::Key;
use crate::insert::Probe;
use crate::links::{Link, NONE};
use crate::neighbors::select;
use crate::params::mix;
use crate::query::prepare_row;
use crate::scratch::{Scratch, Work};
use crate::search::{GraphView, descend, measure_one, sealed, traverse};
use crate::space::{Exact, Space};
use crate::vectors::Vectors;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Inserts by code between two looks at how far codes are off.
const PROBE_EVERY: u32 = 8;
/// Inserts by exact distances after codes were found to tell too little.
const DISTRUST: u32 = 256;
/// Steps down the tree after which any free slot will do.
const LONG_WALK: u64 = 256;
/// Steps after which any slot will do.
const ENDLESS_WALK: u64 = 1 << 16;

/// What a step changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BaseChanges {
    /// The nodes whose rows changed or are new, ascending.
    pub nodes: Vec<u32>,
    /// Their rows, `[nodes, row_words] u32`.
    pub rows: Vec<u32>,
    /// The nodes whose upper links changed or are new, ascending.
    pub upper_nodes: Vec<u32>,
    /// Their upper links: for each, `m` per level from level 1 up, padded with
    /// `u32::MAX`.
    pub upper_links: Vec<u32>,
    /// Where searches start from now on.
    pub entry: Option<u32>,
    /// The top of the spanning tree.
    pub root: Option<u32>,
    /// The nodes whose rows were read, changed or not, ascending.
    pub touched: Vec<u32>,
    /// Nodes that were inserted.
    pub inserted: u32,
}

/// A level-0 row in the write set.
#[derive(Default)]
struct Row {
    links: Vec<Link>,
    changed: bool,
}

/// The write set.
struct Overlay<'a> {
    links: &'a dyn BaseLinks,
    m: usize,
    m0: usize,
    rows: HashMap<u32, Row>,
    /// Upper links of nodes, as [`BaseChanges::upper_links`] has them.
    upper: HashMap<u32, Vec<u32>>,
    entry: Option<u32>,
    root: Option<u32>,
    /// A bit per node that was read.
    touched: Vec<AtomicU64>,
}

/// Inserts nodes into a base; see the head of this file.
pub struct BaseWriter<'a, E> {
    rows: &'a BaseRows<E>,
    step: Step<'a>,
    /// Inserts that are still to be made by exact distances.
    distrust: u32,
    inserted: u32,
}

/// What a step does, whatever the vectors' type.
struct Step<'a> {
    nodes: &'a Nodes,
    overlay: Overlay<'a>,
}

/// Base and write set as one graph.
struct Merged<'v, 'a> {
    nodes: &'v Nodes,
    overlay: &'v Overlay<'a>,
}

impl<'a, E: Element> BaseWriter<'a, E> {
    /// A write set over a version of a base.
    pub fn new(rows: &'a BaseRows<E>, links: &'a dyn BaseLinks) -> Self {
        let params = rows.params();
        let overlay = Overlay {
            links,
            m: params.m.into(),
            m0: params.m0(),
            rows: HashMap::new(),
            upper: HashMap::new(),
            entry: links.entry(),
            root: links.root(),
            touched: (0..rows.end().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        };
        Self { rows, step: Step { nodes: &rows.nodes, overlay }, distrust: 0, inserted: 0 }
    }

    /// Whether the node is in the base or in the write set.
    pub fn has(&self, node: u32) -> bool {
        self.step.overlay.has(node)
    }

    /// Inserts a node, searching from those that its own graph links it to and that
    /// are in the base, or else from the entry point. Returns whether it was added: not if it has no vector
    /// or is there already.
    ///
    /// # Errors
    /// [`GraphError::MissingRow`] for a node that the base's rows do not hold.
    pub fn insert(&mut self, node: u32, scratch: &mut Scratch) -> Result<bool, GraphError> {
        if self.rows.locate(node).is_none() {
            return Err(GraphError::MissingRow { id: node, rows: self.rows.end() });
        }
        let Some(row) = self.rows.row(node).filter(|_| self.step.nodes.is_row(node) && !self.has(node)) else {
            return Ok(false);
        };
        let starts: Vec<u32> = self.step.nodes.own_links(node).into_iter().filter(|&start| self.has(start)).collect();
        let Scratch { isa, query, work } = scratch;
        prepare_row(row.values, row.inv_norm, query);
        let (rows, metric) = (self.rows, self.rows.params().metric);
        if rows.params().codes == Codes::None || self.distrust > 0 {
            self.distrust = self.distrust.saturating_sub(1);
            isa.run(ExactInsert { step: &mut self.step, rows, query, node, starts: &starts, work });
        } else {
            isa.run(CodedInsert { step: &mut self.step, query, node, starts: &starts, work });
            let probe = self.inserted.is_multiple_of(PROBE_EVERY);
            if probe && isa.run(Probe { metric, vectors: rows, query, work }) {
                self.distrust = DISTRUST;
            }
        }
        self.inserted += 1;
        work.settle();
        Ok(true)
    }

    /// Rows in the write set, changed or not: what bounds a step's memory.
    pub fn written(&self) -> usize {
        self.step.overlay.rows.len()
    }

    /// What the step changed.
    pub fn finish(self) -> BaseChanges {
        let Overlay { m0, rows, upper, entry, root, touched, .. } = self.step.overlay;
        let mut changes = BaseChanges { entry, root, inserted: self.inserted, ..BaseChanges::default() };
        let mut changed: Vec<(u32, Row)> = rows.into_iter().filter(|(_, row)| row.changed).collect();
        changed.sort_unstable_by_key(|(node, _)| *node);
        for (node, row) in &changed {
            changes.nodes.push(*node);
            encode_row(&row.links, m0, &mut changes.rows);
        }
        let mut upper: Vec<(u32, Vec<u32>)> = upper.into_iter().collect();
        upper.sort_unstable_by_key(|(node, _)| *node);
        for (node, links) in upper {
            changes.upper_nodes.push(node);
            changes.upper_links.extend(links);
        }
        for (word, bits) in touched.iter().enumerate() {
            let mut bits = bits.load(Relaxed);
            while bits != 0 {
                changes.touched.push(word as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        changes
    }
}

impl Step<'_> {
    /// Links a node in. `work.beam` holds the candidates of level 0 afterwards.
    #[inline(always)]
    fn place<S: Space>(&mut self, space: &S, query: &S::Query, node: u32, starts: &[u32], work: &mut Work) {
        let level = self.nodes.level(node);
        if level > 0 {
            self.overlay.upper.insert(node, vec![NONE; usize::from(level) * self.overlay.m]);
        }
        let Some(entry) = self.overlay.entry else {
            work.beam.reset(1);
            self.overlay.rows.insert(node, Row { links: Vec::new(), changed: true });
            (self.overlay.entry, self.overlay.root) = (Some(node), Some(node));
            return;
        };
        let top = level.min(self.nodes.level(entry));
        self.choose(space, query, entry, top, starts, work);
        let links = work.chosen[0].iter().map(|key| Link::new(key.id(), key.distance())).collect();
        self.overlay.rows.insert(node, Row { links, changed: true });
        self.attach_and_link_back(space, query, node, entry, work);
        let own = level;
        for level in 1..=top {
            let chosen = std::mem::take(&mut work.chosen[usize::from(level)]);
            self.overlay.set_upper(node, own, level, chosen.iter().map(|key| key.id()));
            for key in &chosen {
                self.link_back_above(space, level, node, *key, work);
            }
            work.chosen[usize::from(level)] = chosen;
        }
        if level > self.nodes.level(entry) {
            self.promote(space, query, node);
        }
    }

    /// Makes the node the entry point: all searches start from it, so the tree must
    /// be reached from it.
    #[inline(always)]
    fn promote<S: Space>(&mut self, space: &S, query: &S::Query, node: u32) {
        let root = self.overlay.root.expect("a base with an entry point has a root");
        let link = Link::pinned(root, measure_one(space, query, root));
        self.link_pinned(space, node, link, &mut CodeQuery::default());
        self.overlay.entry = Some(node);
    }

    /// Selects the node's neighbours on the levels from `top` down to 0.
    #[inline(always)]
    fn choose<S: Space>(&mut self, space: &S, query: &S::Query, entry: u32, top: u8, starts: &[u32], work: &mut Work) {
        let view = Merged { nodes: self.nodes, overlay: &self.overlay };
        let (m, wide) = (self.overlay.m, self.nodes.params().ef_construction as usize);
        work.chosen.resize_with(work.chosen.len().max(usize::from(top) + 1), Vec::new);
        let mut from: Vec<Key> = starts.iter().map(|&id| Key::new(measure_one(space, query, id), id)).collect();
        if top > 0 || from.is_empty() {
            let mut start = descend(&view, space, query, entry, top, work);
            for level in (1..=top).rev() {
                traverse(&view, space, query, level, &[start], wide, None, work);
                let candidates = work.beam.keys();
                start = candidates.first().copied().unwrap_or(start);
                select(space, candidates, m, &mut work.held, &mut work.chosen[usize::from(level)]);
            }
            from.push(start);
        }
        let ef = if starts.is_empty() { wide } else { near_width(wide, m) };
        traverse(&view, space, query, 0, &from, ef, None, work);
        select(space, work.beam.keys(), m, &mut work.held, &mut work.chosen[0]);
    }

    /// Level 0: finds the node a parent, then offers it to its other neighbours.
    #[inline(always)]
    fn attach_and_link_back<S: Space>(&mut self, space: &S, query: &S::Query, node: u32, entry: u32, work: &mut Work) {
        let chosen = std::mem::take(&mut work.chosen[0]);
        let mut deferred = std::mem::take(&mut work.deferred);
        deferred.clear();
        let mut parent = None;
        for &key in &chosen {
            if parent.is_none() && !self.overlay.can_pin(key.id(), false) {
                deferred.push(key);
                continue;
            }
            let link = Link { pinned: parent.is_none(), ..Link::new(node, key.distance()) };
            if self.link_back(space, query, key.id(), link, work) && parent.is_none() {
                parent = Some(key.id());
            }
        }
        let parent = match parent {
            Some(parent) => parent,
            None => self.attach(space, query, node, entry, work),
        };
        for key in deferred.iter().filter(|key| key.id() != parent) {
            self.link_back(space, query, key.id(), Link::new(node, key.distance()), work);
        }
        (work.chosen[0], work.deferred) = (chosen, deferred);
    }

    /// Finds a parent for a node that no selected neighbour kept by itself: the
    /// nearest candidate with room for a pin, or one further down the tree, whose
    /// leaves have room.
    #[inline(always)]
    fn attach<S: Space>(&mut self, space: &S, query: &S::Query, node: u32, entry: u32, work: &mut Work) -> u32 {
        let candidates: Vec<Key> = work.beam.keys().to_vec();
        for &key in &candidates {
            if self.overlay.can_pin(key.id(), false) {
                self.link_pinned(space, key.id(), Link::pinned(node, key.distance()), &mut work.held);
                return key.id();
            }
        }
        let root = self.overlay.root.unwrap_or(entry);
        let mut at = candidates.first().map_or(root, |key| key.id());
        for step in 0u64.. {
            // Only a damaged base has a tree that never ends.
            if self.overlay.can_pin(at, step >= LONG_WALK) || step >= ENDLESS_WALK {
                let distance = measure_one(space, query, at);
                self.link_pinned(space, at, Link::pinned(node, distance), &mut work.held);
                return at;
            }
            // An entry point's link to the root leads up, not down.
            let row = &self.overlay.row_mut(at).links;
            let down: Vec<u32> =
                row.iter().filter(|link| link.pinned && ![root, node].contains(&link.id)).map(|link| link.id).collect();
            at = match down.len() {
                0 => root,
                children => down[mix(u64::from(node) << 32 ^ step) as usize % children],
            };
        }
        unreachable!("a walk down a finite tree ends at a leaf")
    }

    /// Adds a link to a row. A full row is pruned by what is known: the distances
    /// from the new node, which its search has measured, and from the row's node.
    /// Returns whether the new link stayed.
    #[inline(always)]
    fn link_back<S: Space>(&mut self, space: &S, query: &S::Query, to: u32, mut new: Link, work: &mut Work) -> bool {
        let m0 = self.overlay.m0;
        let is_full = self.overlay.row_mut(to).links.len() >= m0;
        if !is_full {
            let row = self.overlay.row_mut(to);
            row.links.push(new);
            row.changed = true;
            return true;
        }
        self.measure_row(space, to, &mut work.held);
        let row = self.overlay.row_mut(to);
        let (mut leaving, mut farthest) = (0, None::<(f32, usize)>);
        for (slot, link) in row.links.iter_mut().enumerate() {
            if link.distance <= new.distance {
                if !new.dominated {
                    let apart = work.visited.distance(link.id);
                    new.dominated = apart.unwrap_or_else(|| measure_one(space, query, link.id)) < new.distance;
                }
            } else if !link.dominated {
                let apart = work.visited.distance(link.id);
                link.dominated = apart.unwrap_or_else(|| measure_one(space, query, link.id)) < link.distance;
            }
            leaving += usize::from(link.dominated && !link.pinned);
            if !link.pinned && farthest.is_none_or(|(distance, _)| link.distance > distance) {
                farthest = Some((link.distance, slot));
            }
        }
        match farthest {
            _ if new.dominated => false,
            _ if leaving > 0 => {
                row.links.retain(|link| link.pinned || !link.dominated);
                row.links.push(new);
                row.changed = true;
                true
            }
            Some((distance, slot)) if new.distance < distance => {
                row.links[slot] = new;
                row.changed = true;
                true
            }
            _ => false,
        }
    }

    /// Puts a pinned link into a row whatever it displaces: the farthest link that
    /// is not pinned. The row must have room for one more pin.
    #[inline(always)]
    fn link_pinned<S: Space>(&mut self, space: &S, to: u32, link: Link, held: &mut CodeQuery) {
        let m0 = self.overlay.m0;
        let row = self.overlay.row_mut(to);
        row.changed = true;
        if let Some(there) = row.links.iter_mut().find(|there| there.id == link.id) {
            there.pinned = true;
            return;
        }
        if row.links.len() < m0 {
            row.links.push(link);
            return;
        }
        self.measure_row(space, to, held);
        let row = self.overlay.row_mut(to);
        // Only a damaged base has a row that is pinned throughout.
        let farthest = |a: &&mut Link, b: &&mut Link| {
            (!a.pinned, Key::new(a.distance, 0)).cmp(&(!b.pinned, Key::new(b.distance, 0)))
        };
        if let Some(farthest) = row.links.iter_mut().max_by(farthest) {
            *farthest = link;
        }
    }

    /// Fills in how far a row's links are from its node.
    #[inline(always)]
    fn measure_row<S: Space>(&mut self, space: &S, node: u32, held: &mut CodeQuery) {
        let row = self.overlay.row_mut(node);
        if row.links.iter().all(|link| !link.distance.is_nan()) {
            return;
        }
        let Some(from) = space.row(node) else { return };
        let (mut slots, mut places) = (Vec::with_capacity(row.links.len()), Vec::with_capacity(row.links.len()));
        for (slot, link) in row.links.iter_mut().enumerate().filter(|(_, link)| link.distance.is_nan()) {
            // What has no vector is as far as can be.
            link.distance = f32::MAX;
            if let Some(place) = space.row(link.id) {
                space.prefetch(place);
                slots.push(slot);
                places.push(place);
            }
        }
        space.distances_from(from, &places, held, |at, distance| row.links[slots[at]].distance = distance);
    }

    /// Adds a link to a row above level 0; a full one is selected anew.
    #[inline(always)]
    fn link_back_above<S: Space>(&mut self, space: &S, level: u8, node: u32, to: Key, work: &mut Work) {
        let (mut links, highest) = (Vec::new(), self.nodes.level(to.id()));
        self.overlay.read_upper(level, to.id(), &mut links);
        if links.len() < self.overlay.m {
            links.push(node);
            self.overlay.set_upper(to.id(), highest, level, links.into_iter());
            return;
        }
        let Some(from) = space.row(to.id()) else { return };
        let (mut keys, mut ids, mut places) = (vec![Key::new(to.distance(), node)], Vec::new(), Vec::new());
        for id in links {
            if let Some(place) = space.row(id) {
                ids.push(id);
                places.push(place);
            }
        }
        space.distances_from(from, &places, &mut work.held, |at, distance| keys.push(Key::new(distance, ids[at])));
        keys.sort_unstable();
        let mut chosen = Vec::with_capacity(self.overlay.m);
        select(space, &keys, self.overlay.m, &mut work.held, &mut chosen);
        self.overlay.set_upper(to.id(), highest, level, chosen.iter().map(|key| key.id()));
    }
}

/// Beam width of a search that starts among the node's neighbours. Half of
/// `ef_construction` costs 0.008 of recall@10 on words of GloVe, three quarters
/// 0.003, all of it nothing (decision 0009).
fn near_width(wide: usize, m: usize) -> usize {
    (wide * 3 / 4).max(2 * m).min(wide.max(1))
}

impl Overlay<'_> {
    fn has(&self, node: u32) -> bool {
        self.rows.contains_key(&node) || self.links.has(node)
    }

    fn touch(&self, node: u32) {
        if let Some(word) = self.touched.get(node as usize / 64) {
            // ORDERING: Relaxed; one thread writes, and reads it at the end.
            word.fetch_or(1 << (node % 64), Relaxed);
        }
    }

    /// The node's row, for writing.
    fn row_mut(&mut self, node: u32) -> &mut Row {
        self.touch(node);
        let (links, m0) = (self.links, self.m0);
        self.rows.entry(node).or_insert_with(|| {
            let mut row = Vec::new();
            links.row(node, &mut row);
            Row { links: decode_row(&row, m0), changed: false }
        })
    }

    /// Whether the node's row takes another pinned link, as in a live graph.
    fn can_pin(&mut self, node: u32, urgent: bool) -> bool {
        let limit = if urgent { self.m0 - 1 } else { self.m.max(3) };
        self.row_mut(node).links.iter().filter(|link| link.pinned).count() < limit
    }

    fn read_row(&self, node: u32, out: &mut Vec<u32>) {
        self.touch(node);
        match self.rows.get(&node) {
            Some(row) => out.extend(row.links.iter().map(|link| link.id)),
            None => {
                let from = out.len();
                self.links.row(node, out);
                let end = self.touched.len() as u32 * 64;
                keep_links(out, from, self.m0, end);
            }
        }
    }

    fn read_upper(&self, level: u8, node: u32, out: &mut Vec<u32>) {
        match self.upper.get(&node) {
            Some(links) => {
                let at = (usize::from(level) - 1) * self.m;
                let row = links.get(at..at + self.m).unwrap_or_default();
                out.extend(row.iter().take_while(|id| **id != NONE));
            }
            None => self.links.upper(node, level, out),
        }
    }

    /// Replaces the links of a node, whose level is `highest`, on a level above 0;
    /// at most `m`.
    fn set_upper(&mut self, node: u32, highest: u8, level: u8, ids: impl Iterator<Item = u32>) {
        let (m, base) = (self.m, self.links);
        let links = self.upper.entry(node).or_insert_with(|| {
            let mut links = Vec::new();
            for level in 1..=highest {
                base.upper(node, level, &mut links);
                links.resize(usize::from(level) * m, NONE);
            }
            links
        });
        // A node linked above its own level can only come from a damaged base.
        let at = (usize::from(level) - 1) * m;
        if let Some(row) = links.get_mut(at..at + m) {
            row.fill(NONE);
            row.iter_mut().zip(ids).for_each(|(slot, id)| *slot = id);
        }
    }
}

impl sealed::View for Merged<'_, '_> {
    fn entry_point(&self) -> Option<u32> {
        self.overlay.entry
    }

    fn level(&self, id: u32) -> u8 {
        self.nodes.level(id)
    }

    #[inline(always)]
    fn read_links(&self, level: u8, id: u32, out: &mut Vec<u32>) {
        match level {
            0 => self.overlay.read_row(id, out),
            _ => self.overlay.read_upper(level, id, out),
        }
    }

    fn prefetch_links(&self, _: u32) {}

    fn end(&self) -> u32 {
        self.nodes.end()
    }

    fn is_node(&self, id: u32) -> bool {
        self.overlay.has(id)
    }

    fn encoder(&self) -> Option<&Encoder> {
        sealed::View::encoder(self.nodes)
    }

    #[inline(always)]
    fn code(&self, id: u32) -> Option<&[u8]> {
        sealed::View::code(self.nodes, id)
    }
}

impl GraphView for Merged<'_, '_> {
    fn params(&self) -> &crate::params::Params {
        self.nodes.params()
    }
}

/// An insert that measures by exact distances.
struct ExactInsert<'w, 'a, E> {
    step: &'w mut Step<'a>,
    rows: &'w BaseRows<E>,
    /// The row, as queries are prepared.
    query: &'w [f32],
    node: u32,
    starts: &'w [u32],
    work: &'w mut Work,
}

impl<E: Element> Task for ExactInsert<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Self { step, rows, query, node, starts, work } = self;
        let space = Exact::new(kernel, rows.params().metric, rows);
        step.place(&space, query, node, starts, work);
    }
}

/// An insert that measures by codes alone. It knows nothing of the vectors, so it
/// is compiled once for all types of them.
struct CodedInsert<'w, 'a> {
    step: &'w mut Step<'a>,
    /// The row, as queries are prepared.
    query: &'w [f32],
    node: u32,
    starts: &'w [u32],
    work: &'w mut Work,
}

impl Task for CodedInsert<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        match self.step.nodes.params().codes {
            Codes::Int8 => self.by::<K, Int8>(kernel),
            Codes::Int4 => self.by::<K, Int4>(kernel),
            Codes::None => unreachable!("the base has codes"),
        }
    }
}

impl CodedInsert<'_, '_> {
    #[inline(always)]
    fn by<K: Kernel, C: Code>(self, kernel: K) {
        let Self { step, query, node, starts, work } = self;
        let nodes = step.nodes;
        let encoder = sealed::View::encoder(nodes).expect("the base has codes");
        let mut code_query = std::mem::take(&mut work.code_query);
        encoder.prepare::<C>(encoder.rotate(kernel, query, &mut work.rotated), &mut code_query);
        let space = Coded::<K, C, Nodes>::new(kernel, nodes, encoder);
        step.place(&space, &code_query, node, starts, work);
        work.code_query = code_query;
    }
}
