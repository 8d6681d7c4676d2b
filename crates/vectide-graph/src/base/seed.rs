//! A stored graph as the beginning of a base: its links as they are, and a
//! spanning tree over them; and the order in which a stored graph's rows are best
//! merged into another. Both are one walk over level 0, and hold a few bytes per
//! row.

use super::{encode_row, mark_words};
use crate::error::GraphError;
use crate::freeze::Section;
use crate::links::Link;
use crate::mapped::MappedGraph;
use crate::search::sealed::View;

/// Rows that [`BaseSeed::rows`] gives at a time.
const PIECE_NODES: u32 = 1_024;

/// The rows, upper links and entry point of a base that consists of one stored
/// graph, whose node ids are that graph's row ids.
pub struct BaseSeed<'a> {
    graph: &'a MappedGraph,
    /// Pinned bits, [`mark_words`] per row.
    pins: Vec<u32>,
}

impl<'a> BaseSeed<'a> {
    /// Finds the spanning tree: no node gets more children than half of its links
    /// at first, so that most rows stay free to change, and as many as it takes
    /// where that leaves nodes out.
    ///
    /// # Errors
    /// [`GraphError::Corrupt`] if a node cannot be reached.
    pub fn new(graph: &'a MappedGraph) -> Result<Self, GraphError> {
        let m0 = graph.header().params.m0();
        let words = mark_words(m0);
        let rows = graph.header().rows as usize;
        let mut pins = vec![0u32; rows * words];
        let mut reached = vec![false; rows];
        let mut order = Vec::with_capacity(graph.header().nodes as usize);
        if let Some(entry) = graph.entry_point() {
            reached[entry as usize] = true;
            order.push(entry);
        }
        let mut links = Vec::new();
        for most in [m0 / 4, m0 / 2, m0] {
            let mut at = 0;
            while at < order.len() && order.len() < graph.header().nodes as usize {
                let id = order[at] as usize;
                at += 1;
                links.clear();
                graph.read_links(0, id as u32, &mut links);
                let row = &mut pins[id * words..][..words];
                let mut room = most.saturating_sub(row.iter().map(|w| w.count_ones() as usize).sum());
                for (slot, &link) in links.iter().enumerate() {
                    if room == 0 {
                        break;
                    }
                    if !reached[link as usize] {
                        reached[link as usize] = true;
                        order.push(link);
                        row[slot / 32] |= 1 << (slot % 32);
                        room -= 1;
                    }
                }
            }
        }
        let (found, nodes) = (order.len(), graph.header().nodes as usize);
        if found != nodes {
            let detail = format!("{found} of {nodes} nodes can be reached");
            return Err(GraphError::Corrupt { section: Section::BaseLinks.name(), detail });
        }
        Ok(Self { graph, pins })
    }

    /// Where searches start, and the root of the tree.
    pub fn entry(&self) -> Option<u32> {
        self.graph.entry_point()
    }

    /// All rows, `[rows, row_words] u32`, in pieces; those without a vector are
    /// padding.
    pub fn rows(&self) -> impl Iterator<Item = Vec<u32>> {
        let rows = self.graph.header().rows;
        (0..rows).step_by(PIECE_NODES as usize).map(move |first| {
            let mut piece = Vec::new();
            (first..rows.min(first + PIECE_NODES)).for_each(|id| self.row(id, &mut piece));
            piece
        })
    }

    fn row(&self, id: u32, out: &mut Vec<u32>) {
        let m0 = self.graph.header().params.m0();
        let words = mark_words(m0);
        let pins = &self.pins[id as usize * words..][..words];
        let mut ids = Vec::with_capacity(m0);
        self.graph.read_links(0, id, &mut ids);
        let links: Vec<Link> = (ids.iter().enumerate())
            .map(|(slot, &id)| Link { pinned: pins[slot / 32] >> (slot % 32) & 1 == 1, ..Link::new(id, f32::NAN) })
            .collect();
        encode_row(&links, m0, out);
    }

    /// The nodes above level 0, ascending, and their links: for each, `m` per
    /// level, from level 1 up, padded with `u32::MAX`.
    pub fn upper(&self) -> (Vec<u32>, Vec<u32>) {
        let m = usize::from(self.graph.header().params.m);
        let (mut nodes, mut links) = (Vec::new(), Vec::new());
        for id in (0..self.graph.header().rows).filter(|&id| self.graph.is_node(id)) {
            let level = self.graph.level(id);
            if level > 0 {
                nodes.push(id);
            }
            for level in 1..=level {
                let padded = links.len() + m;
                self.graph.read_links(level, id, &mut links);
                links.resize(padded, u32::MAX);
            }
        }
        (nodes, links)
    }
}

/// The rows of a stored graph in the order of a walk from its entry point, but
/// those that `skip` names: each but the first is linked from one before it, or
/// from one that was skipped. The same for the same graph and `skip`.
pub fn walk_order(graph: &MappedGraph, skip: &dyn Fn(u32) -> bool) -> Vec<u32> {
    let mut reached = vec![false; graph.header().rows as usize];
    let mut order = Vec::with_capacity(graph.header().nodes as usize);
    if let Some(entry) = graph.entry_point() {
        reached[entry as usize] = true;
        order.push(entry);
    }
    let (mut at, mut links) = (0, Vec::new());
    while at < order.len() {
        links.clear();
        graph.read_links(0, order[at], &mut links);
        at += 1;
        for &link in &links {
            if !std::mem::replace(&mut reached[link as usize], true) {
                order.push(link);
            }
        }
    }
    order.retain(|&id| !skip(id));
    order
}
