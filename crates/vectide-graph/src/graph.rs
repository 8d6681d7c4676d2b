//! The live graph: what its parts are, and what can be asked of it at any time.
//! Inserting is in `insert`, searching in `search`, repairing in `repair`,
//! writing it out in `freeze`.

use crate::codes::{CodeStore, Encoder};
use crate::distance::prefetch;
use crate::entry::Entry;
use crate::error::GraphError;
use crate::links::{LinkSegment, RowWriter, node_place, node_span, read_links};
use crate::params::{MAX_LEVEL, Params};
use crate::progress::Progress;
use crate::search::{GraphView, sealed};
use crate::segments::Segments;
use crate::sync::{AtomicU32, Mutex, Ordering};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A concurrent HNSW graph over vectors that it does not own: any number of
/// threads insert and search at the same time. Grows by segments of 64 to 1,024
/// nodes, and holds up to `u32::MAX` nodes.
pub struct Graph {
    pub(crate) params: Params,
    pub(crate) segments: Segments<LinkSegment>,
    /// What encodes rows, and their codes; `None` without codes.
    pub(crate) codes: Option<(Encoder, CodeStore)>,
    pub(crate) entry: Entry,
    /// Held while a node above the entry point's level is inserted.
    pub(crate) raise: Mutex<()>,
    pub(crate) progress: Progress,
    /// One above the highest id that was inserted.
    pub(crate) end: AtomicU32,
    /// Inserts that are still to be made by exact distances (`insert`).
    pub(crate) distrust: AtomicU32,
    bytes: AtomicUsize,
    /// Those of `bytes` that codes take.
    code_bytes: AtomicUsize,
}

impl Graph {
    /// An empty graph.
    ///
    /// # Errors
    /// Those of [`Params::validate`].
    pub fn new(params: Params) -> Result<Self, GraphError> {
        params.validate()?;
        let codes = Encoder::new(&params).map(|encoder| {
            let store = CodeStore::new(encoder.row_bytes());
            (encoder, store)
        });
        let encoder_bytes = codes.as_ref().map_or(0, |(encoder, _)| encoder.heap_bytes());
        Ok(Self {
            params,
            segments: Segments::new(),
            codes,
            entry: Entry::new(),
            raise: Mutex::new(()),
            progress: Progress::new(),
            end: AtomicU32::new(0),
            distrust: AtomicU32::new(0),
            bytes: AtomicUsize::new(size_of::<Self>() + encoder_bytes),
            code_bytes: AtomicUsize::new(0),
        })
    }

    /// What the graph was made with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Nodes in the graph: inserted rows that have a vector.
    pub fn len(&self) -> u32 {
        self.entry.load().len
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether row `id` is a node, that is, has a vector and its insert returned.
    pub fn contains(&self, id: u32) -> bool {
        self.progress.is_linked(id)
    }

    /// The node that searches start from.
    pub fn entry(&self) -> Option<u32> {
        self.entry.load().id
    }

    /// Every row below this id is done: linked, or without a vector. The rows
    /// from here on may or may not be in the graph; they are the tail. Never
    /// falls.
    pub fn prefix(&self) -> u32 {
        self.progress.prefix()
    }

    /// Bytes that the graph takes, exact at rest; one atomic load.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Those of them that compact codes take.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes.load(Relaxed)
    }

    /// Nodes whose highest level is 0, 1, 2, …, as far as there are any. Looks at
    /// every node.
    pub fn level_histogram(&self) -> Vec<u32> {
        let mut histogram = vec![0; usize::from(MAX_LEVEL) + 1];
        for id in self.nodes() {
            histogram[usize::from(sealed::View::level(self, id))] += 1;
        }
        let used = histogram.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        histogram.truncate(used);
        histogram
    }

    /// The ids of all nodes, ascending.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        (0..sealed::View::end(self)).filter(|&id| self.contains(id))
    }

    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn add_code_bytes(&self, bytes: usize) {
        self.add_bytes(bytes);
        self.code_bytes.fetch_add(bytes, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn segment(&self, id: u32) -> Option<&LinkSegment> {
        self.segments.get(node_place(id).number)
    }

    /// The segment of `id`, made if need be.
    pub(crate) fn ensure_segment(&self, id: u32) -> &LinkSegment {
        let number = node_place(id).number;
        self.segments.get_or_make(number, || {
            let ids = node_span(number);
            let segment = LinkSegment::new(&self.params, ids.start as u32, ids.len());
            self.add_bytes(segment.bytes());
            segment
        })
    }

    /// The row of a node that is in the graph, or being inserted, for writing.
    pub(crate) fn lock_row(&self, level: u8, id: u32) -> RowWriter<'_> {
        let segment = self.segment(id).expect("a linked node has a segment");
        segment.lock(level, node_place(id).offset)
    }
}

impl sealed::View for Graph {
    #[inline(always)]
    fn entry_point(&self) -> Option<u32> {
        self.entry.load().id
    }

    #[inline(always)]
    fn level(&self, id: u32) -> u8 {
        self.segment(id).map_or(0, |segment| segment.levels.get(node_place(id).offset))
    }

    #[inline(always)]
    fn read_links(&self, level: u8, id: u32, out: &mut Vec<u32>) {
        let slots = self.segment(id).and_then(|segment| segment.slots(level, node_place(id).offset));
        if let Some(slots) = slots {
            read_links(slots, out);
        }
    }

    #[inline(always)]
    fn prefetch_links(&self, id: u32) {
        if let Some(slots) = self.segment(id).and_then(|segment| segment.slots(0, node_place(id).offset)) {
            for line in slots.chunks(16) {
                prefetch(line.as_ptr());
            }
        }
    }

    fn end(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release in `insert`.
        self.end.load(Ordering::Acquire)
    }

    fn is_node(&self, id: u32) -> bool {
        self.contains(id)
    }

    #[inline(always)]
    fn encoder(&self) -> Option<&Encoder> {
        self.codes.as_ref().map(|(encoder, _)| encoder)
    }

    #[inline(always)]
    fn code(&self, id: u32) -> Option<&[u8]> {
        self.codes.as_ref().and_then(|(_, store)| store.row(id))
    }
}

impl GraphView for Graph {
    fn params(&self) -> &Params {
        &self.params
    }
}
