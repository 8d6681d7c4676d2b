//! The rows that an appender holds: checked, copied, not published.
//!
//! Rows go into one [`ColumnBuffer`] a column; a table that has a column of a type which those do not know (a list, a
//! struct, a view) keeps copies of the batches instead. Invariant: a row or batch that is refused leaves no trace.

use super::value::{Accepts, Value};
use crate::batch;
use crate::error::{Error, Result};
use crate::memtable::{ChunkPool, ColumnBuffer, ColumnBytes, Layout, copied};
use crate::schema::TableSchema;
use arrow::array::{Array, RecordBatch};
use arrow::record_batch::RecordBatchOptions;
use std::sync::Arc;

/// One batch of an appender.
pub(super) enum Taken {
    /// Columns in the order of the stored schema, all there.
    Columns(Box<[Option<ColumnBytes>]>),
    /// Batches of the stored schema that share no memory with a caller.
    Batches(Vec<RecordBatch>),
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct RowBuffer {
    schema: TableSchema,
    accepts: Vec<Accepts>,
    /// One per column, or none if the table has a column that they cannot hold.
    columns: Vec<ColumnBuffer>,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: u64,
    max_rows: usize,
    max_bytes: u64,
}

impl RowBuffer {
    /// An empty buffer that takes at most so many rows and bytes, for memtables of about `memtable_bytes`.
    pub(super) fn new(
        schema: TableSchema,
        max_rows: usize,
        max_bytes: u64,
        memtable_bytes: u64,
        pool: &Arc<ChunkPool>,
    ) -> Self {
        let layouts = schema.stored().fields().iter().map(|field| Layout::of(field.data_type()));
        let columns: Option<Vec<ColumnBuffer>> =
            layouts.map(|layout| Some(ColumnBuffer::new(layout?, memtable_bytes, pool))).collect();
        Self {
            accepts: Accepts::of(&schema),
            columns: columns.unwrap_or_default(),
            schema,
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
            max_rows,
            max_bytes,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The columns in the order of the stored schema; none if the table has one that they cannot hold.
    pub(super) fn columns(&self) -> &[ColumnBuffer] {
        &self.columns
    }

    /// Whether it takes no more than rows of no size at all.
    fn check_room(&self, rows: usize, bytes: u64) -> Result<()> {
        if self.rows + rows <= self.max_rows && self.bytes + bytes <= self.max_bytes {
            return Ok(());
        }
        let Self { rows: held, bytes: held_bytes, max_rows, max_bytes, .. } = self;
        Err(Error::unavailable(format!(
            "the appender holds {held} rows of {held_bytes} bytes; {rows} more of {bytes} bytes do not fit into one batch \
             (at most {max_rows} rows, and {max_bytes} bytes by option `batch_bytes`): commit, then append again"
        )))
    }

    /// Appends one row: a value per column of the table's schema, in its order.
    #[inline]
    pub(super) fn push(&mut self, row: &[Value<'_>]) -> Result<()> {
        if row.len() != self.accepts.len() {
            return Err(self.wrong_count(row.len()));
        }
        let mut bytes = 0;
        for (accepts, value) in self.accepts.iter().zip(row) {
            accepts.check(value, self.rows)?;
            bytes += value_bytes(value);
        }
        if self.columns.is_empty() {
            return Err(self.not_by_row());
        }
        self.check_room(1, bytes)?;
        for (column, value) in self.columns.iter_mut().zip(row) {
            value.write(column);
        }
        self.rows += 1;
        self.bytes += bytes;
        Ok(())
    }

    #[cold]
    fn wrong_count(&self, got: usize) -> Error {
        let names: Vec<_> = self.schema.arrow().fields().iter().map(|f| f.name().as_str()).collect();
        let (row, expected) = (self.rows, names.len());
        Error::invalid(format!("row {row}: expected {expected} values ({}), got {got}", names.join(", ")))
    }

    #[cold]
    fn not_by_row(&self) -> Error {
        let fields = self.schema.stored().fields();
        let other = fields.iter().find(|field| Layout::of(field.data_type()).is_none());
        let (name, data_type) = other.map(|f| (f.name().as_str(), f.data_type().to_string())).unwrap_or_default();
        Error::invalid(format!(
            "column `{name}`: {data_type} cannot be appended row by row, so this table takes whole batches only"
        ))
    }

    /// Appends the rows of a batch. Copies them.
    pub(super) fn extend(&mut self, batch: &RecordBatch) -> Result<()> {
        let checked = batch::check_rows(&self.schema, batch)?;
        let rows = checked.num_rows();
        let bytes = checked.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0) as u64).sum();
        self.check_room(rows, bytes)?;
        if self.columns.is_empty() && rows > 0 {
            let columns = checked.columns().iter().map(|column| copied(&[&**column])).collect::<Result<_>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::clone(self.schema.stored());
            self.batches.push(RecordBatch::try_new_with_options(schema, columns, &options)?);
        }
        for (buffer, column) in self.columns.iter_mut().zip(checked.columns()) {
            buffer.extend(column);
        }
        self.rows += rows;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes all rows as one batch.
    pub(super) fn take(&mut self) -> Taken {
        (self.rows, self.bytes) = (0, 0);
        if self.columns.is_empty() {
            return Taken::Batches(std::mem::take(&mut self.batches));
        }
        Taken::Columns(self.columns.iter_mut().map(|column| Some(column.split())).collect())
    }

    /// Drops all rows.
    pub(super) fn clear(&mut self) {
        (self.rows, self.bytes) = (0, 0);
        self.batches.clear();
        self.columns.iter_mut().for_each(ColumnBuffer::clear);
    }

    /// Bytes that published batches hold in chunks and do not use; `last`: the buffer is dropped now. Vectors' chunks are
    /// left out: most are copied out of theirs, which then go.
    pub(super) fn take_slack(&mut self, last: bool) -> u64 {
        let vectors = self.schema.vectors();
        let plain = self.columns.iter_mut().enumerate().filter(|(at, _)| vectors.iter().all(|v| v.index != *at));
        plain.map(|(_, column)| if last { column.final_slack() } else { column.take_slack() }).sum()
    }
}

/// Bytes that a value takes, about.
fn value_bytes(value: &Value<'_>) -> u64 {
    match value {
        Value::Str(v) => v.len() as u64 + 4,
        Value::Bytes(v) => v.len() as u64 + 4,
        Value::Vector(v) => size_of_val(*v) as u64,
        Value::VectorF16(v) => size_of_val(*v) as u64,
        _ => 8,
    }
}
