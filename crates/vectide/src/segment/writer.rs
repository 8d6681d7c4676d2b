//! Writes a segment's files: each is encoded on a blocking thread, lump by lump, while the lump before it is written.
//!
//! `flush/build` names the parts and says what goes into them; out come their names, lengths and checksums for the
//! manifest. At most [`LUMPS`] encoded lumps wait at a time, so memory stays at a few record batches. Invariant: the
//! object is whole and durable when `write_part` returns; a failure leaves at most an object that nothing names.

use super::encoder::Encoder;
use super::format::{
    FORMAT, GRAPH_HEADER, META_FIRST_ROW, META_FORMAT, META_PART, META_ROWS, ends_schema, graph_section, rows_schema,
    sections_schema,
};
use super::{filter, format};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::ids::{PubNo, RowId};
use crate::manifest::PartMeta;
use crate::memtable::{GraphSink, Memtable};
use crate::rows::{RowSource, projected};
use crate::store::{Store, paths};
use arrow::array::{Array, ArrayRef, AsArray, LargeBinaryArray, RecordBatch, StringArray, UInt64Array};
use arrow::buffer::{Buffer, MutableBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;
use vectide_graph::{FrozenHeader, Section};

/// Encoded lumps that may wait to be written.
const LUMPS: usize = 1;
/// Where encoded lumps go.
pub(crate) type Lumps = mpsc::Sender<Vec<Bytes>>;

/// One file of a segment and what goes into it.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// All rows.
    Rows,
    /// The graph of one vector column.
    Graph(usize),
    /// Hashes, offsets and filter of the keys.
    Keys,
    /// The end marks that the memtable's batches set on older rows; its own are added.
    Ends(Vec<(RowId, PubNo)>),
}

impl Part {
    fn name(&self) -> String {
        match self {
            Self::Rows => paths::ROWS.to_owned(),
            Self::Graph(column) => paths::graph_part(*column),
            Self::Keys => paths::KEYS.to_owned(),
            Self::Ends(_) => paths::ENDS.to_owned(),
        }
    }

    /// The fail points before its first and after its last byte.
    const fn fail_points(&self) -> (&'static str, &'static str) {
        match self {
            Self::Rows => ("flush.rows.before", "flush.rows.after"),
            Self::Graph(_) => ("flush.graph.before", "flush.graph.after"),
            Self::Keys => ("flush.keys.before", "flush.keys.after"),
            Self::Ends(_) => ("flush.ends.before", "flush.ends.after"),
        }
    }
}

/// Writes one part of `memtable`, which is sealed and settled, into the folder `dir`.
///
/// # Errors
/// The store's; `Internal` if Arrow cannot encode a column.
pub(crate) async fn write_part(
    store: &Arc<dyn Store>,
    dir: &str,
    part: Part,
    memtable: &Arc<Memtable>,
) -> Result<PartMeta> {
    let (name, points) = (part.name(), part.fail_points());
    let memtable = Arc::clone(memtable);
    write_object(store, dir, name, points, move |lumps| encode(&part, &memtable, lumps)).await
}

/// Writes the file `name` into the folder `dir`: what `encode` puts into the channel, on a blocking thread. Passes the two
/// fail points before its first and after its last byte.
///
/// # Errors
/// The store's, and those of `encode`.
pub(crate) async fn write_object(
    store: &Arc<dyn Store>,
    dir: &str,
    name: String,
    (before, after): (&'static str, &'static str),
    encode: impl FnOnce(Lumps) -> Result<()> + Send + 'static,
) -> Result<PartMeta> {
    let path = format!("{dir}{name}");
    let fail = |point| failpoint::hit(point).map_err(|e| Error::io(format_args!("writing {path}"), e));
    fail(before)?;
    let (lumps, mut encoded) = mpsc::channel::<Vec<Bytes>>(LUMPS);
    let encoding = tokio::task::spawn_blocking(move || encode(lumps));
    let mut object = store.create(&path).await?;
    while let Some(lump) = encoded.recv().await {
        for piece in lump {
            object.write(piece).await?;
        }
    }
    // The channel closes at the end and on an error alike: only now is it known which it was.
    let encoded =
        encoding.await.map_err(|e| Error::internal(format!("encoding {path} was cut short")).with_source(e))?;
    encoded.map_err(|e| e.context(format_args!("writing {path}")))?;
    let written = object.finish().await?;
    fail(after)?;
    Ok(PartMeta { name, len: written.len, crc32c: written.crc32c })
}

fn encode(part: &Part, memtable: &Memtable, lumps: Lumps) -> Result<()> {
    let start = |schema: SchemaRef, rows: u64| {
        let metadata = [
            (META_FORMAT, FORMAT.to_owned()),
            (META_PART, part.name()),
            (META_FIRST_ROW, memtable.first_row().to_string()),
            (META_ROWS, rows.to_string()),
        ];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
        Encoder::start(Arc::unwrap_or_clone(schema).with_metadata(metadata), lumps)
    };
    let rows = u64::from(memtable.rows());
    match part {
        Part::Rows => write_rows(start(rows_schema(memtable.schema()), rows)?, memtable),
        Part::Graph(column) => {
            let mut sections = SectionEncoder(start(sections_schema(), rows)?);
            memtable.freeze(*column, &mut sections)?;
            sections.finish()
        }
        Part::Keys => write_keys(SectionEncoder(start(sections_schema(), rows)?), memtable),
        Part::Ends(older) => {
            let mut marks = memtable.marks();
            marks.extend_from_slice(older);
            marks.sort_unstable();
            write_ends(start(ends_schema(), marks.len() as u64)?, &marks)
        }
    }
}

/// A file of named sections, each a record batch of one row.
pub(crate) struct SectionEncoder(Encoder);

impl SectionEncoder {
    /// Begins the file of part `part`.
    ///
    /// # Errors
    /// `Closed` if nobody takes the lumps.
    pub(crate) fn start(part: &str, lumps: Lumps) -> Result<Self> {
        let metadata = [(META_FORMAT, FORMAT.to_owned()), (META_PART, part.to_owned())];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
        Ok(Self(Encoder::start(Arc::unwrap_or_clone(sections_schema()).with_metadata(metadata), lumps)?))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// As [`SectionEncoder::start`].
    pub(crate) fn finish(self) -> Result<()> {
        self.0.finish()
    }

    /// Appends a section.
    ///
    /// # Errors
    /// As [`SectionEncoder::start`].
    pub(crate) fn section(&mut self, name: &str, bytes: Buffer) -> Result<()> {
        let len = i64::try_from(bytes.len()).map_err(|_| Error::internal("a section of more than 8 EiB"))?;
        let bytes = LargeBinaryArray::new(OffsetBuffer::new(vec![0, len].into()), bytes, None);
        let columns = vec![Arc::new(StringArray::from(vec![name])) as _, Arc::new(bytes) as _];
        self.0.write(&RecordBatch::try_new(sections_schema(), columns)?)
    }
}

impl GraphSink for SectionEncoder {
    fn header(&mut self, header: &FrozenHeader) -> Result<()> {
        self.section(GRAPH_HEADER, Buffer::from(header.to_bytes().to_vec()))
    }

    fn section(&mut self, section: Section, bytes: u64, pieces: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        let mut whole = MutableBuffer::with_capacity(bytes as usize);
        pieces.for_each(|piece| whole.extend_from_slice(&piece));
        SectionEncoder::section(self, graph_section(section), whole.into())
    }
}

fn write_rows(mut file: Encoder, memtable: &Memtable) -> Result<()> {
    let rows = memtable.rows();
    let schema = rows_schema(memtable.schema());
    let stored: Vec<usize> = (0..schema.fields().len() - 1).collect();
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    for first in (0..rows).step_by(format::CHUNK_ROWS as usize) {
        let range = first..(first + format::CHUNK_ROWS).min(rows);
        let offsets: Vec<u32> = range.clone().collect();
        let mut columns: Vec<ArrayRef> = memtable.read(range, &stored)?.columns().iter().map(without_slack).collect();
        let seqs = memtable.seqs(&offsets)?;
        columns.push(Arc::new(UInt64Array::from_iter_values(seqs.iter().map(|seq| seq.0))));
        file.write(&projected(&schema, &all, columns, offsets.len())?)?;
    }
    file.finish()
}

/// The column with its views compacted: Arrow writes every buffer that a view array holds, however few of its bytes the
/// rows use, and the rows of a large batch stand in several record batches.
fn without_slack(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => Arc::clone(column),
    }
}

fn write_keys(mut file: SectionEncoder, memtable: &Memtable) -> Result<()> {
    let keys = memtable.sorted_keys()?.ok_or_else(|| Error::internal("a table without keys has no key list"))?;
    let mut hashes = MutableBuffer::with_capacity(keys.len() * 8);
    let mut offsets = MutableBuffer::with_capacity(keys.len() * 4);
    for (hash, offset) in &keys {
        hashes.extend_from_slice(&hash.to_le_bytes());
        offsets.extend_from_slice(&offset.to_le_bytes());
    }
    file.section(format::HASHES, hashes.into())?;
    file.section(format::OFFSETS, offsets.into())?;
    let filter = filter::build(keys.iter().map(|(hash, _)| *hash));
    file.section(format::FILTER, Buffer::from(filter))?;
    file.finish()
}

fn write_ends(mut file: Encoder, marks: &[(RowId, PubNo)]) -> Result<()> {
    for chunk in marks.chunks(format::CHUNK_ROWS as usize) {
        let rows = UInt64Array::from_iter_values(chunk.iter().map(|(row, _)| row.0));
        let publications = UInt64Array::from_iter_values(chunk.iter().map(|(_, by)| by.0));
        file.write(&RecordBatch::try_new(ends_schema(), vec![Arc::new(rows), Arc::new(publications)])?)?;
    }
    file.finish()
}
