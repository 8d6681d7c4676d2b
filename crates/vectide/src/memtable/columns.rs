//! One vector column of a memtable: its vectors at stable addresses, and the graph over them.
//!
//! The publication section appends blocks; index workers insert rows into the graph; searches read both. Invariant: a
//! row is in the table before its offset is below the memtable's row count, and in the graph at some time after.

use super::prepare::PreparedVectors;
use crate::error::Result;
use crate::rows::{Hit, SearchCost, VectorQuery, Visible};
use crate::schema::{VectorColumn, VectorElement};
use crate::vectors::{Searched, StoredElement, gather, nearest_by_graph, nearest_by_scan, params, with_scratch};
use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use half::f16;
use std::ops::Range;
use vectide_graph::{Compiled, FrozenHeader, Graph, Params, Query, Scratch, Section, VectorTable, VectorTableBytes};

/// Takes a graph's stored form, section by section.
pub(crate) trait GraphSink {
    /// Comes first.
    fn header(&mut self, header: &FrozenHeader) -> Result<()>;
    /// `pieces` together are `bytes` long.
    fn section(&mut self, section: Section, bytes: u64, pieces: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()>;
}

/// A vector column's rows and graph.
pub(super) struct Indexed<E: StoredElement> {
    pub(super) table: VectorTable<E>,
    pub(super) graph: Graph,
}

/// [`Indexed`] of either element type.
pub(super) enum IndexedColumn {
    F32(Indexed<f32>),
    F16(Indexed<f16>),
}

/// Does the same to either type.
macro_rules! either {
    ($column:expr, $indexed:ident => $body:expr) => {
        match $column {
            $crate::memtable::columns::IndexedColumn::F32($indexed) => $body,
            $crate::memtable::columns::IndexedColumn::F16($indexed) => $body,
        }
    };
}

impl<E: StoredElement> Indexed<E> {
    fn new(column: &VectorColumn, ordinal: usize) -> Result<Self> {
        Ok(Self { table: VectorTable::new(column.dim, column.metric)?, graph: Graph::new(params(column, ordinal))? })
    }
}

impl<E: StoredElement> Searched for Indexed<E> {
    fn params(&self) -> &Params {
        self.graph.params()
    }

    fn settled(&self) -> u32 {
        self.graph.prefix()
    }

    fn walk(
        &self,
        query: &Query,
        k: usize,
        ef: usize,
        accept: &dyn Fn(u32) -> bool,
        scratch: &mut Scratch,
    ) -> Vec<Hit> {
        E::search_live((&self.graph, &self.table), query, k, ef, accept, scratch)
    }

    fn scan(
        &self,
        query: &Query,
        rows: Range<u32>,
        accept: &dyn Fn(u32) -> bool,
        k: usize,
        scratch: &mut Scratch,
    ) -> Vec<Hit> {
        E::scan_live(&self.table, query, rows, accept, k, scratch)
    }
}

impl IndexedColumn {
    pub(super) fn new(column: &VectorColumn, ordinal: usize) -> Result<Self> {
        Ok(match column.element {
            VectorElement::F32 => Self::F32(Indexed::new(column, ordinal)?),
            VectorElement::F16 => Self::F16(Indexed::new(column, ordinal)?),
        })
    }

    /// Appends a block; returns the offset of its first row.
    pub(super) fn append(&self, vectors: PreparedVectors) -> u32 {
        let appended = match (self, vectors) {
            (Self::F32(column), PreparedVectors::F32(block)) => column.table.append(block),
            (Self::F16(column), PreparedVectors::F16(block)) => column.table.append(block),
            _ => unreachable!("a block was prepared from this column's schema"),
        };
        appended.expect("prepared for this dimension and metric, and below u32::MAX rows")
    }

    /// Inserts one row that was appended.
    pub(super) fn insert(&self, offset: u32) {
        either!(self, column => {
            let inserted = with_scratch(|scratch| Compiled::insert(&column.graph, &column.table, offset, scratch));
            inserted.expect("the row was appended before it was claimed");
        });
    }

    /// Rows below this offset are in the graph.
    pub(super) fn settled(&self) -> u32 {
        either!(self, column => column.graph.prefix())
    }

    /// Bytes of links, and of compact codes.
    pub(super) fn graph_bytes(&self) -> (u64, u64) {
        either!(self, column => {
            let codes = column.graph.code_bytes();
            ((column.graph.memory_bytes() - codes) as u64, codes as u64)
        })
    }

    pub(super) fn table_bytes(&self) -> VectorTableBytes {
        either!(self, column => column.table.memory_bytes())
    }

    /// The vectors of `ids` as an Arrow column of type `data_type`.
    pub(super) fn gather(&self, ids: impl ExactSizeIterator<Item = u32>, data_type: &DataType) -> Result<ArrayRef> {
        either!(self, column => gather(&column.table, ids, data_type))
    }

    /// Gives out the sealed graph's stored form: each section's name, length and bytes in pieces. Links in again what
    /// cannot be reached first.
    pub(super) fn freeze(&self, sink: &mut dyn GraphSink) -> Result<()> {
        either!(self, column => {
            with_scratch(|scratch| Compiled::repair(&column.graph, &column.table, scratch));
            let frozen = column.graph.freeze(&column.table)?;
            let header = frozen.header();
            sink.header(&header)?;
            for section in Section::ALL {
                sink.section(section, section.len(&header), &mut frozen.chunks(section))?;
            }
            Ok(())
        })
    }

    pub(super) fn search(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<(Vec<Hit>, SearchCost)> {
        either!(self, column => nearest_by_graph(column, query, visible))
    }

    pub(super) fn scan(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<Vec<Hit>> {
        either!(self, column => nearest_by_scan(column, query, visible))
    }
}
