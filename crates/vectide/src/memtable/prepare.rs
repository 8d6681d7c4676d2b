//! A batch on its way into a memtable: everything expensive, done before the publication section.
//!
//! In: the parts of an encoded batch as views of their frames, in the stored schema. Out: [`Prepared`], which
//! [`Memtable::link`](super::Memtable::link) appends by pointer stores. `table/writer` calls it in the caller's thread;
//! it belongs to no memtable, because the active one may be sealed in between. Invariant: what was prepared links
//! without failing.

use super::blocks::Block;
use crate::error::{Error, Result};
use crate::schema::{TableSchema, VectorColumn, VectorElement};
use crate::vectors::{StoredElement, elements};
use arrow::array::{Array, AsArray, FixedSizeListArray};
use arrow::record_batch::RecordBatch;
use half::f16;
use vectide_graph::VectorBlock;

/// Parts of at least this many rows are kept as views of their frame; the vectors of smaller ones are copied, and their
/// other columns packed together later.
pub(super) const BORROWED_ROWS: usize = 256;

/// A batch ready to be linked.
pub(crate) struct Prepared {
    pub(super) parts: Vec<PreparedPart>,
    rows: u32,
    bytes: u64,
}

/// One part of a batch.
pub(super) struct PreparedPart {
    /// Its columns; offsets and seqs are filled in when it is linked.
    pub(super) block: Block,
    /// One per vector column.
    pub(super) vectors: Vec<PreparedVectors>,
}

/// A part's rows of one vector column, norms computed.
pub(super) enum PreparedVectors {
    F32(VectorBlock<f32>),
    F16(VectorBlock<f16>),
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("rows", &self.rows).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Takes the parts of one batch, in order. Costs a pass over the vectors of cosine columns, otherwise O(parts).
    ///
    /// # Errors
    /// `Internal` if a part is not in the stored schema, or the batch has more than `u32::MAX` rows.
    pub(crate) fn new(schema: &TableSchema, parts: Vec<RecordBatch>) -> Result<Self> {
        let mut rows = 0usize;
        let mut bytes = 0u64;
        let mut prepared = Vec::with_capacity(parts.len());
        for part in parts.iter().filter(|part| part.num_rows() > 0) {
            rows += part.num_rows();
            bytes += row_bytes(part);
            prepared.push(PreparedPart::new(schema, part)?);
        }
        let rows = u32::try_from(rows).map_err(|_| Error::internal(format!("a batch of {rows} rows was not split")))?;
        Ok(Self { parts: prepared, rows, bytes })
    }

    /// Rows in the batch.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of the rows themselves, vectors included, bookkeeping not.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl PreparedPart {
    fn new(schema: &TableSchema, part: &RecordBatch) -> Result<Self> {
        let borrowed = part.num_rows() >= BORROWED_ROWS;
        let vectors = schema.vectors().iter().map(|column| {
            let list = part
                .column(column.index)
                .as_fixed_size_list_opt()
                .ok_or_else(|| Error::internal(format!("column `{}` holds no vectors", column.name)))?;
            match column.element {
                VectorElement::F32 => vector_block(column, list, borrowed).map(PreparedVectors::F32),
                VectorElement::F16 => vector_block(column, list, borrowed).map(PreparedVectors::F16),
            }
        });
        Ok(Self { vectors: vectors.collect::<Result<_>>()?, block: Block::of_part(schema, part, borrowed)? })
    }
}

fn vector_block<E: StoredElement>(
    column: &VectorColumn,
    list: &FixedSizeListArray,
    borrowed: bool,
) -> Result<VectorBlock<E>> {
    let values = elements::<E>(list);
    let valid = |row: usize| list.is_valid(row);
    let valid = (list.null_count() > 0).then_some(&valid as &dyn Fn(usize) -> bool);
    let block = if borrowed {
        VectorBlock::borrowed(values, column.dim, column.metric, valid)?
    } else {
        VectorBlock::copied(values, column.dim, column.metric, valid)?
    };
    if block.rows() as usize != list.len() {
        let name = &column.name;
        return Err(Error::internal(format!("column `{name}`: values and rows disagree")));
    }
    Ok(block)
}

fn row_bytes(part: &RecordBatch) -> u64 {
    let of = |column: &arrow::array::ArrayRef| column.to_data().get_slice_memory_size();
    part.columns().iter().map(|column| of(column).unwrap_or(0) as u64).sum()
}
