//! One version of a base as something to search and to check.

use super::rows::{BaseRows, Nodes};
use super::{BaseLinks, decode_row, row_words};
use crate::codes::Encoder;
use crate::distance::Element;
use crate::error::GraphError;
use crate::links::NONE;
use crate::params::Params;
use crate::repair::unreachable;
use crate::search::{GraphView, sealed};
use std::sync::atomic::Ordering::Relaxed;

/// Rows and links together. Every link is checked before it is followed; a bad one
/// is passed over and counted ([`BaseRows::bad_links`]).
pub struct BaseGraph<'a> {
    nodes: &'a Nodes,
    links: &'a dyn BaseLinks,
}

impl<'a> BaseGraph<'a> {
    /// Puts them together.
    pub fn new<E: Element>(rows: &'a BaseRows<E>, links: &'a dyn BaseLinks) -> Self {
        Self { nodes: &rows.nodes, links }
    }

    /// Checks every row: that links lead to other nodes, once, that there are no
    /// gaps, that upper links lead to nodes of that level, and that every node can
    /// be reached from the entry point on level 0. Returns the number of nodes.
    ///
    /// # Errors
    /// [`GraphError::Corrupt`] with the node of the first damage.
    pub fn verify(&self) -> Result<u32, GraphError> {
        let corrupt = |detail: String| GraphError::Corrupt { section: "base rows", detail };
        let mut nodes = 0;
        for node in (0..self.nodes.end()).filter(|&node| self.links.has(node)) {
            self.verify_node(node).map_err(|detail| corrupt(format!("node {node}: {detail}")))?;
            nodes += 1;
        }
        match self.links.entry() {
            Some(entry) if !self.links.has(entry) => return Err(corrupt(format!("entry point {entry} is no node"))),
            None if nodes > 0 => return Err(corrupt(format!("{nodes} nodes and no entry point"))),
            _ => {}
        }
        let lost = unreachable(self);
        match lost.first() {
            Some(first) => Err(corrupt(format!("{} nodes cannot be reached, the first is {first}", lost.len()))),
            None => Ok(nodes),
        }
    }

    fn verify_node(&self, node: u32) -> Result<(), String> {
        if !self.nodes.is_row(node) {
            return Err("it has a row of links and no vector".to_owned());
        }
        let m0 = self.nodes.params().m0();
        let mut row = Vec::new();
        self.links.row(node, &mut row);
        if row.len() != row_words(self.nodes.params()) {
            return Err(format!("a row of {} words", row.len()));
        }
        let links: Vec<u32> = decode_row(&row, m0).iter().map(|link| link.id).collect();
        if row[links.len()..m0].iter().any(|id| *id != NONE) {
            return Err("a link after the end of the row".to_owned());
        }
        self.verify_links(node, 0, links)?;
        for level in 1..=self.nodes.level(node) {
            let mut links = Vec::new();
            self.links.upper(node, level, &mut links);
            self.verify_links(node, level, links)?;
        }
        Ok(())
    }

    fn verify_links(&self, node: u32, level: u8, mut links: Vec<u32>) -> Result<(), String> {
        let stands = |link: u32| link != node && self.links.has(link) && self.nodes.level(link) >= level;
        if let Some(link) = links.iter().find(|&&link| !stands(link)) {
            return Err(format!("level {level}: a link to {link}"));
        }
        links.sort_unstable();
        match links.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("level {level}: two links to {}", pair[0])),
            None => Ok(()),
        }
    }
}

/// Cuts a row that was appended at `from` down to its links, all of them below
/// `end`; returns how many led nowhere.
#[inline(always)]
pub(super) fn keep_links(out: &mut Vec<u32>, from: usize, m0: usize, end: u32) -> u64 {
    let to = out.len().min(from + m0);
    let (mut used, mut bad) = (from, 0);
    for at in from..to {
        let id = out[at];
        if id == NONE {
            break;
        }
        out[used] = id;
        used += usize::from(id < end);
        bad += u64::from(id >= end);
    }
    out.truncate(used);
    bad
}

impl sealed::View for BaseGraph<'_> {
    fn entry_point(&self) -> Option<u32> {
        self.links.entry()
    }

    fn level(&self, id: u32) -> u8 {
        self.nodes.level(id)
    }

    #[inline(always)]
    fn read_links(&self, level: u8, id: u32, out: &mut Vec<u32>) {
        let from = out.len();
        let most = if level == 0 {
            self.links.row(id, out);
            self.nodes.params().m0()
        } else {
            self.links.upper(id, level, out);
            self.nodes.params().m.into()
        };
        let bad = keep_links(out, from, most, self.nodes.end());
        if bad > 0 {
            self.nodes.bad_links.fetch_add(bad, Relaxed);
        }
    }

    fn prefetch_links(&self, _: u32) {}

    fn end(&self) -> u32 {
        self.nodes.end()
    }

    fn is_node(&self, id: u32) -> bool {
        self.links.has(id)
    }

    #[inline(always)]
    fn encoder(&self) -> Option<&Encoder> {
        sealed::View::encoder(self.nodes)
    }

    #[inline(always)]
    fn code(&self, id: u32) -> Option<&[u8]> {
        sealed::View::code(self.nodes, id)
    }
}

impl GraphView for BaseGraph<'_> {
    fn params(&self) -> &Params {
        self.nodes.params()
    }
}
