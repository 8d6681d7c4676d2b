//! One version of one column's links: which version wrote each node's row, where that row lies, and the upper levels.
//!
//! `base` makes the next version from the one before and a step's changes; searches and merges read through it, by way of
//! the node cache. Versions share what did not change, in runs of [`RUN_NODES`] nodes. Invariant: a version never changes,
//! and every row that it names lies in a file that it holds open.

use super::format::{Header, LinksFile};
use super::node_cache::Space;
use crate::error::Result;
use std::collections::HashMap;
use std::sync::Arc;
use vectide_graph::{BaseChanges, BaseLinks, Params, row_words};

/// Nodes whose versions, and whose upper links, are copied together.
const RUN_NODES: u32 = 1_024;
/// The version of a node that has no row.
const NEVER: u32 = u32::MAX;

/// What versions share of their files.
#[derive(Clone)]
pub(super) struct Files {
    /// Holds all rows up to version `folded`; `None` if the base began empty and was never folded.
    pub(super) file: Option<Arc<LinksFile>>,
    pub(super) folded: u32,
    /// The rows that version `folded + 1 + n` wrote.
    pub(super) deltas: Vec<Arc<LinksFile>>,
}

/// The upper links of the nodes of a run.
type UpperRun = HashMap<u32, Arc<[u32]>>;

/// See the module's description.
#[derive(Clone)]
pub(crate) struct Links {
    column: usize,
    m: usize,
    row_words: usize,
    space: Arc<Space>,
    files: Files,
    /// By node: the version that wrote its row last.
    written: Vec<Arc<[u32]>>,
    upper: Vec<Arc<UpperRun>>,
    entry: Option<u32>,
    root: Option<u32>,
    nodes: u64,
}

impl Links {
    /// A base without nodes.
    pub(super) fn empty(column: usize, params: &Params, space: Arc<Space>) -> Self {
        Self {
            column,
            m: params.m.into(),
            row_words: row_words(params),
            space,
            files: Files { file: None, folded: 0, deltas: Vec::new() },
            written: Vec::new(),
            upper: Vec::new(),
            entry: None,
            root: None,
            nodes: 0,
        }
    }

    /// The version that `files` end at, with an empty cache. `level` gives a node's level. Costs a pass over the nodes that
    /// the files list, not over their rows.
    ///
    /// # Errors
    /// `Corrupt` for upper links of the wrong length.
    pub(super) fn open(mut self, files: Files, level: &dyn Fn(u32) -> u8) -> Result<Self> {
        self.files = files.clone();
        if let Some(file) = &files.file {
            self.take(file, files.folded, level)?;
        }
        for (delta, version) in files.deltas.iter().zip(files.folded + 1..) {
            self.take(delta, version, level)?;
        }
        Ok(self)
    }

    fn take(&mut self, file: &LinksFile, version: u32, level: &dyn Fn(u32) -> u8) -> Result<()> {
        let links = &file.columns[self.column];
        links.nodes().for_each(|node| self.set_written(node, version));
        let upper = links.upper(level);
        let upper = upper.ok_or_else(|| file.file.corrupt("its upper links do not fit their nodes' levels"))?;
        upper.into_iter().for_each(|(node, links)| self.set_upper(node, links.into()));
        (self.entry, self.root) = (links.header.entry, links.header.root);
        Ok(())
    }

    /// The version after this one: `file` is the delta that holds `changes`. Rows go into the cache if `publish`.
    pub(super) fn after(&self, changes: &BaseChanges, file: Arc<LinksFile>, level: &dyn Fn(u32) -> u8) -> Self {
        let mut next = self.clone();
        next.files.deltas.push(file);
        let version = next.version();
        changes.nodes.iter().for_each(|&node| next.set_written(node, version));
        let mut left = &changes.upper_links[..];
        for &node in &changes.upper_nodes {
            let (own, rest) = left.split_at((usize::from(level(node)) * self.m).min(left.len()));
            next.set_upper(node, own.into());
            left = rest;
        }
        (next.entry, next.root) = (changes.entry, changes.root);
        next
    }

    /// This version over files in which the same rows lie elsewhere.
    pub(super) fn over(&self, files: Files) -> Self {
        Self { files, ..self.clone() }
    }

    fn version(&self) -> u32 {
        self.files.folded + self.files.deltas.len() as u32
    }

    fn set_written(&mut self, node: u32, version: u32) {
        let run = (node / RUN_NODES) as usize;
        while self.written.len() <= run {
            self.written.push(vec![NEVER; RUN_NODES as usize].into());
        }
        let slot = &mut Arc::make_mut(&mut self.written[run])[(node % RUN_NODES) as usize];
        self.nodes += u64::from(*slot == NEVER);
        *slot = version;
    }

    fn set_upper(&mut self, node: u32, links: Arc<[u32]>) {
        let run = (node / RUN_NODES) as usize;
        if self.upper.len() <= run {
            self.upper.resize_with(run + 1, Arc::default);
        }
        Arc::make_mut(&mut self.upper[run]).insert(node, links);
    }

    fn written(&self, node: u32) -> Option<u32> {
        let version = *self.written.get((node / RUN_NODES) as usize)?.get((node % RUN_NODES) as usize)?;
        (version != NEVER).then_some(version)
    }

    /// Appends the row that `version` wrote, from its file.
    pub(super) fn load(&self, node: u32, version: u32, out: &mut Vec<u32>) {
        let file = match version.checked_sub(self.files.folded + 1) {
            None => self.files.file.as_ref(),
            Some(at) => self.files.deltas.get(at as usize),
        };
        if let Some(file) = file {
            file.columns[self.column].row(node, out);
        }
    }

    /// Nodes that have a row.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Where rows are kept in memory.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Heap bytes of the version itself: what it shares with others is counted with each.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let written = self.written.len() * RUN_NODES as usize * 4;
        let upper: usize =
            self.upper.iter().map(|run| run.values().map(|links| 48 + 4 * links.len()).sum::<usize>()).sum();
        (written + upper) as u64
    }

    /// All that a base file needs to hold: the rows of the ids below `end`.
    pub(super) fn whole(&self, end: u32, m: u16) -> super::format::Whole<'_> {
        let mut upper: Vec<(u32, &Arc<[u32]>)> =
            self.upper.iter().flat_map(|run| run.iter().map(|(node, links)| (*node, links))).collect();
        upper.sort_unstable_by_key(|(node, _)| *node);
        let upper_nodes: Vec<u32> = upper.iter().map(|(node, _)| *node).collect();
        let upper_links = upper.iter().flat_map(|(_, links)| links.iter().copied()).collect();
        let header =
            Header { m, entry: self.entry, root: self.root, nodes: end, upper_nodes: upper_nodes.len() as u32 };
        let rows = (0..end).step_by(RUN_NODES as usize).map(move |first| {
            let mut piece = Vec::new();
            for node in first..end.min(first + RUN_NODES) {
                let from = piece.len();
                if let Some(version) = self.written(node) {
                    self.load(node, version, &mut piece);
                }
                piece.resize(from + self.row_words, u32::MAX);
            }
            piece
        });
        let present = super::format::bits(end, |node| self.has(node));
        super::format::Whole { header, present, rows: Box::new(rows), upper: (upper_nodes, upper_links) }
    }
}

impl BaseLinks for Links {
    fn row(&self, node: u32, out: &mut Vec<u32>) {
        if let Some(version) = self.written(node) {
            self.space.read(node, version, out, |out| self.load(node, version, out));
        }
    }

    fn upper(&self, node: u32, level: u8, out: &mut Vec<u32>) {
        let links = self.upper.get((node / RUN_NODES) as usize).and_then(|run| run.get(&node));
        let at = (usize::from(level).saturating_sub(1)) * self.m;
        let row = links.and_then(|links| links.get(at..at + self.m)).unwrap_or_default();
        out.extend(row.iter().take_while(|id| **id != u32::MAX));
    }

    fn has(&self, node: u32) -> bool {
        self.written(node).is_some()
    }

    fn entry(&self) -> Option<u32> {
        self.entry
    }

    fn root(&self) -> Option<u32> {
        self.root
    }
}
