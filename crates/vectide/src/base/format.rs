//! Files of links on their way out and back: base files and deltas.
//!
//! `table/merging` writes one with every step and `base` opens them; drawn in docs/format.md. Both kinds are Arrow files of
//! sections, five for each vector column: a header, the nodes, their rows of links, the nodes above level 0 and their
//! upper links. A base file has a bit per node where a delta lists them. Opening checks lengths and orders, and looks at no
//! row. Invariant: no bytes make a reader panic; a row that is not there is empty.

use crate::error::Result;
use crate::segment::{ArrowFile, SectionEncoder, Sections};
use arrow::buffer::{Buffer, MutableBuffer, ScalarBuffer};
use vectide_graph::{BaseChanges, BaseSeed, Params, row_words};

/// What a base file says it is.
pub(crate) const BASE_PART: &str = "base";
/// What a delta says it is.
pub(crate) const DELTA_PART: &str = "delta";

const HEADER_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"vtlinks\0";
const VERSION: u16 = 1;
const NONE: u32 = u32::MAX;

/// What a column's sections say about themselves: magic `vtlinks\0`, format u16 = 1, m u16, entry point u32, root u32 (both
/// `u32::MAX` in an empty base), nodes u32 (of a base file: ids, present or not), nodes above level 0 u32, 0 u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) m: u16,
    pub(crate) entry: Option<u32>,
    pub(crate) root: Option<u32>,
    pub(crate) nodes: u32,
    pub(crate) upper_nodes: u32,
}

impl Header {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.m.to_le_bytes());
        for word in [self.entry.unwrap_or(NONE), self.root.unwrap_or(NONE), self.nodes, self.upper_nodes, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn read(file: &ArrowFile, bytes: &[u8]) -> Result<Self> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>().filter(|bytes| bytes[..8] == MAGIC) else {
            return Err(file.corrupt("a header of links is malformed"));
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (version, m) = (word(8) as u16, (word(8) >> 16) as u16);
        if version != VERSION {
            return Err(file.corrupt(format!("links of format {version}, this reads {VERSION}")));
        }
        let id = |word: u32| (word != NONE).then_some(word);
        Ok(Self { m, entry: id(word(12)), root: id(word(16)), nodes: word(20), upper_nodes: word(24) })
    }
}

/// The sections of one column.
pub(crate) struct ColumnLinks {
    pub(crate) header: Header,
    nodes: Nodes,
    rows: ScalarBuffer<u8>,
    upper_nodes: ScalarBuffer<u8>,
    upper_links: ScalarBuffer<u8>,
    row_words: usize,
}

enum Nodes {
    /// One row per id; a bit says whether it is one.
    All(ScalarBuffer<u8>),
    /// Ascending ids.
    Listed(ScalarBuffer<u8>),
}

/// The word at `at` in words.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.as_chunks::<4>().0.get(at).map(|bytes| u32::from_le_bytes(*bytes))
}

impl ColumnLinks {
    fn open(file: &ArrowFile, column: usize, params: &Params, sections: &mut Sections<'_>) -> Result<Self> {
        let header = Header::read(file, &sections.take(&section(HEADER, column))?)?;
        if header.m != params.m {
            return Err(file.corrupt(format!("column {column} has links for m {}, expected {}", header.m, params.m)));
        }
        let (count, upper, row_words) = (header.nodes as usize, header.upper_nodes as usize, row_words(params));
        let nodes = match file.part() {
            Some(BASE_PART) => Nodes::All(sections.take_exact(&section(PRESENT, column), count.div_ceil(8))?),
            _ => Nodes::Listed(sections.take_exact(&section(NODES, column), 4 * count)?),
        };
        let links = Self {
            header,
            nodes,
            rows: sections.take_exact(&section(ROWS, column), 4 * row_words * count)?,
            upper_nodes: sections.take_exact(&section(UPPER_NODES, column), 4 * upper)?,
            upper_links: sections.take(&section(UPPER_LINKS, column))?,
            row_words,
        };
        if let Nodes::Listed(ids) = &links.nodes {
            let ascending = ascends(ids);
            ascending.then_some(()).ok_or_else(|| file.corrupt(format!("column {column}: its nodes do not ascend")))?;
        }
        if !ascends(&links.upper_nodes) {
            return Err(file.corrupt(format!("column {column}: its upper nodes do not ascend")));
        }
        Ok(links)
    }

    /// Appends the node's row; nothing if the file has none.
    pub(crate) fn row(&self, node: u32, out: &mut Vec<u32>) {
        let at = match &self.nodes {
            Nodes::All(_) => Some(node as usize),
            Nodes::Listed(ids) => find(ids, node),
        };
        let bytes = self.row_words * 4;
        let row = at.and_then(|at| self.rows.get(at * bytes..(at + 1) * bytes)).unwrap_or_default();
        out.extend(row.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
    }

    /// The nodes that have a row.
    pub(crate) fn nodes(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match &self.nodes {
            Nodes::All(bits) => {
                Box::new((0..self.header.nodes).filter(|&node| bits[node as usize / 8] >> (node % 8) & 1 == 1))
            }
            Nodes::Listed(ids) => Box::new((0..self.header.nodes as usize).filter_map(|at| word(ids, at))),
        }
    }

    /// The nodes above level 0 with their upper links, given each node's level; `None` if the lengths disagree.
    pub(crate) fn upper(&self, level: impl Fn(u32) -> u8) -> Option<Vec<(u32, Vec<u32>)>> {
        let mut left: &[u8] = &self.upper_links;
        let mut upper = Vec::with_capacity(self.header.upper_nodes as usize);
        for at in 0..self.header.upper_nodes as usize {
            let node = word(&self.upper_nodes, at)?;
            let (own, rest) = left.split_at_checked(4 * usize::from(level(node)) * usize::from(self.header.m))?;
            left = rest;
            upper.push((node, own.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()));
        }
        left.is_empty().then_some(upper)
    }
}

fn ascends(ids: &[u8]) -> bool {
    ids.as_chunks::<4>().0.windows(2).all(|pair| u32::from_le_bytes(pair[0]) < u32::from_le_bytes(pair[1]))
}

fn find(ids: &[u8], node: u32) -> Option<usize> {
    ids.as_chunks::<4>().0.binary_search_by_key(&node, |bytes| u32::from_le_bytes(*bytes)).ok()
}

/// A base file or delta, mapped.
pub(crate) struct LinksFile {
    pub(crate) file: ArrowFile,
    /// By vector column.
    pub(crate) columns: Vec<ColumnLinks>,
}

impl LinksFile {
    /// Opens a mapped file for vector columns of these settings.
    ///
    /// # Errors
    /// `Corrupt` naming the file and what is wrong; `Invalid` if a newer Vectide wrote it.
    pub(crate) fn open(file: ArrowFile, params: &[Params]) -> Result<Self> {
        let mut sections = file.sections()?;
        let columns: Result<Vec<_>> = (params.iter().enumerate())
            .map(|(column, params)| ColumnLinks::open(&file, column, params, &mut sections))
            .collect();
        let columns = columns?;
        drop(sections);
        Ok(Self { file, columns })
    }
}

const HEADER: &str = "header";
const PRESENT: &str = "present";
const NODES: &str = "nodes";
const ROWS: &str = "rows";
const UPPER_NODES: &str = "upper_nodes";
const UPPER_LINKS: &str = "upper_links";

fn section(name: &str, column: usize) -> String {
    format!("{name}-{column}")
}

fn words(words: &[u32]) -> Buffer {
    let mut bytes = MutableBuffer::with_capacity(4 * words.len());
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes.into()
}

/// Writes what a step changed in one column.
pub(crate) fn write_changes(out: &mut SectionEncoder, column: usize, m: u16, changes: &BaseChanges) -> Result<()> {
    let (nodes, upper_nodes) = (changes.nodes.len() as u32, changes.upper_nodes.len() as u32);
    let header = Header { m, entry: changes.entry, root: changes.root, nodes, upper_nodes };
    out.section(&section(HEADER, column), header.to_bytes().into())?;
    out.section(&section(NODES, column), words(&changes.nodes))?;
    out.section(&section(ROWS, column), words(&changes.rows))?;
    out.section(&section(UPPER_NODES, column), words(&changes.upper_nodes))?;
    out.section(&section(UPPER_LINKS, column), words(&changes.upper_links))
}

/// All rows of one column, as a base file holds them.
pub(crate) struct Whole<'a> {
    pub(crate) header: Header,
    /// A bit per id.
    pub(crate) present: Vec<u8>,
    /// The rows of all ids, in pieces.
    pub(crate) rows: Box<dyn Iterator<Item = Vec<u32>> + 'a>,
    pub(crate) upper: (Vec<u32>, Vec<u32>),
}

impl<'a> Whole<'a> {
    /// A stored graph's links. `is_node` says which of the `rows` rows have a vector.
    pub(crate) fn of_seed(seed: &'a BaseSeed<'a>, m: u16, rows: u32, is_node: impl Fn(u32) -> bool) -> Self {
        let upper = seed.upper();
        let (entry, upper_nodes) = (seed.entry(), upper.0.len() as u32);
        let header = Header { m, entry, root: entry, nodes: rows, upper_nodes };
        Self { header, present: bits(rows, is_node), rows: Box::new(seed.rows()), upper }
    }
}

/// A bit for each of `count` ids.
pub(crate) fn bits(count: u32, is_set: impl Fn(u32) -> bool) -> Vec<u8> {
    let mut bits = vec![0; count.div_ceil(8) as usize];
    (0..count).filter(|&id| is_set(id)).for_each(|id| bits[id as usize / 8] |= 1 << (id % 8));
    bits
}

/// Writes one column of a base file. Holds its rows for a moment.
pub(crate) fn write_whole(out: &mut SectionEncoder, column: usize, row_words: usize, whole: Whole<'_>) -> Result<()> {
    let Whole { header, present, rows, upper } = whole;
    out.section(&section(HEADER, column), header.to_bytes().into())?;
    out.section(&section(PRESENT, column), present.into())?;
    let mut bytes = MutableBuffer::with_capacity(header.nodes as usize * row_words * 4);
    rows.for_each(|piece| piece.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes())));
    out.section(&section(ROWS, column), bytes.into())?;
    out.section(&section(UPPER_NODES, column), words(&upper.0))?;
    out.section(&section(UPPER_LINKS, column), words(&upper.1))
}
