//! Where links live: rows of ids at a fixed stride, written under a node's lock,
//! read by anyone at any time.
//!
//! **What a reader may rely on.** A row is a prefix of ids padded with [`NONE`].
//! Writers change single slots: append at the end, overwrite a slot, or remove
//! by moving the last link into the gap and clearing its old slot afterwards.
//! Readers walk the slots from the last to the first. So a link that stays in
//! the row is never missed, though it may be seen twice: when the reader finds
//! its old slot cleared or reused, the move to the lower slot has happened
//! before, and is seen. A seen id is always a node whose own links and vector
//! were written before.

use crate::levels::Levels;
use crate::link_distance::{decode, encode};
use crate::params::Params;
use crate::segments::{Place, place, span};
use crate::sync::{AtomicU16, AtomicU32, Ordering, pause};
use std::ops::Range;

/// No link: pads a row. No row has this id.
pub(crate) const NONE: u32 = u32::MAX;

/// Nodes of the first segment, and of the largest. 64 keep a table of one row at
/// 14 KiB for m = 16; 1,024 keep the overshoot of a table of 10,000 rows below 3%.
const FIRST_NODES: usize = if cfg!(loom) { 4 } else { 64 };
const MOST_NODES: usize = if cfg!(loom) { 4 } else { 1_024 };

/// The segment of a node, and the node's place in it.
#[inline(always)]
pub(crate) fn node_place(id: u32) -> Place {
    place::<FIRST_NODES, MOST_NODES>(id)
}

/// The ids of a segment. All segments begin at multiples of 64.
pub(crate) fn node_span(segment: usize) -> Range<usize> {
    span::<FIRST_NODES, MOST_NODES>(segment)
}

/// The links of the nodes of one segment, on all levels, and their locks.
pub(crate) struct LinkSegment {
    m: usize,
    signed: bool,
    pub(crate) levels: Levels,
    base: Rows,
    /// One bit per slot of a level-0 row: [`Link::pinned`], in the first words of
    /// a row, then [`Link::dominated`].
    marks: Box<[AtomicU32]>,
    upper: Rows,
    /// One bit per node.
    locks: Box<[AtomicU32]>,
}

/// Rows of `stride` slots.
struct Rows {
    stride: usize,
    ids: Lines,
    distances: Box<[AtomicU16]>,
}

impl Rows {
    fn new(rows: usize, stride: usize) -> Self {
        let slots = rows * stride;
        Self { stride, ids: Lines::filled(slots, NONE), distances: (0..slots).map(|_| AtomicU16::new(0)).collect() }
    }

    #[inline(always)]
    fn ids(&self, row: usize) -> &[AtomicU32] {
        &self.ids.slots()[row * self.stride..][..self.stride]
    }

    fn heap_bytes(&self) -> usize {
        self.ids.heap_bytes() + size_of_val(&*self.distances)
    }
}

/// One link, as its node's writer sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    pub(crate) id: u32,
    /// From the row's node, rounded (`link_distance`).
    pub(crate) distance: f32,
    /// An edge of the spanning tree (`insert`): never dropped.
    pub(crate) pinned: bool,
    /// A nearer neighbour of the row's node was nearer to this one than the node
    /// is (`neighbors`). Only level 0 keeps it.
    pub(crate) dominated: bool,
}

impl Link {
    /// A link that is neither pinned nor dominated.
    pub(crate) fn new(id: u32, distance: f32) -> Self {
        Self { id, distance, pinned: false, dominated: false }
    }

    /// An edge of the spanning tree.
    pub(crate) fn pinned(id: u32, distance: f32) -> Self {
        Self { pinned: true, ..Self::new(id, distance) }
    }
}

impl LinkSegment {
    /// An empty segment of `nodes` ids from `first` on.
    pub(crate) fn new(params: &Params, first: u32, nodes: usize) -> Self {
        let levels = Levels::draw(params, first, nodes);
        let mark_words = 2 * nodes * params.m0().div_ceil(32);
        let zeros = |words: usize| (0..words).map(|_| AtomicU32::new(0)).collect();
        Self {
            m: params.m.into(),
            signed: params.metric.is_signed(),
            base: Rows::new(nodes, params.m0()),
            marks: zeros(mark_words),
            upper: Rows::new(levels.rows(), params.m.into()),
            locks: zeros(nodes.div_ceil(32)),
            levels,
        }
    }

    /// Bytes on the heap, this value included.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.levels.heap_bytes()
            + self.base.heap_bytes()
            + size_of_val(&*self.marks)
            + self.upper.heap_bytes()
            + size_of_val(&*self.locks)
    }

    /// The slots of a node's row on a level; `None` above the node's own level.
    #[inline(always)]
    pub(crate) fn slots(&self, level: u8, node: usize) -> Option<&[AtomicU32]> {
        if level == 0 {
            return Some(self.base.ids(node));
        }
        (level <= self.levels.get(node)).then(|| self.upper.ids(self.levels.row(node, level)))
    }

    /// A node's row on a level, for writing, once its lock is free. The node's
    /// level must reach that high.
    pub(crate) fn lock(&self, level: u8, node: usize) -> RowWriter<'_> {
        let (rows, row, (pins, dominated)) = if level == 0 {
            let words = self.base.stride.div_ceil(32);
            (&self.base, node, self.marks[2 * node * words..][..2 * words].split_at(words))
        } else {
            (&self.upper, self.levels.row(node, level), (&[][..], &[][..]))
        };
        RowWriter {
            ids: rows.ids(row),
            distances: &rows.distances[row * rows.stride..][..rows.stride],
            pins,
            dominated,
            pin_limit: self.m.max(3),
            signed: self.signed,
            _guard: NodeGuard::take(&self.locks[node / 32], 1 << (node % 32)),
        }
    }
}

/// Copies a row's links to `out`, in no order, each at least once.
#[inline(always)]
pub(crate) fn read_links(slots: &[AtomicU32], out: &mut Vec<u32>) {
    let before = out.len();
    let mut used = before;
    out.resize(before + slots.len(), NONE);
    for slot in slots.iter().rev() {
        // ORDERING: Acquire pairs with the Release stores of RowWriter: the
        // link's node is seen whole, and so is a move that cleared this slot.
        let id = slot.load(Ordering::Acquire);
        out[used] = id;
        used += usize::from(id != NONE);
    }
    out.truncate(used);
}

/// A node's lock: one bit, spun on. Held for a few microseconds at most, never
/// while another node's is held.
struct NodeGuard<'a> {
    word: &'a AtomicU32,
    bit: u32,
}

impl<'a> NodeGuard<'a> {
    fn take(word: &'a AtomicU32, bit: u32) -> Self {
        let mut round = 0;
        // ORDERING: Acquire pairs with the Release in `drop`: this writer sees
        // what the last one did.
        while word.fetch_or(bit, Ordering::Acquire) & bit != 0 {
            // ORDERING: Relaxed; only looks for a gap.
            while word.load(Ordering::Relaxed) & bit != 0 {
                pause(round);
                round += 1;
            }
        }
        Self { word, bit }
    }
}

impl Drop for NodeGuard<'_> {
    fn drop(&mut self) {
        // ORDERING: Release pairs with the Acquire in `take`.
        self.word.fetch_and(!self.bit, Ordering::Release);
    }
}

/// A node's row, locked. Distances and pins are touched only here.
pub(crate) struct RowWriter<'a> {
    ids: &'a [AtomicU32],
    distances: &'a [AtomicU16],
    /// Empty above level 0, as is `dominated`.
    pins: &'a [AtomicU32],
    dominated: &'a [AtomicU32],
    pin_limit: usize,
    signed: bool,
    _guard: NodeGuard<'a>,
}

// ORDERING: every access below that is Relaxed is to a word that only the holder
// of the node's lock touches, or reads back what a lock holder wrote.
impl RowWriter<'_> {
    pub(crate) fn capacity(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn len(&self) -> usize {
        let used = |slot: &&AtomicU32| slot.load(Ordering::Relaxed) != NONE;
        self.ids.iter().take_while(used).count()
    }

    pub(crate) fn get(&self, slot: usize) -> Link {
        Link {
            id: self.ids[slot].load(Ordering::Relaxed),
            distance: decode(self.distances[slot].load(Ordering::Relaxed), self.signed),
            pinned: is_marked(self.pins, slot),
            dominated: is_marked(self.dominated, slot),
        }
    }

    pub(crate) fn position(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|slot| slot.load(Ordering::Relaxed) == id)
    }

    /// The row's links, as they were when this was called.
    pub(crate) fn links(&self) -> impl Iterator<Item = Link> {
        (0..self.len()).map(|slot| self.get(slot))
    }

    /// Whether the row takes another pinned link. Half of its slots may be
    /// pinned, so that the other half is left to be chosen for quality, but at
    /// least three, or the tree would be a path. When it is urgent, all but one,
    /// which the node's own parent may still need.
    pub(crate) fn can_pin(&self, urgent: bool) -> bool {
        let pinned: u32 = self.pins.iter().map(|w| w.load(Ordering::Relaxed).count_ones()).sum();
        let limit = if urgent { self.capacity() - 1 } else { self.pin_limit };
        (pinned as usize) < limit
    }

    /// Adds a link; there must be room.
    pub(crate) fn push(&self, link: Link) {
        let slot = self.len();
        self.set(slot, link);
    }

    /// Replaces the link in a slot at or below the row's length.
    pub(crate) fn set(&self, slot: usize, link: Link) {
        self.distances[slot].store(encode(link.distance, self.signed), Ordering::Relaxed);
        self.set_pinned(slot, link.pinned);
        self.set_dominated(slot, link.dominated);
        // ORDERING: Release pairs with the Acquire in `read_links`.
        self.ids[slot].store(link.id, Ordering::Release);
    }

    /// Keeps only the links whose `keep` is set; `keep` is by slot.
    pub(crate) fn retain(&self, keep: &[bool]) {
        let mut last = self.len();
        // From the end, so that what is moved down is always kept.
        for slot in (0..last).rev().filter(|&slot| !keep[slot]) {
            last -= 1;
            if slot != last {
                self.distances[slot].store(self.distances[last].load(Ordering::Relaxed), Ordering::Relaxed);
                self.set_pinned(slot, is_marked(self.pins, last));
                self.set_dominated(slot, is_marked(self.dominated, last));
                let moved = self.ids[last].load(Ordering::Relaxed);
                // ORDERING: Release, before the old slot is cleared: see the
                // top of this file.
                self.ids[slot].store(moved, Ordering::Release);
            }
            self.set_pinned(last, false);
            self.set_dominated(last, false);
            // ORDERING: Release pairs with the Acquire in `read_links`: who sees
            // the slot cleared sees the move above.
            self.ids[last].store(NONE, Ordering::Release);
        }
    }

    pub(crate) fn set_pinned(&self, slot: usize, pinned: bool) {
        debug_assert!(!pinned || !self.pins.is_empty(), "only level 0 has pins");
        mark(self.pins, slot, pinned);
    }

    pub(crate) fn set_dominated(&self, slot: usize, dominated: bool) {
        mark(self.dominated, slot, dominated);
    }
}

// ORDERING: Relaxed, as above: marks are read and written under the node's lock.
fn mark(words: &[AtomicU32], slot: usize, set: bool) {
    if let Some(word) = words.get(slot / 32) {
        let bit = 1 << (slot % 32);
        let old = word.load(Ordering::Relaxed);
        word.store(if set { old | bit } else { old & !bit }, Ordering::Relaxed);
    }
}

// ORDERING: as `mark`.
fn is_marked(words: &[AtomicU32], slot: usize) -> bool {
    let word = words.get(slot / 32).map_or(0, |w| w.load(Ordering::Relaxed));
    word >> (slot % 32) & 1 == 1
}

/// Slots in whole cache lines, so that a row of 16 or 32 ids begins on one.
struct Lines {
    #[cfg(not(loom))]
    lines: Box<[Line]>,
    #[cfg(loom)]
    lines: Box<[AtomicU32]>,
    slots: usize,
}

#[cfg(not(loom))]
#[repr(C, align(64))]
struct Line([AtomicU32; 16]);

impl Lines {
    #[cfg(not(loom))]
    fn filled(slots: usize, value: u32) -> Self {
        let line = || Line(std::array::from_fn(|_| AtomicU32::new(value)));
        Self { lines: (0..slots.div_ceil(16)).map(|_| line()).collect(), slots }
    }

    #[cfg(loom)]
    fn filled(slots: usize, value: u32) -> Self {
        Self { lines: (0..slots).map(|_| AtomicU32::new(value)).collect(), slots }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn slots(&self) -> &[AtomicU32] {
        // SAFETY: a Line is its 16 atomics and nothing else (repr(C), 64 bytes),
        // so the lines are `16 * lines.len()` atomics in a row, and `slots` is
        // not more than that.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.slots) }
    }

    #[cfg(loom)]
    fn slots(&self) -> &[AtomicU32] {
        &self.lines[..self.slots]
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }
}
