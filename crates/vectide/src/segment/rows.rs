//! A segment's rows: `rows.arrow`, mapped, its record batches decoded when they are first asked for.
//!
//! Vector columns are not decoded here: they are searched and gathered where they lie. Every other column becomes an
//! array of views, validated once per record batch and kept. Invariant: row `offset` stands in record batch
//! `offset / 4096`.

use super::format::{ArrowFile, CHUNK_ROWS, META_FIRST_ROW, META_ROWS, rows_schema};
use crate::error::{Error, Result};
use crate::ids::{RowId, Seq};
use crate::keys::KeyArray;
use crate::schema::TableSchema;
use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, UInt64Array};
use arrow::datatypes::{SchemaRef, UInt64Type};
use std::ops::Range;
use std::sync::OnceLock;

/// `rows.arrow`.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) file: ArrowFile,
    rows: u32,
    /// The stored columns and `_seq`.
    schema: SchemaRef,
    /// Position of the key column.
    key: Option<usize>,
    /// Positions of the columns that chunks hold: all but the vectors.
    plain: Vec<usize>,
    chunks: Box<[OnceLock<Chunk>]>,
}

/// A record batch without its vectors.
#[derive(Debug)]
pub(super) struct Chunk {
    /// By position in the stored schema; `None` for vector columns.
    columns: Box<[Option<ArrayRef>]>,
    pub(super) keys: Option<KeyArray>,
    pub(super) seqs: UInt64Array,
}

impl Rows {
    /// Checks counts; decodes nothing.
    pub(super) fn open(file: ArrowFile, schema: &TableSchema, first_row: RowId, rows: u32) -> Result<Self> {
        let chunks = rows.div_ceil(CHUNK_ROWS) as usize;
        let found = (file.number(META_FIRST_ROW)?, file.number(META_ROWS)?, file.batches());
        if found != (first_row.0, u64::from(rows), chunks) {
            return Err(file.corrupt(format!(
                "it holds {} rows from {} on in {} record batches, expected {rows} from {first_row} on in {chunks}",
                found.1, found.0, found.2
            )));
        }
        let rows_schema = rows_schema(schema);
        let is_vector = |at: &usize| schema.vectors().iter().any(|v| v.index == *at);
        let plain = (0..rows_schema.fields().len()).filter(|at| !is_vector(at)).collect();
        Ok(Self {
            file,
            rows,
            schema: rows_schema,
            key: schema.key().map(|key| key.index),
            plain,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
        })
    }

    /// Rows in record batch `chunk`.
    fn chunk_rows(&self, chunk: usize) -> usize {
        let first = chunk as u32 * CHUNK_ROWS;
        (self.rows - first).min(CHUNK_ROWS) as usize
    }

    /// Number of record batches.
    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The vector column at `column` of every record batch. Costs nothing per row.
    pub(super) fn vectors(&self, column: usize) -> Result<Vec<FixedSizeListArray>> {
        let decode = |chunk| {
            let batch = self.file.batch(chunk, &self.schema, self.chunk_rows(chunk), Some(&[column]))?;
            Ok(batch.column(0).as_fixed_size_list().clone())
        };
        (0..self.chunks.len()).map(decode).collect()
    }

    /// Record batch `chunk`, decoded and validated at the first call.
    pub(super) fn chunk(&self, chunk: usize) -> Result<&Chunk> {
        let slot =
            self.chunks.get(chunk).ok_or_else(|| Error::internal(format!("there is no record batch {chunk}")))?;
        if let Some(decoded) = slot.get() {
            return Ok(decoded);
        }
        let decoded = self.decode(chunk)?;
        // Two threads may decode the same one; either's is right.
        Ok(slot.get_or_init(|| decoded))
    }

    /// Record batch `chunk`, decoded and validated anew.
    pub(super) fn decode(&self, chunk: usize) -> Result<Chunk> {
        let batch = self.file.batch(chunk, &self.schema, self.chunk_rows(chunk), Some(&self.plain))?;
        let mut columns: Box<[Option<ArrayRef>]> = vec![None; self.schema.fields().len()].into();
        for (&at, column) in self.plain.iter().zip(batch.columns()) {
            columns[at] = Some(std::sync::Arc::clone(column));
        }
        let keys = match self.key {
            Some(at) => columns[at].as_deref().map(KeyArray::new).transpose()?,
            None => None,
        };
        let seqs = columns[columns.len() - 1].as_ref().expect("`_seq` is no vector");
        let seqs = seqs.as_primitive::<UInt64Type>().clone();
        Ok(Chunk { columns, keys, seqs })
    }

    fn place(&self, offset: u32) -> Result<(usize, usize)> {
        if offset >= self.rows {
            return Err(Error::internal(format!("the segment has no row {offset}")));
        }
        Ok(((offset / CHUNK_ROWS) as usize, (offset % CHUNK_ROWS) as usize))
    }

    /// The seq of each row.
    pub(super) fn seqs(&self, offsets: &[u32]) -> Result<Vec<Seq>> {
        let seq = |&offset: &u32| {
            let (chunk, row) = self.place(offset)?;
            Ok(Seq(self.chunk(chunk)?.seqs.value(row)))
        };
        offsets.iter().map(seq).collect()
    }

    /// Whether `is` holds of the key at `offset`.
    pub(super) fn key_at(&self, offset: u32, is: impl FnOnce(&KeyArray, usize) -> bool) -> Result<bool> {
        let (chunk, row) = self.place(offset)?;
        let keys = self.chunk(chunk)?.keys.as_ref();
        Ok(is(keys.expect("a keyed table's rows have keys"), row))
    }

    /// Where some rows are.
    pub(super) fn locate(&self, offsets: &[u32]) -> Result<Located<'_>> {
        let mut chunks: Vec<(usize, &Chunk)> = Vec::new();
        let mut rows = Vec::with_capacity(offsets.len());
        for &offset in offsets {
            let (chunk, row) = self.place(offset)?;
            if chunks.last().is_none_or(|(last, _)| *last != chunk) {
                chunks.push((chunk, self.chunk(chunk)?));
            }
            rows.push((chunks.len() - 1, row));
        }
        Ok(Located { chunks, rows })
    }

    /// The values of a run of rows of the column at `column`, which is no vector column.
    pub(super) fn column_range(&self, column: usize, range: &Range<u32>) -> Result<ArrayRef> {
        let (first, last) = (self.place(range.start)?.0, self.place(range.end - 1)?.0);
        let mut slices = Vec::with_capacity(last - first + 1);
        for chunk in first..=last {
            let start = chunk as u32 * CHUNK_ROWS;
            let (from, to) = (range.start.max(start) - start, range.end.min(start + CHUNK_ROWS) - start);
            slices.push(self.chunk(chunk)?.column(column)?.slice(from as usize, (to - from) as usize));
        }
        match slices.as_slice() {
            [one] => Ok(ArrayRef::clone(one)),
            several => {
                let several: Vec<&dyn Array> = several.iter().map(|a| a.as_ref()).collect();
                Ok(arrow::compute::concat(&several)?)
            }
        }
    }
}

impl Chunk {
    fn column(&self, column: usize) -> Result<&ArrayRef> {
        let array = self.columns.get(column).and_then(Option::as_ref);
        array.ok_or_else(|| Error::internal(format!("column {column} is not among the chunks'")))
    }
}

/// Some rows: which record batch of those listed, and which row of it.
pub(super) struct Located<'a> {
    chunks: Vec<(usize, &'a Chunk)>,
    rows: Vec<(usize, usize)>,
}

impl Located<'_> {
    /// Their values of the column at `column`, which is no vector column.
    pub(super) fn column(&self, column: usize) -> Result<ArrayRef> {
        let arrays: Vec<&dyn Array> =
            self.chunks.iter().map(|(_, chunk)| chunk.column(column).map(|a| a.as_ref())).collect::<Result<_>>()?;
        Ok(arrow::compute::interleave(&arrays, &self.rows)?)
    }
}
