//! Writing a sealed graph out: its links as they are, in a few flat sections
//! that [`MappedGraph`](crate::MappedGraph) opens without touching a row.
//! Flush calls this; nothing is rebuilt, and never more than one segment's worth
//! of bytes is held.
//!
//! All integers are little-endian. With `n` rows (ids below `n`, null rows
//! included):
//!
//! | section | bytes | what |
//! |---|---|---|
//! | header | 64 | [`FrozenHeader`] |
//! | base links | `n * m0 * 4` | `[n, m0] u32`: level-0 links, padded with `u32::MAX` |
//! | levels | `n` | a node's level; `0x80` set where the row has no vector |
//! | upper starts | `ceil(n / 64) * 4` | `u32`: upper rows before each 64 ids |
//! | upper links | `upper_rows * m * 4` | `[upper_rows, m] u32`: the links of levels 1, 2, …, by id, then by level, padded with `u32::MAX` |
//! | inverse norms | `n * 4`, or 0 | `[n] f32` under cosine: `1 / |v|`, 0 where null |
//! | codes | `n * row_bytes`, or 0 | the rows' compact codes, zeros where null |

use crate::codes::Codes;
use crate::error::GraphError;
use crate::graph::Graph;
use crate::levels::{ABSENT, RANK_NODES, level_of, upper_rows};
use crate::links::{LinkSegment, NONE, node_span};
use crate::params::{Metric, Params};
use crate::search::sealed::View;
use crate::sync::{AtomicU32, Ordering};
use crate::vectors::Vectors;

/// Length of an encoded [`FrozenHeader`].
pub const HEADER_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"vtgraph\0";
const VERSION: u16 = 1;

/// What a stored graph says about itself.
///
/// 64 bytes: magic `vtgraph\0`, version u16 = 1, metric u8, 0 u8, m u16, 0 u16,
/// dim u32, ef_construction u32, seed u64, rows u32, nodes u32, entry u32,
/// upper_rows u32, codes u8 (0 in files from before there were any), then zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrozenHeader {
    /// What the graph was built with.
    pub params: Params,
    /// Rows that it covers: ids below this one.
    pub rows: u32,
    /// Rows with a vector.
    pub nodes: u32,
    /// Where searches start; `None` without a node.
    pub entry: Option<u32>,
    /// Rows of the upper levels' links.
    pub upper_rows: u32,
}

impl FrozenHeader {
    /// The stored form.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.params.metric.code();
        bytes[12..14].copy_from_slice(&self.params.m.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.params.dim.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.params.ef_construction.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.params.seed.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.rows.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.nodes.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.entry.unwrap_or(NONE).to_le_bytes());
        bytes[44..48].copy_from_slice(&self.upper_rows.to_le_bytes());
        bytes[48] = self.params.codes.code();
        bytes
    }

    /// Reads the stored form and checks it for itself.
    ///
    /// # Errors
    /// [`GraphError::Corrupt`] for another magic, version, metric or setting,
    /// for an entry point that is no row, and for counts that contradict.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GraphError> {
        let corrupt = |detail: String| GraphError::Corrupt { section: "header", detail };
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(corrupt(format!("{} bytes, expected {HEADER_BYTES}", bytes.len())));
        };
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..8] != MAGIC {
            return Err(corrupt(format!("magic {:02x?}, expected {MAGIC:02x?}", &bytes[..8])));
        }
        if u16_at(8) != VERSION {
            return Err(corrupt(format!("version {}, this reads {VERSION}", u16_at(8))));
        }
        let metric = Metric::from_code(bytes[10]).ok_or_else(|| corrupt(format!("metric {} at byte 10", bytes[10])))?;
        let codes = Codes::from_code(bytes[48]).ok_or_else(|| corrupt(format!("codes {} at byte 48", bytes[48])))?;
        let params =
            Params { dim: u32_at(16), metric, m: u16_at(12), ef_construction: u32_at(20), seed: u64_at(24), codes };
        params.validate().map_err(|error| corrupt(error.to_string()))?;
        let (rows, nodes, entry, upper_rows) = (u32_at(32), u32_at(36), u32_at(40), u32_at(44));
        if nodes > rows || (entry == NONE) != (nodes == 0) || (entry != NONE && entry >= rows) {
            let detail = format!("{nodes} nodes in {rows} rows with entry point {entry}");
            return Err(corrupt(detail));
        }
        let entry = (entry != NONE).then_some(entry);
        Ok(Self { params, rows, nodes, entry, upper_rows })
    }
}

/// A part of a stored graph, as the table in this module's source lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// `[rows, m0] u32`.
    BaseLinks,
    /// `[rows] u8`.
    Levels,
    /// `[ceil(rows / 64)] u32`.
    UpperStarts,
    /// `[upper_rows, m] u32`.
    UpperLinks,
    /// `[rows] f32` under cosine, otherwise empty.
    InverseNorms,
    /// `[rows, row_bytes] u8`, or empty without codes.
    Codes,
}

impl Section {
    /// All of them, in the order in which they are best stored.
    pub const ALL: [Section; 6] = [
        Section::BaseLinks,
        Section::Levels,
        Section::UpperStarts,
        Section::UpperLinks,
        Section::InverseNorms,
        Section::Codes,
    ];

    /// Bytes that the section has under this header.
    pub fn len(self, header: &FrozenHeader) -> u64 {
        let rows = u64::from(header.rows);
        let m = u64::from(header.params.m);
        match self {
            Section::BaseLinks => rows * 2 * m * 4,
            Section::Levels => rows,
            Section::UpperStarts => rows.div_ceil(RANK_NODES as u64) * 4,
            Section::UpperLinks => u64::from(header.upper_rows) * m * 4,
            Section::InverseNorms if header.params.metric == Metric::Cosine => rows * 4,
            Section::InverseNorms => 0,
            Section::Codes => rows * header.params.codes.row_bytes(header.params.dim) as u64,
        }
    }

    /// The name that errors use.
    pub fn name(self) -> &'static str {
        match self {
            Section::BaseLinks => "base links",
            Section::Levels => "levels",
            Section::UpperStarts => "upper starts",
            Section::UpperLinks => "upper links",
            Section::InverseNorms => "inverse norms",
            Section::Codes => "codes",
        }
    }
}

/// A sealed graph, ready to be written section by section.
pub struct Frozen<'a, V> {
    graph: &'a Graph,
    vectors: &'a V,
    header: FrozenHeader,
}

impl Graph {
    /// Prepares to write the graph out. Nothing may be inserted any more.
    ///
    /// # Errors
    /// [`GraphError::NotSettled`] unless every row of `vectors` is done.
    pub fn freeze<'a, V: Vectors>(&'a self, vectors: &'a V) -> Result<Frozen<'a, V>, GraphError> {
        let rows = vectors.len();
        let settled = self.prefix();
        if settled != rows || self.end() > rows {
            return Err(GraphError::NotSettled { settled, rows });
        }
        let entry = self.entry.load();
        let mut frozen = Frozen {
            graph: self,
            vectors,
            header: FrozenHeader { params: self.params, rows, nodes: entry.len, entry: entry.id, upper_rows: 0 },
        };
        let upper: usize = frozen.pieces().map(|piece| upper_rows(&piece.levels())).sum();
        frozen.header.upper_rows = u32::try_from(upper).map_err(|_| GraphError::Full)?;
        Ok(frozen)
    }
}

impl<V: Vectors> Frozen<'_, V> {
    /// What the stored graph says about itself.
    pub fn header(&self) -> FrozenHeader {
        self.header
    }

    /// A section's bytes, in pieces of one segment of the graph (128 KiB of base
    /// links at m = 16). Together they are [`Section::len`] long.
    pub fn chunks(&self, section: Section) -> impl Iterator<Item = Vec<u8>> {
        let mut upper_before = 0;
        self.pieces().map(move |piece| match section {
            Section::BaseLinks => piece.base_links(),
            Section::Levels => piece.levels(),
            Section::UpperStarts => piece.upper_starts(&mut upper_before),
            Section::UpperLinks => piece.upper_links(),
            Section::InverseNorms => self.inverse_norms(&piece),
            Section::Codes => piece.codes(),
        })
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let rows = self.header.rows as usize;
        let spans = (0..).map(|number| (number, node_span(number)));
        spans.take_while(move |(_, ids)| ids.start < rows).map(move |(number, ids)| Piece {
            graph: self.graph,
            segment: self.graph.segments.get(number),
            first: ids.start as u32,
            rows: ids.end.min(rows) - ids.start,
        })
    }

    fn inverse_norms(&self, piece: &Piece<'_>) -> Vec<u8> {
        if self.header.params.metric != Metric::Cosine {
            return Vec::new();
        }
        let ids = piece.first..piece.first + piece.rows as u32;
        ids.flat_map(|id| self.vectors.inv_norm(id).to_le_bytes()).collect()
    }
}

/// The rows of one segment. Without a segment, none of them has a vector.
struct Piece<'a> {
    graph: &'a Graph,
    segment: Option<&'a LinkSegment>,
    first: u32,
    rows: usize,
}

impl Piece<'_> {
    fn base_links(&self) -> Vec<u8> {
        let m0 = self.graph.params.m0();
        match self.segment {
            Some(segment) => {
                let row = |node| segment.slots(0, node).expect("level 0 is always there");
                (0..self.rows).flat_map(|node| row(node).iter()).flat_map(id_bytes).collect()
            }
            None => vec![0xFF; self.rows * m0 * 4],
        }
    }

    /// A row without a vector keeps its level, and with it its upper rows.
    fn levels(&self) -> Vec<u8> {
        let Some(segment) = self.segment else {
            return vec![ABSENT; self.rows];
        };
        let levels = segment.levels.bytes()[..self.rows].iter().zip(self.first..);
        levels.map(|(level, id)| if self.graph.contains(id) { *level } else { *level | ABSENT }).collect()
    }

    /// `before` counts the upper rows of the segments before, and of this one
    /// afterwards.
    fn upper_starts(&self, before: &mut u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.rows.div_ceil(RANK_NODES) * 4);
        for run in self.levels().chunks(RANK_NODES) {
            bytes.extend(before.to_le_bytes());
            *before += upper_rows(run) as u32;
        }
        bytes
    }

    /// Zeros for a row without a vector.
    fn codes(&self) -> Vec<u8> {
        let row_bytes = self.graph.codes.as_ref().map_or(0, |(encoder, _)| encoder.row_bytes());
        let mut bytes = vec![0; self.rows * row_bytes];
        if row_bytes > 0 {
            for (id, out) in (self.first..).zip(bytes.chunks_mut(row_bytes)) {
                if let Some(code) = self.graph.code(id).filter(|_| self.graph.contains(id)) {
                    out.copy_from_slice(code);
                }
            }
        }
        bytes
    }

    fn upper_links(&self) -> Vec<u8> {
        let Some(segment) = self.segment else {
            return Vec::new();
        };
        let mut bytes = Vec::new();
        for node in 0..self.rows {
            for level in 1..=level_of(segment.levels.get(node)) {
                let slots = segment.slots(level, node).expect("the node is that high");
                bytes.extend(slots.iter().flat_map(id_bytes));
            }
        }
        bytes
    }
}

fn id_bytes(slot: &AtomicU32) -> [u8; 4] {
    // ORDERING: Relaxed; the graph is sealed, and `prefix`, read in `freeze`,
    // acquired every insert.
    slot.load(Ordering::Relaxed).to_le_bytes()
}
