//! What the files of a segment look like, and how one is opened: footer, metadata, where its record batches lie.
//!
//! `writer` writes these files and `rows`, `keys`, `graph` and `ends` read them; the layouts are drawn in docs/format.md.
//! In: a file's bytes, mapped. Out: an [`ArrowFile`]. Invariant: nothing that a file says is believed before it was
//! checked against the file's length, so that damage ends in `Corrupt`, never in a panic.

use crate::error::{Error, Result};
use crate::schema::{SEQ_COLUMN, TableSchema};
use crate::wal::body::decode_columns;
use arrow::array::{AsArray, RecordBatch};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of a record batch in `rows.arrow`; the last has fewer. A power of two.
pub(crate) const CHUNK_ROWS: u32 = 4096;
/// The version of these formats.
pub(crate) const FORMAT: &str = "1";

/// Schema metadata: the format's version.
pub(super) const META_FORMAT: &str = "vectide.format";
/// Schema metadata: which part this is, so that parts cannot be mixed up.
pub(super) const META_PART: &str = "vectide.part";
/// Schema metadata: the row id of offset 0.
pub(super) const META_FIRST_ROW: &str = "vectide.first_row";
/// Schema metadata: rows in the segment.
pub(super) const META_ROWS: &str = "vectide.rows";

/// The columns of a file of sections: one record batch of one row each.
const SECTION_COLUMN: &str = "section";
const BYTES_COLUMN: &str = "bytes";
/// `ends.arrow`.
pub(super) const ROW_ID_COLUMN: &str = "row_id";
pub(super) const PUBLICATION_COLUMN: &str = "publication";

/// Sections of `keys.arrow`.
pub(super) const HASHES: &str = "hashes";
pub(super) const OFFSETS: &str = "offsets";
pub(super) const FILTER: &str = "filter";
/// The first section of `graph-<i>.arrow`.
pub(super) const GRAPH_HEADER: &str = "header";

/// The name that a graph's section has in the file.
pub(super) const fn graph_section(section: vectide_graph::Section) -> &'static str {
    use vectide_graph::Section;
    match section {
        Section::BaseLinks => "base_links",
        Section::Levels => "levels",
        Section::UpperStarts => "upper_starts",
        Section::UpperLinks => "upper_links",
        Section::InverseNorms => "inverse_norms",
        Section::Codes => "codes",
    }
}

/// The columns of `rows.arrow`: the stored ones, then `_seq`.
pub(super) fn rows_schema(schema: &TableSchema) -> SchemaRef {
    let mut fields = schema.stored().fields().to_vec();
    fields.push(Arc::new(Field::new(SEQ_COLUMN, DataType::UInt64, false)));
    Arc::new(Schema::new(fields))
}

/// The columns of a file of sections.
pub(super) fn sections_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(SECTION_COLUMN, DataType::Utf8, false),
        Field::new(BYTES_COLUMN, DataType::LargeBinary, false),
    ]))
}

/// The columns of `ends.arrow`.
pub(super) fn ends_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(ROW_ID_COLUMN, DataType::UInt64, false),
        Field::new(PUBLICATION_COLUMN, DataType::UInt64, false),
    ]))
}

/// Where a record batch lies.
#[derive(Clone, Copy, Debug)]
struct Block {
    offset: usize,
    len: usize,
}

/// One Arrow IPC file, its footer read and its batches' places checked; the batches are decoded when they are asked for.
#[derive(Debug)]
pub(crate) struct ArrowFile {
    path: String,
    bytes: Buffer,
    blocks: Vec<Block>,
    metadata: HashMap<String, String>,
}

impl ArrowFile {
    /// Reads the footer of the part `part`. O(batches).
    ///
    /// # Errors
    /// `Corrupt` with path and offset if this is no Arrow file of that part; `Invalid` if a newer Vectide wrote it.
    pub(crate) fn open(path: String, bytes: Bytes, part: &str) -> Result<Self> {
        let bytes = Buffer::from(bytes);
        let footer = Footer::read(&path, &bytes)?;
        let file = Self { path, bytes, blocks: footer.blocks, metadata: footer.metadata };
        match file.metadata.get(META_FORMAT).map(String::as_str) {
            Some(FORMAT) => {}
            Some(other) if other.parse::<u32>().is_ok() => {
                let path = &file.path;
                return Err(Error::invalid(format!(
                    "{path} was written by a newer Vectide (format {other}, this one reads up to {FORMAT}): upgrade to open it"
                )));
            }
            _ => return Err(file.corrupt("its schema names no format")),
        }
        if file.metadata.get(META_PART).map(String::as_str) != Some(part) {
            return Err(file.corrupt(format!("it is not the part `{part}`")));
        }
        Ok(file)
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &Buffer {
        &self.bytes
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Which part it says it is.
    pub(crate) fn part(&self) -> Option<&str> {
        self.metadata.get(META_PART).map(String::as_str)
    }

    /// Record batches in it.
    pub(crate) fn batches(&self) -> usize {
        self.blocks.len()
    }

    /// A number in the schema's metadata.
    pub(crate) fn number(&self, key: &str) -> Result<u64> {
        let text = self.metadata.get(key).and_then(|text| text.parse().ok());
        text.ok_or_else(|| self.corrupt(format!("its schema has no number `{key}`")))
    }

    /// The error that this file is damaged.
    pub(crate) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("{} is damaged: {what}", self.path))
    }

    /// Decodes batch number `index` of `rows` rows: all columns, or those at `projection`. Views on the mapped bytes.
    pub(crate) fn batch(
        &self,
        index: usize,
        schema: &SchemaRef,
        rows: usize,
        projection: Option<&[usize]>,
    ) -> Result<RecordBatch> {
        let block = self.blocks.get(index).ok_or_else(|| self.corrupt(format!("it has no record batch {index}")))?;
        let body = self.bytes.slice_with_length(block.offset, block.len);
        let decoded = decode_columns(&body, schema, rows, projection);
        let offset = block.offset;
        decoded.map_err(|e| e.context(format_args!("{} is damaged at byte {offset}, record batch {index}", self.path)))
    }

    /// The sections of a file of sections.
    pub(crate) fn sections(&self) -> Result<Sections<'_>> {
        let schema = sections_schema();
        let mut found = HashMap::with_capacity(self.batches());
        for index in 0..self.batches() {
            let batch = self.batch(index, &schema, 1, None)?;
            let name = batch.column(0).as_string::<i32>().value(0).to_owned();
            let bytes = batch.column(1).as_binary::<i64>();
            let (from, to) = (bytes.value_offsets()[0] as usize, bytes.value_offsets()[1] as usize);
            let bytes = ScalarBuffer::from(bytes.values().slice_with_length(from, to - from));
            if found.insert(name.clone(), bytes).is_some() {
                return Err(self.corrupt(format!("section `{name}` stands in it twice")));
            }
        }
        Ok(Sections { file: self, found })
    }
}

/// A file's sections by name.
pub(crate) struct Sections<'a> {
    file: &'a ArrowFile,
    found: HashMap<String, ScalarBuffer<u8>>,
}

impl Sections<'_> {
    /// Takes one section out.
    pub(crate) fn take(&mut self, name: &str) -> Result<ScalarBuffer<u8>> {
        let section = self.found.remove(name);
        section.ok_or_else(|| self.file.corrupt(format!("section `{name}` is missing")))
    }

    /// Takes a section of a known length.
    pub(crate) fn take_exact(&mut self, name: &str, len: usize) -> Result<ScalarBuffer<u8>> {
        let section = self.take(name)?;
        if section.len() != len {
            let got = section.len();
            return Err(self.file.corrupt(format!("section `{name}` has {got} bytes, expected {len}")));
        }
        Ok(section)
    }
}

/// What the end of an Arrow file says.
struct Footer {
    blocks: Vec<Block>,
    metadata: HashMap<String, String>,
}

const MAGIC: &[u8] = b"ARROW1";
/// Footer length and magic.
const TRAILER_BYTES: usize = 10;

impl Footer {
    fn read(path: &str, bytes: &[u8]) -> Result<Self> {
        let corrupt = |at: usize, what: &str| Error::corrupt(format!("{path} is damaged at byte {at}: {what}"));
        if bytes.len() < MAGIC.len() + TRAILER_BYTES || !bytes.starts_with(MAGIC) {
            return Err(corrupt(0, "it is no Arrow file"));
        }
        let end = bytes.len() - TRAILER_BYTES;
        let (len, magic) = bytes[end..].split_at(4);
        if magic != MAGIC {
            return Err(corrupt(end + 4, "it does not end like an Arrow file"));
        }
        let len = i32::from_le_bytes(len.try_into().expect("four bytes"));
        let start = usize::try_from(len).ok().and_then(|len| end.checked_sub(len));
        let start = start.ok_or_else(|| corrupt(end, "its footer's length is out of range"))?;
        let footer = arrow_ipc::root_as_footer(&bytes[start..end])
            .map_err(|e| corrupt(start, &format!("its footer is malformed ({e})")))?;
        let mut blocks = Vec::new();
        for block in footer.recordBatches().into_iter().flatten() {
            let place = |n: i64| usize::try_from(n).ok();
            let found =
                place(block.offset()).zip(place(i64::from(block.metaDataLength()))).zip(place(block.bodyLength()));
            let found = found.and_then(|((offset, meta), body)| {
                let len = meta.checked_add(body)?;
                (offset.checked_add(len)? <= start).then_some(Block { offset, len })
            });
            blocks.push(found.ok_or_else(|| corrupt(start, "a record batch lies outside the file"))?);
        }
        let schema = footer.schema().ok_or_else(|| corrupt(start, "its footer has no schema"))?;
        let metadata = schema.custom_metadata().into_iter().flatten();
        let metadata = metadata.filter_map(|pair| Some((pair.key()?.to_owned(), pair.value()?.to_owned()))).collect();
        Ok(Self { blocks, metadata })
    }
}
