//! The base: one graph over the rows of many stored graphs, whose links are read
//! through a trait and changed in write sets (decision 0009).
//!
//! In: stored graphs with their vectors ([`BaseRows`]), and somebody who keeps
//! links ([`BaseLinks`]). Out: searches ([`BaseGraph`]), and for each step of a
//! merge what it changed ([`BaseWriter`]). The engine calls it; here is no I/O.
//!
//! **A row** is `m0` links, padded with `u32::MAX`, then a bit per link that says
//! whether it is pinned, in whole words, then likewise whether it is dominated.
//! Pinned links are a spanning tree from the root down, and no pruning drops one.
//! Every other entry point than the root has a pinned link to the root. So every
//! node is reachable after every step.

mod rows;
mod seed;
mod view;
mod writer;

pub use rows::BaseRows;
pub use seed::{BaseSeed, walk_order};
pub use view::BaseGraph;
pub use writer::{BaseChanges, BaseWriter};

use crate::links::{Link, NONE};
use crate::params::Params;

/// Level-0 rows and upper levels by node id, as of one version. Whoever
/// implements it may do I/O; a node that it does not know has no links.
pub trait BaseLinks: Send + Sync {
    /// Appends the node's row, [`row_words`] long; nothing if there is none.
    fn row(&self, node: u32, out: &mut Vec<u32>);

    /// Appends the node's links on a level above 0.
    fn upper(&self, node: u32, level: u8, out: &mut Vec<u32>);

    /// Whether the node has a row: whether it was inserted. No I/O.
    fn has(&self, node: u32) -> bool;

    /// Where searches start; `None` in an empty base.
    fn entry(&self) -> Option<u32>;

    /// The top of the spanning tree; `None` in an empty base.
    fn root(&self) -> Option<u32>;
}

/// The links of an empty base.
pub struct NoLinks;

impl BaseLinks for NoLinks {
    fn row(&self, _: u32, _: &mut Vec<u32>) {}

    fn upper(&self, _: u32, _: u8, _: &mut Vec<u32>) {}

    fn has(&self, _: u32) -> bool {
        false
    }

    fn entry(&self) -> Option<u32> {
        None
    }

    fn root(&self) -> Option<u32> {
        None
    }
}

/// Words of a row: links and two bits for each.
pub fn row_words(params: &Params) -> usize {
    params.m0() + 2 * mark_words(params.m0())
}

/// Words that hold one bit per link.
fn mark_words(m0: usize) -> usize {
    m0.div_ceil(32)
}

/// Appends a row.
fn encode_row(links: &[Link], m0: usize, out: &mut Vec<u32>) {
    let from = out.len();
    let words = mark_words(m0);
    out.resize(from + m0 + 2 * words, 0);
    let (ids, marks) = out[from..].split_at_mut(m0);
    let (pinned, dominated) = marks.split_at_mut(words);
    ids.fill(NONE);
    for (slot, link) in links.iter().enumerate() {
        ids[slot] = link.id;
        pinned[slot / 32] |= u32::from(link.pinned) << (slot % 32);
        dominated[slot / 32] |= u32::from(link.dominated) << (slot % 32);
    }
}

/// The links of a row, their distances not known. Nothing for a row of another
/// length.
fn decode_row(row: &[u32], m0: usize) -> Vec<Link> {
    let words = mark_words(m0);
    if row.len() != m0 + 2 * words {
        return Vec::new();
    }
    let (ids, marks) = row.split_at(m0);
    let (pinned, dominated) = marks.split_at(words);
    let is_set = |bits: &[u32], slot: usize| bits[slot / 32] >> (slot % 32) & 1 == 1;
    let used = ids.iter().take_while(|id| **id != NONE).enumerate();
    used.map(|(slot, &id)| Link {
        id,
        distance: f32::NAN,
        pinned: is_set(pinned, slot),
        dominated: is_set(dominated, slot),
    })
    .collect()
}
