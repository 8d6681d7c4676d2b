//! A batch on its way into a memtable: everything expensive, done before the publication section.
//!
//! In: the parts of an encoded batch as views of their frames, in the stored schema. Out: [`Prepared`], which
//! [`Memtable::link`](super::Memtable::link) appends by pointer stores. `table/writer` calls it in the caller's thread;
//! it belongs to no memtable, because the active one may be sealed in between. Invariant: what was prepared links
//! without failing.

use super::blocks::{Age, Block, Seqs};
use super::column_bytes::ColumnBytes;
use super::packing::YOUNG_BATCH_ROWS;
use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::schema::{TableSchema, VectorColumn, VectorElement};
use crate::vectors::{StoredElement, elements};
use arrow::array::{Array, AsArray, FixedSizeListArray};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use half::f16;
use std::sync::Arc;
use vectide_graph::VectorBlock;

/// Parts of at least this many rows are kept as views of their frame; the vectors of smaller ones are copied, and their
/// other columns packed together later.
pub(super) const BORROWED_ROWS: usize = 256;

/// A batch ready to be linked.
pub(crate) struct Prepared {
    pub(super) parts: Parts,
    rows: u32,
    bytes: u64,
}

/// A batch's parts, in order.
pub(super) enum Parts {
    /// An appender's batch.
    One(PreparedPart),
    /// One per frame.
    Frames(Vec<PreparedPart>),
}

impl Parts {
    /// Gives each part to `take`.
    pub(super) fn for_each(self, take: impl FnMut(PreparedPart)) {
        match self {
            Self::One(part) => std::iter::once(part).for_each(take),
            Self::Frames(parts) => parts.into_iter().for_each(take),
        }
    }
}

/// One part of a batch.
pub(super) struct PreparedPart {
    /// Its columns; offsets and seqs are filled in when it is linked.
    pub(super) block: Arc<Block>,
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
        Ok(Self { parts: Parts::Frames(prepared), rows, bytes })
    }

    /// Takes a batch that an appender filled: `columns` in the order of the stored schema, `arrays` the same as arrays if
    /// they were needed anyway. Costs a pass over the vectors of cosine columns, otherwise O(columns) in a key-less table
    /// and O(rows) in a keyed one, whose keys are made an array.
    ///
    /// # Errors
    /// `Internal` if the columns are not in the stored schema.
    pub(crate) fn of_appender(
        schema: &TableSchema,
        rows: u32,
        mut columns: Box<[Option<ColumnBytes>]>,
        arrays: Option<&RecordBatch>,
    ) -> Result<Self> {
        let bytes = columns.iter().flatten().map(ColumnBytes::bytes).sum();
        let (keyless, borrowed) = (schema.key().is_none(), rows as usize >= BORROWED_ROWS);
        let made = match arrays {
            None if !keyless || !schema.vectors().is_empty() => Some(batch_of(schema, &columns, rows as usize)?),
            _ => None,
        };
        let part = arrays.or(made.as_ref());
        let vectors = part.map_or(Ok(Vec::new()), |part| vectors_of(schema, part, borrowed))?;
        let vector_bytes: u64 =
            schema.vectors().iter().filter_map(|vector| columns[vector.index].as_ref()).map(ColumnBytes::bytes).sum();
        let age = if rows < YOUNG_BATCH_ROWS { Age::Young } else { Age::Settled };
        let mut block = match part {
            Some(part) if !keyless => {
                let mut columns: Box<[_]> = part.columns().iter().cloned().map(Some).collect();
                schema.vectors().iter().for_each(|vector| columns[vector.index] = None);
                Block::new(schema, 0, rows, age, columns, Seqs::One(Seq(0)))?
            }
            _ => {
                schema.vectors().iter().for_each(|vector| columns[vector.index] = None);
                Block::of_bytes(rows, age, columns, Seqs::One(Seq(0)))
            }
        };
        if borrowed {
            block.bytes.data += vector_bytes;
        }
        let part = PreparedPart { block: Arc::new(block), vectors };
        Ok(Self { parts: Parts::One(part), rows, bytes })
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
        let vectors = vectors_of(schema, part, borrowed)?;
        Ok(Self { vectors, block: Arc::new(Block::of_part(schema, part, borrowed)?) })
    }
}

/// The vector columns of a part in the stored schema.
fn vectors_of(schema: &TableSchema, part: &RecordBatch, borrowed: bool) -> Result<Vec<PreparedVectors>> {
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
    vectors.collect()
}

/// An appender's columns as a batch of the stored schema that shares their bytes.
pub(crate) fn batch_of(schema: &TableSchema, columns: &[Option<ColumnBytes>], rows: usize) -> Result<RecordBatch> {
    let fields = schema.stored().fields();
    let arrays = columns.iter().flatten().zip(fields).map(|(column, field)| column.array(field.data_type(), rows));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema.stored()), arrays.collect::<Result<_>>()?, &options)?)
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
