//! The levels of a run of nodes, and where each node's upper rows lie: node by
//! node, one row per level above 0. A byte per node and a count per 64 nodes
//! answer that; live segments and stored graphs use the same arithmetic.

use crate::params::{MAX_LEVEL, Params};

/// Nodes per count of upper rows.
pub(crate) const RANK_NODES: usize = 64;

/// In a stored level byte: there is no node (the row has no vector).
pub(crate) const ABSENT: u8 = 0x80;

/// The level in a level byte, whatever its other bits say.
#[inline(always)]
pub(crate) fn level_of(byte: u8) -> u8 {
    byte & MAX_LEVEL
}

/// Upper rows of the nodes in `bytes`.
#[inline(always)]
pub(crate) fn upper_rows(bytes: &[u8]) -> usize {
    bytes.iter().map(|&byte| usize::from(level_of(byte))).sum()
}

/// The levels of the nodes of one live segment.
pub(crate) struct Levels {
    bytes: Box<[u8]>,
    /// Upper rows before each run of [`RANK_NODES`] nodes.
    starts: Box<[u32]>,
    rows: usize,
}

impl Levels {
    /// Draws the levels of the ids from `first` on.
    pub(crate) fn draw(params: &Params, first: u32, nodes: usize) -> Self {
        // Ids past u32::MAX do not exist; their slots are never reached.
        let bytes: Box<[u8]> = (0..nodes as u32).map(|i| params.level(first.saturating_add(i))).collect();
        let mut rows = 0;
        let starts = bytes
            .chunks(RANK_NODES)
            .map(|run| {
                let start = rows as u32;
                rows += upper_rows(run);
                start
            })
            .collect();
        Self { bytes, starts, rows }
    }

    pub(crate) fn get(&self, node: usize) -> u8 {
        self.bytes[node]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Upper rows of all nodes.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The row of `node` on `level`, which is 1 to the node's own.
    #[inline(always)]
    pub(crate) fn row(&self, node: usize, level: u8) -> usize {
        let run = node / RANK_NODES;
        let before = upper_rows(&self.bytes[run * RANK_NODES..node]);
        self.starts[run] as usize + before + usize::from(level) - 1
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.bytes) + size_of_val(&*self.starts)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::params::Metric;

    #[test]
    fn every_upper_row_belongs_to_one_node_and_level() {
        let params = Params { m: 3, seed: 5, ..Params::new(4, Metric::L2) };
        let levels = Levels::draw(&params, 4_096, 1_024);
        let mut expected = 0;
        for node in 0..1_024 {
            assert_eq!(levels.get(node), params.level(4_096 + node as u32));
            for level in 1..=levels.get(node) {
                assert_eq!(levels.row(node, level), expected);
                expected += 1;
            }
        }
        assert_eq!(levels.rows(), expected);
        assert!(expected > 300, "m = 3 gives about 512 upper rows, got {expected}");
    }
}
