//! One vector column of a segment: vectors and graph, both where they lie in the mapped files.
//!
//! Opened from `rows.arrow` and `graph-<i>.arrow`; searched by the code that searches a memtable. Opening checks lengths
//! and computes nothing per row. Invariant: graph and vectors have the same number of rows.

use super::format::{ArrowFile, CHUNK_ROWS, GRAPH_HEADER, graph_section};
use super::rows::Rows;
use crate::error::Result;
use crate::rows::{Hit, SearchCost, VectorQuery, Visible};
use crate::schema::{VectorColumn, VectorElement};
use crate::vectors::{Searched, StoredElement, elements, gather, nearest_by_graph, nearest_by_scan};
use arrow::array::{Array, ArrayRef, FixedSizeListArray};
use arrow::datatypes::DataType;
use half::f16;
use std::ops::Range;
use std::sync::Arc;
use vectide_graph::{
    ChunkedVectors, Codes, FrozenHeader, GraphSections, GraphView, MappedGraph, Metric, Nulls, Params, Query, Scratch,
    Section, Vectors,
};

/// A vector column's rows and graph.
pub(super) struct Mapped<E: StoredElement> {
    vectors: Arc<ChunkedVectors<E>>,
    graph: Arc<MappedGraph>,
}

/// A vector column's graph and vectors, for a base that adopts them.
pub(crate) enum StoredColumn {
    F32(Arc<MappedGraph>, Arc<ChunkedVectors<f32>>),
    F16(Arc<MappedGraph>, Arc<ChunkedVectors<f16>>),
}

impl StoredColumn {
    /// Whether a row has a vector.
    pub(crate) fn has_vector(&self, row: u32) -> bool {
        match self {
            Self::F32(_, vectors) => vectors.row(row).is_some(),
            Self::F16(_, vectors) => vectors.row(row).is_some(),
        }
    }

    /// The graph.
    pub(crate) fn graph(&self) -> &Arc<MappedGraph> {
        match self {
            Self::F32(graph, _) | Self::F16(graph, _) => graph,
        }
    }
}

/// [`Mapped`] of either element type.
pub(super) enum MappedColumn {
    F32(Mapped<f32>),
    F16(Mapped<f16>),
}

/// Does the same to either type.
macro_rules! either {
    ($column:expr, $mapped:ident => $body:expr) => {
        match $column {
            MappedColumn::F32($mapped) => $body,
            MappedColumn::F16($mapped) => $body,
        }
    };
}

impl<E: StoredElement> Mapped<E> {
    fn open(rows: &Rows, file: &ArrowFile, column: &VectorColumn, count: u32) -> Result<Self> {
        let damaged = |e: vectide_graph::GraphError| file.corrupt(&e).with_source(e);
        let mut sections = file.sections()?;
        let header = FrozenHeader::from_bytes(&sections.take(GRAPH_HEADER)?).map_err(damaged)?;
        if header.rows != count || header.params.dim != column.dim || header.params.metric != column.metric {
            return Err(file.corrupt(format!(
                "a graph of {} rows, dimension {}, {:?}; expected {count}, {}, {:?}",
                header.rows, header.params.dim, header.params.metric, column.dim, column.metric
            )));
        }
        let mut take = |section: Section| sections.take(graph_section(section));
        let graph = GraphSections::new(
            take(Section::BaseLinks)?,
            take(Section::Levels)?,
            take(Section::UpperStarts)?,
            take(Section::UpperLinks)?,
        );
        let graph = match header.params.codes {
            Codes::None => graph,
            _ => graph.with_codes(take(Section::Codes)?),
        };
        let norms = take(Section::InverseNorms)?;
        let graph = MappedGraph::open(header, graph).map_err(damaged)?;
        let lists = rows.vectors(column.index)?;
        let nulls = nulls(&lists);
        let chunks = lists.iter().map(elements::<E>).collect();
        let mut vectors = ChunkedVectors::new(column.dim, CHUNK_ROWS, chunks, nulls).map_err(damaged)?;
        if column.metric == Metric::Cosine {
            vectors = vectors.with_inv_norms(norms).map_err(damaged)?;
        }
        if vectors.len() != count {
            return Err(file.corrupt(format!("{} vectors for {count} rows", vectors.len())));
        }
        Ok(Self { vectors: Arc::new(vectors), graph: Arc::new(graph) })
    }
}

impl<E: StoredElement> Searched for Mapped<E> {
    fn params(&self) -> &Params {
        self.graph.params()
    }

    fn settled(&self) -> u32 {
        self.vectors.len()
    }

    fn walk(
        &self,
        query: &Query,
        k: usize,
        ef: usize,
        accept: &dyn Fn(u32) -> bool,
        scratch: &mut Scratch,
    ) -> Vec<Hit> {
        E::search_stored((&self.graph, &self.vectors), query, k, ef, accept, scratch)
    }

    fn scan(
        &self,
        query: &Query,
        rows: Range<u32>,
        accept: &dyn Fn(u32) -> bool,
        k: usize,
        scratch: &mut Scratch,
    ) -> Vec<Hit> {
        E::scan_stored(&self.vectors, query, rows, accept, k, scratch)
    }
}

/// Which rows are null: one bitmap over all record batches, put together from theirs if any of them has one.
fn nulls(lists: &[FixedSizeListArray]) -> Nulls {
    if lists.iter().all(|list| list.null_count() == 0) {
        return Nulls::none();
    }
    let mut bitmap: Vec<u8> = Vec::new();
    for list in lists {
        let bytes = list.len().div_ceil(8);
        match list.nulls() {
            Some(nulls) => bitmap.extend_from_slice(&nulls.inner().sliced().as_slice()[..bytes]),
            None => bitmap.resize(bitmap.len() + bytes, 0xff),
        }
    }
    Nulls::validity(bitmap)
}

impl MappedColumn {
    /// Puts vectors and graph together.
    pub(super) fn open(rows: &Rows, file: &ArrowFile, column: &VectorColumn, count: u32) -> Result<Self> {
        Ok(match column.element {
            VectorElement::F32 => Self::F32(Mapped::open(rows, file, column, count)?),
            VectorElement::F16 => Self::F16(Mapped::open(rows, file, column, count)?),
        })
    }

    /// The vectors of `ids` as an Arrow column of type `data_type`.
    pub(super) fn gather(&self, ids: impl ExactSizeIterator<Item = u32>, data_type: &DataType) -> Result<ArrayRef> {
        either!(self, column => gather(&*column.vectors, ids, data_type))
    }

    pub(super) fn stored(&self) -> StoredColumn {
        match self {
            Self::F32(column) => StoredColumn::F32(Arc::clone(&column.graph), Arc::clone(&column.vectors)),
            Self::F16(column) => StoredColumn::F16(Arc::clone(&column.graph), Arc::clone(&column.vectors)),
        }
    }

    pub(super) fn search(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<(Vec<Hit>, SearchCost)> {
        either!(self, column => nearest_by_graph(column, query, visible))
    }

    pub(super) fn scan(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<Vec<Hit>> {
        either!(self, column => nearest_by_scan(column, query, visible))
    }

    /// Checks every link, degree and level, that every node can be reached, and that the nodes are the rows that have
    /// a vector. Returns how many there are.
    pub(super) fn verify(&self, file: &ArrowFile) -> Result<u64> {
        either!(self, column => {
            column.graph.verify().map_err(|e| file.corrupt(&e).with_source(e))?;
            let nodes = column.graph.header().nodes;
            let vectors = (0..column.vectors.len()).filter(|&row| column.vectors.row(row).is_some()).count();
            if vectors as u64 != u64::from(nodes) {
                return Err(file.corrupt(format!("{nodes} nodes for {vectors} vectors")));
            }
            Ok(u64::from(nodes))
        })
    }
}
