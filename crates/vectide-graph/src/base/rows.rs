//! The rows of several stored graphs under one range of ids: node = the part's
//! first node + row. Parts begin at multiples of [`PAGE_NODES`], so that one look
//! at a table says which part an id belongs to.

use crate::codes::Encoder;
use crate::distance::Element;
use crate::error::GraphError;
use crate::mapped::MappedGraph;
use crate::params::Params;
use crate::search::{GraphView, sealed};
use crate::vectors::{ChunkedVectors, VectorRow, Vectors};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Ids per entry of the table of parts.
const PAGE_NODES: u32 = 64;

/// A stored graph, from node `first` on.
#[derive(Clone)]
struct Part {
    first: u32,
    graph: Arc<MappedGraph>,
}

/// Codes and levels of a base's nodes, whatever their vectors' type.
#[derive(Clone)]
pub(super) struct Nodes {
    params: Params,
    encoder: Option<Arc<Encoder>>,
    parts: Vec<Part>,
    /// The part of each [`PAGE_NODES`] ids.
    pages: Vec<u32>,
    end: u32,
    /// Links that led nowhere.
    pub(super) bad_links: Arc<AtomicU64>,
}

/// Vectors, codes and levels of a base's nodes. Immutable; [`BaseRows::with_part`]
/// makes a longer one that shares everything.
pub struct BaseRows<E> {
    pub(super) nodes: Nodes,
    /// By part.
    vectors: Vec<Arc<ChunkedVectors<E>>>,
}

impl<E: Element> BaseRows<E> {
    /// No rows yet.
    ///
    /// # Errors
    /// Those of [`Params::validate`].
    pub fn new(params: Params) -> Result<Self, GraphError> {
        params.validate()?;
        let encoder = Encoder::new(&params).map(Arc::new);
        let nodes = Nodes { params, encoder, parts: Vec::new(), pages: Vec::new(), end: 0, bad_links: Arc::default() };
        Ok(Self { nodes, vectors: Vec::new() })
    }

    /// These rows, and another graph's behind them. Costs a look-up table's copy.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] for a graph of other settings (seed and
    /// `ef_construction` may differ) or with other vectors, [`GraphError::Full`]
    /// if ids run out.
    pub fn with_part(&self, graph: Arc<MappedGraph>, vectors: Arc<ChunkedVectors<E>>) -> Result<Self, GraphError> {
        let (theirs, rows) = (graph.header().params, graph.header().rows);
        let comparable = |p: &Params| (p.dim, p.metric, p.m, p.codes);
        if comparable(&theirs) != comparable(self.params()) {
            let said = |p: &Params| format!("dimension {}, {:?}, m {}, codes {}", p.dim, p.metric, p.m, p.codes.name());
            let (expected, got) = (said(self.params()), said(&theirs));
            return Err(GraphError::Mismatch { what: "a graph to be adopted", expected, got });
        }
        if vectors.len() != rows || vectors.dim() != theirs.dim as usize {
            let said = |rows: u32, dim: usize| format!("{rows} rows of dimension {dim}");
            let (expected, got) = (said(rows, theirs.dim as usize), said(vectors.len(), vectors.dim()));
            return Err(GraphError::Mismatch { what: "the vectors of a graph to be adopted", expected, got });
        }
        let first = self.next_first();
        let end = first.checked_add(rows).filter(|end| *end < u32::MAX - PAGE_NODES).ok_or(GraphError::Full)?;
        let mut longer = Self { nodes: self.nodes.clone(), vectors: self.vectors.clone() };
        let number = longer.nodes.parts.len() as u32;
        longer.nodes.pages.resize(end.div_ceil(PAGE_NODES) as usize, number);
        longer.nodes.parts.push(Part { first, graph });
        longer.nodes.end = end;
        longer.vectors.push(vectors);
        Ok(longer)
    }

    /// The first node of the next part.
    pub fn next_first(&self) -> u32 {
        self.nodes.end.next_multiple_of(PAGE_NODES)
    }

    /// Ids are below this one. Not every id below is a row.
    pub fn end(&self) -> u32 {
        self.nodes.end
    }

    /// What the base's graph is built with.
    pub fn params(&self) -> &Params {
        &self.nodes.params
    }

    /// Links that searches met and passed over because they lead nowhere: damage.
    pub fn bad_links(&self) -> u64 {
        self.nodes.bad_links.load(Relaxed)
    }

    /// The level of a node; 0 for an id that is none.
    pub fn level(&self, node: u32) -> u8 {
        self.nodes.level(node)
    }

    /// The number of the part that a node belongs to, and its row there; the row
    /// may lie behind the part's last one.
    #[inline]
    pub fn locate(&self, node: u32) -> Option<(usize, u32)> {
        self.nodes.locate(node)
    }
}

impl Nodes {
    pub(super) fn params(&self) -> &Params {
        &self.params
    }

    pub(super) fn end(&self) -> u32 {
        self.end
    }

    pub(super) fn level(&self, node: u32) -> u8 {
        self.part(node).map_or(0, |(part, row)| sealed::View::level(&*part.graph, row))
    }

    /// Whether the node's row has a vector.
    pub(super) fn is_row(&self, node: u32) -> bool {
        self.part(node).is_some_and(|(part, row)| sealed::View::is_node(&*part.graph, row))
    }

    /// The nodes that the node's own graph links it to.
    pub(super) fn own_links(&self, node: u32) -> Vec<u32> {
        let mut links = Vec::new();
        if let Some((part, row)) = self.part(node) {
            sealed::View::read_links(&*part.graph, 0, row, &mut links);
            links.iter_mut().for_each(|link| *link += part.first);
        }
        links
    }

    #[inline(always)]
    fn locate(&self, node: u32) -> Option<(usize, u32)> {
        let number = *self.pages.get((node / PAGE_NODES) as usize)? as usize;
        Some((number, node - self.parts.get(number)?.first))
    }

    #[inline(always)]
    fn part(&self, node: u32) -> Option<(&Part, u32)> {
        let (number, row) = self.locate(node)?;
        Some((self.parts.get(number)?, row))
    }
}

impl<E: Element> Vectors for BaseRows<E> {
    type Elem = E;

    fn dim(&self) -> usize {
        self.params().dim as usize
    }

    fn len(&self) -> u32 {
        self.end()
    }

    #[inline(always)]
    fn row(&self, id: u32) -> Option<VectorRow<'_, E>> {
        let (number, row) = self.locate(id)?;
        self.vectors.get(number)?.row(row)
    }
}

/// As a graph, it has codes and levels and no links: what distances between nodes
/// are measured through while links change.
impl sealed::View for Nodes {
    fn entry_point(&self) -> Option<u32> {
        None
    }

    fn level(&self, id: u32) -> u8 {
        Nodes::level(self, id)
    }

    fn read_links(&self, _: u8, _: u32, _: &mut Vec<u32>) {}

    fn prefetch_links(&self, _: u32) {}

    fn end(&self) -> u32 {
        self.end
    }

    fn is_node(&self, id: u32) -> bool {
        self.is_row(id)
    }

    #[inline(always)]
    fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_deref()
    }

    #[inline(always)]
    fn code(&self, id: u32) -> Option<&[u8]> {
        let (part, row) = self.part(id)?;
        sealed::View::code(&*part.graph, row)
    }
}

impl GraphView for Nodes {
    fn params(&self) -> &Params {
        &self.params
    }
}
