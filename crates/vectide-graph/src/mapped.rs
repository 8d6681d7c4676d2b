//! A stored graph, searched where it lies: in a mapped file or a buffer.
//!
//! Opening checks lengths, nothing per row. So a damaged link is met in the
//! middle of a search, where every link is checked before it is followed: a bad
//! one is passed over and counted. [`MappedGraph::verify`] checks everything.
//! No bytes, however wrong, make a search panic or run on.

use crate::codes::Encoder;
use crate::distance::prefetch;
use crate::error::GraphError;
use crate::freeze::{FrozenHeader, Section};
use crate::levels::{ABSENT, RANK_NODES, level_of, upper_rows};
use crate::links::NONE;
use crate::params::{MAX_LEVEL, Params};
use crate::repair::unreachable;
use crate::search::{GraphView, sealed};
use crate::shared::Shared;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The sections of a stored graph, in memory that their owners keep.
pub struct GraphSections {
    base_links: Shared<u8>,
    levels: Shared<u8>,
    upper_starts: Shared<u8>,
    upper_links: Shared<u8>,
    codes: Option<Shared<u8>>,
}

impl GraphSections {
    /// The sections as [`Frozen::chunks`](crate::Frozen::chunks) gave them, at any
    /// alignment. (The inverse norms belong to the vectors.)
    pub fn new(
        base_links: impl AsRef<[u8]> + Send + Sync + 'static,
        levels: impl AsRef<[u8]> + Send + Sync + 'static,
        upper_starts: impl AsRef<[u8]> + Send + Sync + 'static,
        upper_links: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Self {
        Self {
            base_links: Shared::new(base_links),
            levels: Shared::new(levels),
            upper_starts: Shared::new(upper_starts),
            upper_links: Shared::new(upper_links),
            codes: None,
        }
    }

    /// Adds the section of codes; a graph that was built with codes needs it.
    pub fn with_codes(self, codes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self { codes: Some(Shared::new(codes)), ..self }
    }
}

/// An immutable graph over stored bytes.
pub struct MappedGraph {
    header: FrozenHeader,
    sections: GraphSections,
    encoder: Option<Encoder>,
    row_bytes: usize,
    bad_links: AtomicU64,
}

impl MappedGraph {
    /// Opens a graph. Checks the header and the sections' lengths; costs the same
    /// for any size.
    ///
    /// # Errors
    /// [`GraphError::Corrupt`] for a section of another length than the header
    /// implies, naming it.
    pub fn open(header: FrozenHeader, sections: GraphSections) -> Result<Self, GraphError> {
        // The fields are public: check again what `from_bytes` checks.
        let header = FrozenHeader::from_bytes(&header.to_bytes())?;
        let none = Shared::new([]);
        for (section, bytes) in [
            (Section::BaseLinks, &sections.base_links),
            (Section::Levels, &sections.levels),
            (Section::UpperStarts, &sections.upper_starts),
            (Section::UpperLinks, &sections.upper_links),
            (Section::Codes, sections.codes.as_ref().unwrap_or(&none)),
        ] {
            let expected = section.len(&header);
            if bytes.len() as u64 != expected {
                let detail = format!("{} bytes, expected {expected}", bytes.len());
                return Err(GraphError::Corrupt { section: section.name(), detail });
            }
        }
        let encoder = Encoder::new(&header.params);
        let row_bytes = encoder.as_ref().map_or(0, Encoder::row_bytes);
        Ok(Self { header, sections, encoder, row_bytes, bad_links: AtomicU64::new(0) })
    }

    /// What the graph says about itself.
    pub fn header(&self) -> &FrozenHeader {
        &self.header
    }

    /// Links that searches met and passed over because they lead nowhere. More
    /// than 0 means damage.
    pub fn bad_links(&self) -> u64 {
        self.bad_links.load(Relaxed)
    }

    /// The nodes that level-0 links do not lead to from the entry point.
    pub fn unreachable(&self) -> Vec<u32> {
        unreachable(self)
    }

    /// Checks every byte: levels and their counts, that every link leads to
    /// another node of the same level, once, that no row has gaps, that the entry
    /// point is among the highest, and that every node can be reached on level 0.
    ///
    /// # Errors
    /// [`GraphError::Corrupt`] with section and row of the first damage.
    pub fn verify(&self) -> Result<(), GraphError> {
        self.verify_levels()?;
        for id in 0..self.header.rows {
            let level = level_of(self.level_byte(id));
            for level in 0..=level {
                self.verify_row(id, level)?;
            }
        }
        let lost = self.unreachable();
        if let Some(first) = lost.first() {
            let detail = format!("{} nodes cannot be reached, the first is {first}", lost.len());
            return Err(corrupt(Section::BaseLinks, detail));
        }
        Ok(())
    }

    fn verify_levels(&self) -> Result<(), GraphError> {
        let (mut rows, mut nodes, mut highest) = (0, 0, 0);
        for (run, bytes) in self.sections.levels.chunks(RANK_NODES).enumerate() {
            let start = read_u32(&self.sections.upper_starts, run);
            if start != Some(rows) {
                let detail = format!("run {run} starts at {start:?}, expected {rows}");
                return Err(corrupt(Section::UpperStarts, detail));
            }
            for (byte, id) in bytes.iter().zip(run * RANK_NODES..) {
                if byte & !(ABSENT | MAX_LEVEL) != 0 {
                    return Err(corrupt(Section::Levels, format!("row {id} has level {byte:#x}")));
                }
                if byte & ABSENT == 0 {
                    nodes += 1;
                    highest = highest.max(*byte);
                }
            }
            rows += upper_rows(bytes) as u32;
        }
        let FrozenHeader { entry, nodes: expected, upper_rows, .. } = self.header;
        if (rows, nodes) != (upper_rows, expected) {
            let detail = format!("{nodes} nodes and {rows} upper rows, expected {expected} and {upper_rows}");
            return Err(corrupt(Section::Levels, detail));
        }
        match entry {
            Some(id) if self.level_byte(id) != highest => {
                let detail = format!("entry point {id} is not on the highest level, {highest}");
                Err(corrupt(Section::Levels, detail))
            }
            _ => Ok(()),
        }
    }

    fn verify_row(&self, id: u32, level: u8) -> Result<(), GraphError> {
        let section = if level == 0 { Section::BaseLinks } else { Section::UpperLinks };
        let wrong = |detail: String| Err(corrupt(section, format!("row {id}, level {level}: {detail}")));
        let Some(row) = self.row(level, id) else {
            return wrong("lies outside".to_owned());
        };
        let mut links: Vec<u32> = ids(row).collect();
        let used = links.iter().position(|link| *link == NONE).unwrap_or(links.len());
        if links.split_off(used).iter().any(|link| *link != NONE) {
            return wrong("a link after the end of the row".to_owned());
        }
        if self.level_byte(id) & ABSENT != 0 && used > 0 {
            return wrong(format!("{used} links, but no vector"));
        }
        let stands = |link: u32| sealed::View::is_node(self, link) && self.level_byte(link) >= level;
        if let Some(link) = links.iter().find(|&&link| link == id || !stands(link)) {
            return wrong(format!("a link to {link}"));
        }
        links.sort_unstable();
        match links.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => wrong(format!("two links to {}", pair[0])),
            None => Ok(()),
        }
    }

    /// The level byte of a row; that of an absent row for an id out of range.
    #[inline(always)]
    fn level_byte(&self, id: u32) -> u8 {
        self.sections.levels.get(id as usize).copied().unwrap_or(ABSENT)
    }

    /// The bytes of a row of links, if it lies within its section.
    #[inline(always)]
    fn row(&self, level: u8, id: u32) -> Option<&[u8]> {
        let m = usize::from(self.header.params.m);
        if level == 0 {
            let stride = 2 * m * 4;
            let at = id as usize * stride;
            return self.sections.base_links.get(at..at + stride);
        }
        if level > level_of(self.level_byte(id)) {
            return None;
        }
        let run = id as usize / RANK_NODES;
        let start = read_u32(&self.sections.upper_starts, run)? as usize;
        let before = self.sections.levels.get(run * RANK_NODES..id as usize)?;
        let at = (start + upper_rows(before) + usize::from(level) - 1) * m * 4;
        self.sections.upper_links.get(at..at + m * 4)
    }
}

fn corrupt(section: Section, detail: String) -> GraphError {
    GraphError::Corrupt { section: section.name(), detail }
}

#[inline(always)]
fn ids(row: &[u8]) -> impl Iterator<Item = u32> {
    row.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

#[inline(always)]
fn read_u32(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.as_chunks::<4>().0.get(index).map(|bytes| u32::from_le_bytes(*bytes))
}

impl sealed::View for MappedGraph {
    #[inline(always)]
    fn entry_point(&self) -> Option<u32> {
        self.header.entry
    }

    #[inline(always)]
    fn level(&self, id: u32) -> u8 {
        level_of(self.level_byte(id))
    }

    #[inline(always)]
    fn read_links(&self, level: u8, id: u32, out: &mut Vec<u32>) {
        let Some(row) = self.row(level, id) else {
            self.bad_links.fetch_add(1, Relaxed);
            return;
        };
        let rows = self.header.rows;
        let mut bad = 0;
        out.extend(ids(row).take_while(|id| *id != NONE).filter(|&id| {
            bad += u64::from(id >= rows);
            id < rows
        }));
        if bad > 0 {
            self.bad_links.fetch_add(bad, Relaxed);
        }
    }

    #[inline(always)]
    fn prefetch_links(&self, id: u32) {
        for line in self.row(0, id).unwrap_or_default().chunks(64) {
            prefetch(line.as_ptr());
        }
    }

    fn end(&self) -> u32 {
        self.header.rows
    }

    fn is_node(&self, id: u32) -> bool {
        self.level_byte(id) & ABSENT == 0
    }

    fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_ref()
    }

    #[inline(always)]
    fn code(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize * self.row_bytes;
        self.sections.codes.as_ref()?.get(at..at + self.row_bytes)
    }
}

impl GraphView for MappedGraph {
    fn params(&self) -> &Params {
        &self.header.params
    }
}
