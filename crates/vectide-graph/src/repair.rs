//! Reachability: which nodes a walk over level 0 cannot reach from the entry
//! point, and linking those in again.
//!
//! A live graph has none (see `insert`); a walk is still made before a graph is
//! sealed, and a merge that takes nodes away relies on it.

use crate::distance::{Kernel, Task};
use crate::graph::Graph;
use crate::links::Link;
use crate::neighbors::link_pinned;
use crate::query::prepare_row;
use crate::scratch::{Scratch, Work};
use crate::search::{GraphView, descend, traverse};
use crate::space::{Exact, Space};
use crate::vectors::Vectors;

/// What [`Graph::repair`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepairReport {
    /// Nodes in the graph.
    pub nodes: u32,
    /// Nodes that could not be reached when it began.
    pub unreachable: u32,
    /// Nodes that were linked in.
    pub linked: u32,
}

/// The nodes that level-0 links do not lead to from the entry point, ascending.
/// Walks the whole graph; exact only while nothing is inserted.
pub fn unreachable(graph: &impl GraphView) -> Vec<u32> {
    let mut reached = Reached::new(graph.end());
    if let Some(entry) = graph.entry_point() {
        reached.walk(graph, entry);
    }
    (0..graph.end()).filter(|&id| graph.is_node(id) && !reached.contains(id)).collect()
}

/// The nodes that a walk has reached: one bit per id.
struct Reached {
    bits: Vec<u64>,
    pending: Vec<u32>,
    links: Vec<u32>,
}

impl Reached {
    fn new(end: u32) -> Self {
        let bits = vec![0; (end as usize).div_ceil(64)];
        Self { bits, pending: Vec::new(), links: Vec::new() }
    }

    fn contains(&self, id: u32) -> bool {
        self.bits.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Adds a node; false if it was there or is out of range.
    fn add(&mut self, id: u32) -> bool {
        let bit = 1 << (id % 64);
        match self.bits.get_mut(id as usize / 64) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }

    /// Reaches everything that can be reached from `from`.
    fn walk(&mut self, graph: &impl GraphView, from: u32) {
        if self.add(from) {
            self.pending.push(from);
        }
        while let Some(id) = self.pending.pop() {
            let mut links = std::mem::take(&mut self.links);
            links.clear();
            graph.read_links(0, id, &mut links);
            for &link in &links {
                if self.add(link) {
                    self.pending.push(link);
                }
            }
            self.links = links;
        }
    }
}

impl Graph {
    /// The nodes that level-0 links do not lead to from the entry point: none,
    /// unless something is wrong. Exact only while nothing is inserted.
    pub fn unreachable(&self) -> Vec<u32> {
        unreachable(self)
    }

    /// Links every unreachable node to a reachable one near it, in both
    /// directions. To be called while nothing is inserted; searches may run.
    /// Costs a walk over all links, and about a search per node found.
    pub fn repair<V: Vectors>(&self, vectors: &V, scratch: &mut Scratch) -> RepairReport {
        let mut report = RepairReport { nodes: self.len(), ..RepairReport::default() };
        let Some(entry) = self.entry() else {
            return report;
        };
        // Attaching a node may displace a link that another depended on; such a
        // node is attached in the next round, and attached nodes stay attached.
        for round in 0.. {
            let lost = self.unreachable();
            if round == 0 {
                report.unreachable = lost.len() as u32;
            }
            if lost.is_empty() {
                break;
            }
            let mut reached = Reached::new(self.prefix().max(lost[lost.len() - 1] + 1));
            reached.walk(self, entry);
            for id in lost {
                let row = vectors.row(id);
                if let Some(row) = row.filter(|_| !reached.contains(id)) {
                    let Scratch { isa, query, work } = &mut *scratch;
                    prepare_row(row.values, row.inv_norm, query);
                    isa.run(Reattach { graph: self, vectors, query, id, entry, reached: &reached, work });
                    reached.walk(self, id);
                    report.linked += 1;
                }
            }
        }
        report
    }
}

struct Reattach<'a, V> {
    graph: &'a Graph,
    vectors: &'a V,
    query: &'a [f32],
    id: u32,
    entry: u32,
    reached: &'a Reached,
    work: &'a mut Work,
}

impl<V: Vectors> Task for Reattach<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Self { graph, vectors, query, id, entry, reached, work } = self;
        let space = Exact::new(kernel, graph.params.metric, vectors);
        reattach(graph, &space, query, id, entry, reached, work);
    }
}

/// Pins `id` to a node near it that a walk from the entry point meets. Only such
/// a one will do: by the upper levels, a search comes to lost nodes too, and a
/// node that is pinned to those stays lost.
#[inline(always)]
fn reattach<S: Space>(
    graph: &Graph,
    space: &S,
    query: &S::Query,
    id: u32,
    entry: u32,
    reached: &Reached,
    work: &mut Work,
) {
    let ef = graph.params.ef_construction as usize;
    let start = descend(graph, space, query, entry, 0, work);
    let accept = |id| reached.contains(id);
    traverse(graph, space, query, 0, &[start], ef, Some(&accept), work);
    let parent = graph.attach(space, query, id, entry, work);
    link_pinned(&graph.lock_row(0, id), Link::pinned(parent.id(), parent.distance()));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::params::{Metric, Params, mix};
    use crate::vectors::{VectorBlock, VectorTable};

    #[test]
    fn nodes_that_lost_every_link_to_them_are_linked_in_again() {
        let dim = 6;
        let values: Vec<f32> = (0..600 * dim as u64).map(|i| (mix(i) >> 40) as f32).collect();
        let table = VectorTable::new(dim, Metric::L2).expect("a dimension");
        let block = VectorBlock::copied(values, dim, Metric::L2, None).expect("whole rows");
        table.append(block).expect("room");
        let graph = Graph::new(Params { m: 4, ..Params::new(dim, Metric::L2) }).expect("valid");
        let mut scratch = Scratch::new();
        for id in 0..600 {
            graph.insert(&table, id, &mut scratch).expect("a row");
        }
        assert_eq!(graph.unreachable(), []);

        // Cut the rows 100 to 199 off, pinned or not, as a merge would that takes
        // the nodes around them away; among themselves they stay linked.
        let entry = graph.entry().expect("nodes");
        let cut = |id: u32| (100..200).contains(&id) && id != entry;
        for id in (0..600).filter(|&id| !cut(id)) {
            let row = graph.lock_row(0, id);
            let keep: Vec<bool> = row.links().map(|link| !cut(link.id)).collect();
            row.retain(&keep);
        }
        let lost = graph.unreachable();
        assert!(lost.len() >= 99, "{}", lost.len());

        let report = graph.repair(&table, &mut scratch);
        assert_eq!((report.nodes, report.unreachable), (600, lost.len() as u32));
        assert!(report.linked >= 1 && report.linked <= report.unreachable);
        assert_eq!(graph.unreachable(), []);
        assert_eq!(graph.repair(&table, &mut scratch).unreachable, 0);
    }
}
