//! The segment: a row file at rest, searched where it lies in memory-mapped Arrow files.
//!
//! In: the parts that a flush wrote, named by the manifest. Out: a [`RowSource`] with the offsets and end marks that the
//! rows had in their memtable. `table` opens it after a flush and at start, `search` reads it. Opening maps the files and
//! checks lengths and counts; nothing is computed per row. Invariant: a segment never changes.

mod columns;
mod encoder;
mod filter;
mod format;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub(crate) mod fuzz;
mod keys;
mod rows;
mod verify;
mod writer;

pub(crate) use columns::StoredColumn;
pub(crate) use format::{ArrowFile, CHUNK_ROWS, Sections};
pub(crate) use writer::{Lumps, Part, SectionEncoder, write_object, write_part};

use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId, Seq};
use crate::keys::KeyProbe;
use crate::manifest::SegmentMeta;
use crate::rows::{Hit, RowSource, SearchCost, VectorQuery, Visible, no_rows, projected};
use crate::schema::TableSchema;
use crate::store::{Store, paths};
use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, UInt64Type};
use arrow::record_batch::RecordBatch;
use columns::MappedColumn;
use format::ends_schema;
use keys::KeyList;
use rows::Rows;
use std::ops::Range;
use std::sync::Arc;

/// A flushed row file.
pub(crate) struct Segment {
    id: String,
    schema: TableSchema,
    first_row: RowId,
    rows: u32,
    marks: ArrowFile,
    body: Option<Body>,
    disk_bytes: u64,
}

/// The files of a segment that has rows.
struct Body {
    rows: Rows,
    keys: Option<KeyList>,
    /// One per vector column, with its file.
    columns: Vec<(MappedColumn, ArrowFile)>,
    /// Which vector column, by position in the stored schema.
    vector_at: Vec<Option<usize>>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("first_row", &self.first_row).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Segment {
    /// Maps the parts that `meta` names in the folder `dir` (which ends in `/`).
    ///
    /// # Errors
    /// `Corrupt` naming the part if one is missing or has another length, or its header contradicts the manifest or the
    /// schema; `Invalid` if a newer Vectide wrote it; otherwise the store's.
    pub(crate) async fn open(
        store: &Arc<dyn Store>,
        dir: &str,
        meta: &SegmentMeta,
        schema: &TableSchema,
    ) -> Result<Self> {
        let marks = map(store, dir, meta, paths::ENDS).await?;
        let body = match meta.rows {
            0 => None,
            _ => Some(Body::open(store, dir, meta, schema).await?),
        };
        let disk_bytes = meta.parts.iter().map(|part| part.len).sum();
        let (id, first_row, rows, schema) = (meta.id.clone(), meta.first_row, meta.rows, schema.clone());
        Ok(Self { id, schema, first_row, rows, marks, body, disk_bytes })
    }

    /// Its name in the manifest.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Graph and vectors of vector column number `column`; `None` in a segment without rows.
    pub(crate) fn stored_column(&self, column: usize) -> Option<StoredColumn> {
        self.body.as_ref().and_then(|body| body.columns.get(column)).map(|(column, _)| column.stored())
    }

    /// Bytes of its files.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// The end marks that its rows and deletes set, on its own rows and on older ones.
    ///
    /// # Errors
    /// `Corrupt` if `ends.arrow` is damaged.
    pub(crate) fn marks(&self) -> Result<Vec<(RowId, PubNo)>> {
        let schema = ends_schema();
        let count = self.marks.number(format::META_ROWS)?;
        let mut marks = Vec::new();
        for index in 0..self.marks.batches() {
            let left = count.saturating_sub(marks.len() as u64).min(u64::from(CHUNK_ROWS));
            let batch = self.marks.batch(index, &schema, left as usize, None)?;
            let column = |at: usize| batch.column(at).as_primitive::<UInt64Type>().values().clone();
            let (rows, publications) = (column(0), column(1));
            if publications.contains(&0) {
                return Err(self.marks.corrupt("a mark names publication 0"));
            }
            marks.extend(rows.iter().zip(&publications).map(|(row, by)| (RowId(*row), PubNo(*by))));
        }
        if marks.len() as u64 != count {
            return Err(self.marks.corrupt(format!("it holds {} marks, expected {count}", marks.len())));
        }
        Ok(marks)
    }

    fn body(&self) -> Result<&Body> {
        self.body.as_ref().ok_or_else(|| Error::internal("a segment without rows was read"))
    }

    fn vector_column(&self, query: &VectorQuery<'_>) -> Result<Option<&MappedColumn>> {
        if query.column >= self.schema.vectors().len() {
            return Err(Error::internal(format!("there is no vector column {}", query.column)));
        }
        Ok(self.body.as_ref().map(|body| &body.columns[query.column].0))
    }
}

/// Maps and opens one part.
async fn map(store: &Arc<dyn Store>, dir: &str, meta: &SegmentMeta, name: &str) -> Result<ArrowFile> {
    let path = format!("{dir}{name}");
    let Some(part) = meta.part(name) else {
        return Err(Error::corrupt(format!("the manifest names no {path}")));
    };
    let bytes = store.map(&path, part.len).await.map_err(|e| match e.kind() {
        crate::ErrorKind::NotFound => Error::corrupt(format!("{path} is missing")).with_source(e),
        _ => e,
    })?;
    ArrowFile::open(path, bytes, name)
}

impl Body {
    async fn open(store: &Arc<dyn Store>, dir: &str, meta: &SegmentMeta, schema: &TableSchema) -> Result<Self> {
        let file = map(store, dir, meta, paths::ROWS).await?;
        let rows = Rows::open(file, schema, meta.first_row, meta.rows)?;
        let keys = match schema.key() {
            Some(_) => Some(KeyList::open(map(store, dir, meta, paths::KEYS).await?, meta.rows)?),
            None => None,
        };
        let mut columns = Vec::with_capacity(schema.vectors().len());
        for (ordinal, column) in schema.vectors().iter().enumerate() {
            let file = map(store, dir, meta, &paths::graph_part(ordinal)).await?;
            columns.push((MappedColumn::open(&rows, &file, column, meta.rows)?, file));
        }
        let vector_at =
            (0..schema.stored().fields().len()).map(|at| schema.vectors().iter().position(|v| v.index == at)).collect();
        Ok(Self { rows, keys, columns, vector_at })
    }

    /// The column at `at` in the stored schema, by whichever way its kind is read.
    fn column(
        &self,
        schema: &TableSchema,
        at: usize,
        vector: impl FnOnce(&MappedColumn, &DataType) -> Result<ArrayRef>,
        plain: impl FnOnce() -> Result<ArrayRef>,
    ) -> Result<ArrayRef> {
        match self.vector_at.get(at) {
            Some(Some(ordinal)) => vector(&self.columns[*ordinal].0, schema.stored().field(at).data_type()),
            Some(None) => plain(),
            None => Err(Error::internal(format!("column {at} is not in the stored schema"))),
        }
    }
}

impl RowSource for Segment {
    fn rows(&self) -> u32 {
        self.rows
    }

    fn find(&self, probe: &KeyProbe<'_>, below: u32) -> Result<Option<u32>> {
        let Some((rows, keys)) = self.body.as_ref().and_then(|body| Some((&body.rows, body.keys.as_ref()?))) else {
            return Ok(None);
        };
        for offset in keys.candidates(probe.hash).filter(|offset| *offset < below) {
            if offset >= self.rows {
                return Err(keys.file.corrupt(format!("it names row {offset} of {}", self.rows)));
            }
            if probe.keys.hash_is_exact() || rows.key_at(offset, |keys, row| probe.is(keys, row))? {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    fn seqs(&self, offsets: &[u32]) -> Result<Vec<Seq>> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        self.body()?.rows.seqs(offsets)
    }

    fn take(&self, offsets: &[u32], projection: &[usize]) -> Result<RecordBatch> {
        let stored = self.schema.stored();
        if offsets.is_empty() {
            return no_rows(stored, projection);
        }
        let body = self.body()?;
        let located = body.rows.locate(offsets)?;
        let column = |&at: &usize| {
            let vector =
                |column: &MappedColumn, data_type: &DataType| column.gather(offsets.iter().copied(), data_type);
            body.column(&self.schema, at, vector, || located.column(at))
        };
        let columns = projection.iter().map(column).collect::<Result<_>>()?;
        projected(stored, projection, columns, offsets.len())
    }

    fn read(&self, range: Range<u32>, projection: &[usize]) -> Result<RecordBatch> {
        let stored = self.schema.stored();
        if range.is_empty() {
            return no_rows(stored, projection);
        }
        if range.end > self.rows {
            return Err(Error::internal(format!("the segment has no row {}", range.end - 1)));
        }
        let body = self.body()?;
        let column = |&at: &usize| {
            let vector = |column: &MappedColumn, data_type: &DataType| column.gather(range.clone(), data_type);
            body.column(&self.schema, at, vector, || body.rows.column_range(at, &range))
        };
        let columns = projection.iter().map(column).collect::<Result<_>>()?;
        projected(stored, projection, columns, range.len())
    }

    fn search(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<(Vec<Hit>, SearchCost)> {
        match self.vector_column(query)? {
            Some(column) => column.search(query, visible),
            None => Ok(Default::default()),
        }
    }

    fn scan_nearest(&self, query: &VectorQuery<'_>, visible: &Visible<'_>) -> Result<Vec<Hit>> {
        match self.vector_column(query)? {
            Some(column) => column.scan(query, visible),
            None => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests;
