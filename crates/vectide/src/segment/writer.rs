//! Writes a segment's files: each is encoded on a blocking thread, piece by piece, while the piece before it is written.
//!
//! `flush/build` names the parts and says what goes into them; out come their names, lengths and checksums for the
//! manifest. At most [`PIECES`] encoded pieces wait at a time, so memory stays at a few record batches. Invariant: the
//! object is whole and durable when `write_part` returns; a failure leaves at most an object that nothing names.

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
use arrow::array::{LargeBinaryArray, RecordBatch, StringArray, UInt64Array};
use arrow::buffer::{Buffer, MutableBuffer, OffsetBuffer};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;
use vectide_graph::{FrozenHeader, Section};

/// Encoded pieces that may wait to be written.
const PIECES: usize = 1;
/// Alignment of every buffer in the files, in bytes.
const ALIGNMENT: usize = 64;

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
    let name = part.name();
    let (before, after) = part.fail_points();
    let path = format!("{dir}{name}");
    let fail = |point| failpoint::hit(point).map_err(|e| Error::io(format_args!("writing {path}"), e));
    fail(before)?;
    let (pieces, mut encoded) = mpsc::channel(PIECES);
    let memtable = Arc::clone(memtable);
    let encoding = tokio::task::spawn_blocking(move || encode(&part, &memtable, pieces));
    let mut object = store.create(&path).await?;
    while let Some(piece) = encoded.recv().await {
        object.write(piece).await?;
    }
    // The channel closes at the end and on an error alike: only now is it known which it was.
    let encoded =
        encoding.await.map_err(|e| Error::internal(format!("encoding {path} was cut short")).with_source(e))?;
    encoded.map_err(|e| e.context(format_args!("writing {path}")))?;
    let written = object.finish().await?;
    fail(after)?;
    Ok(PartMeta { name, len: written.len, crc32c: written.crc32c })
}

fn encode(part: &Part, memtable: &Memtable, pieces: mpsc::Sender<Bytes>) -> Result<()> {
    let name = part.name();
    let start = |schema: SchemaRef, rows: u64| Encoder::start(&schema, &name, memtable.first_row(), rows, pieces);
    let rows = u64::from(memtable.rows());
    match part {
        Part::Rows => write_rows(start(rows_schema(memtable.schema()), rows)?, memtable),
        Part::Graph(column) => {
            let mut sections = SectionEncoder(start(sections_schema(), rows)?);
            memtable.freeze(*column, &mut sections)?;
            sections.0.finish()
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

/// An Arrow file on its way out.
struct Encoder {
    file: FileWriter<Vec<u8>>,
    pieces: mpsc::Sender<Bytes>,
}

impl Encoder {
    fn start(schema: &Schema, name: &str, first_row: RowId, rows: u64, pieces: mpsc::Sender<Bytes>) -> Result<Self> {
        let metadata = [
            (META_FORMAT, FORMAT.to_owned()),
            (META_PART, name.to_owned()),
            (META_FIRST_ROW, first_row.to_string()),
            (META_ROWS, rows.to_string()),
        ];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
        let schema = schema.clone().with_metadata(metadata);
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        Ok(Self { file: FileWriter::try_new_with_options(Vec::new(), &schema, options)?, pieces })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.file.get_mut().reserve(batch.get_array_memory_size());
        self.file.write(batch)?;
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        let piece = Bytes::from(std::mem::take(self.file.get_mut()));
        // The receiver is gone if writing failed or was given up; its error is the one that counts.
        self.pieces.blocking_send(piece).map_err(|_| Error::closed("the object's writer has stopped"))
    }

    fn finish(mut self) -> Result<()> {
        self.file.finish()?;
        self.send()
    }
}

/// A file of named sections, each a record batch of one row.
struct SectionEncoder(Encoder);

impl SectionEncoder {
    fn section(&mut self, name: &str, bytes: Buffer) -> Result<()> {
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
        let mut columns = memtable.read(range, &stored)?.columns().to_vec();
        let seqs = memtable.seqs(&offsets)?;
        columns.push(Arc::new(UInt64Array::from_iter_values(seqs.iter().map(|seq| seq.0))));
        file.write(&projected(&schema, &all, columns, offsets.len())?)?;
    }
    file.finish()
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
    file.0.finish()
}

fn write_ends(mut file: Encoder, marks: &[(RowId, PubNo)]) -> Result<()> {
    for chunk in marks.chunks(format::CHUNK_ROWS as usize) {
        let rows = UInt64Array::from_iter_values(chunk.iter().map(|(row, _)| row.0));
        let publications = UInt64Array::from_iter_values(chunk.iter().map(|(_, by)| by.0));
        file.write(&RecordBatch::try_new(ends_schema(), vec![Arc::new(rows), Arc::new(publications)])?)?;
    }
    file.finish()
}
