//! A frame's body: one record batch as an Arrow IPC encapsulated message, and back without copying.
//!
//! [`frame`](super::frame) hands a batch (or a slice of one) in and gets one 64-byte aligned buffer out; replay hands
//! such a buffer in and gets a batch of views on it. Invariant: decoding bytes of any content ends in a batch or an
//! error, never in a panic: what arrow takes on trust (buffer bounds, node counts) is checked here first.

use crate::error::{Error, Result};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef, UnionMode};
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, StreamWriter};
use arrow_ipc::{MetadataVersion, root_as_message};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Parts of fewer rows pack their columns at 8 (or 16) bytes instead of 64: a one-row frame then costs no kilobyte.
const WIDE_ROWS: usize = 256;
/// Bodies up to this size are built in reused scratch and copied out, so that no allocation is larger than its content.
const SCRATCH_BYTES: usize = 64 << 10;
/// No array in a body is longer; keeps every later product of lengths and widths inside 64 bits.
const MAX_ARRAY_LEN: i64 = u32::MAX as i64;

/// The flatbuffer message that describes `schema`.
pub(super) fn schema_message(schema: &SchemaRef) -> Vec<u8> {
    let mut tracker = DictionaryTracker::new(true);
    IpcDataGenerator::default()
        .schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &IpcWriteOptions::default())
        .ipc_message
}

/// Whether `data_type` holds a dictionary anywhere; those are resolved before rows reach the log.
pub(super) fn has_dictionary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Dictionary(_, _)) || children(data_type).iter().any(|f| has_dictionary(f.data_type()))
}

fn children(data_type: &DataType) -> Vec<&Field> {
    match data_type {
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => vec![f],
        DataType::Struct(fields) => fields.iter().map(AsRef::as_ref).collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, f)| f.as_ref()).collect(),
        DataType::RunEndEncoded(ends, values) => vec![ends, values],
        _ => Vec::new(),
    }
}

/// Whether some column's values want 16-byte alignment, so that views on them need no copy.
fn wants_16_bytes(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal128(_, _)
            | DataType::Decimal256(_, _)
            | DataType::Utf8View
            | DataType::BinaryView
            | DataType::Interval(_)
    ) || children(data_type).iter().any(|f| wants_16_bytes(f.data_type()))
}

/// Collects what arrow's stream writer writes.
#[derive(Default)]
struct Sink(MutableBuffer);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns batches of one schema into bodies. Keeps arrow's writers and scratch between calls: a one-row batch costs a few
/// microseconds.
pub(super) struct BodyEncoder {
    narrow: StreamWriter<Sink>,
    wide: StreamWriter<Sink>,
}

impl BodyEncoder {
    pub(super) fn new(schema: &SchemaRef) -> Result<Self> {
        let narrow = if schema.fields().iter().any(|f| wants_16_bytes(f.data_type())) { 16 } else { 8 };
        Ok(Self { narrow: stream_writer(schema, narrow)?, wide: stream_writer(schema, 64)? })
    }

    /// Encodes all of `batch` as one body; its length is a multiple of 8.
    pub(super) fn encode(&mut self, batch: &RecordBatch) -> Result<Buffer> {
        let writer = if batch.num_rows() < WIDE_ROWS { &mut self.narrow } else { &mut self.wide };
        let size = batch_bytes(batch);
        if size <= SCRATCH_BYTES {
            writer.get_mut().0.clear();
            writer.write(batch)?;
            let scratch = &writer.get_ref().0;
            let mut exact = MutableBuffer::with_capacity(scratch.len());
            exact.extend_from_slice(scratch.as_slice());
            return Ok(exact.into());
        }
        let room = size + 4096 + 192 * batch.num_columns();
        let scratch = std::mem::replace(&mut writer.get_mut().0, MutableBuffer::with_capacity(room));
        let written = writer.write(batch);
        let body = std::mem::replace(&mut writer.get_mut().0, scratch);
        written?;
        Ok(body.into())
    }
}

fn stream_writer(schema: &SchemaRef, alignment: usize) -> Result<StreamWriter<Sink>> {
    let options = IpcWriteOptions::try_new(alignment, false, MetadataVersion::V5)?;
    Ok(StreamWriter::try_new_with_options(Sink::default(), schema, options)?)
}

/// Bytes that the rows of `batch` take, without message and padding.
pub(super) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// The batch with its string and binary views compacted: arrow writes every buffer that a view array holds, however few
/// of its bytes the rows use.
pub(super) fn without_slack(batch: &RecordBatch) -> Result<RecordBatch> {
    let is_view = |a: &ArrayRef| matches!(a.data_type(), DataType::Utf8View | DataType::BinaryView);
    if !batch.columns().iter().any(is_view) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()) as ArrayRef,
        _ => Arc::clone(column),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns.collect(), &options)?)
}

/// Decodes a body of `rows` rows into views on `body`. Columns that the encoder aligned are not copied.
///
/// # Errors
/// `Corrupt` if the bytes are no record batch of `schema` with `rows` rows.
pub(super) fn decode(body: &Buffer, schema: &SchemaRef, rows: usize) -> Result<RecordBatch> {
    decode_columns(body, schema, rows, None).map_err(|e| e.context("log body"))
}

/// [`decode`] of the columns at `projection` alone, `None` for all; the others are neither read nor validated. A
/// segment's files hold the same messages.
pub(crate) fn decode_columns(
    body: &Buffer,
    schema: &SchemaRef,
    rows: usize,
    projection: Option<&[usize]>,
) -> Result<RecordBatch> {
    let bytes = body.as_slice();
    let bad = |what: &str| Error::corrupt(format!("no record batch of the expected schema: {what}"));
    if bytes.len() < 8 || bytes[..4] != [0xff; 4] {
        return Err(bad("it does not begin with an Arrow message"));
    }
    let message_len = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
    if message_len > bytes.len() - 8 || !message_len.is_multiple_of(8) {
        return Err(bad("its message's length is out of range"));
    }
    let message =
        root_as_message(&bytes[8..8 + message_len]).map_err(|e| bad(&format!("its message is malformed ({e})")))?;
    let batch = message.header_as_record_batch().ok_or_else(|| bad("its message is of another kind"))?;
    let data = body.slice(8 + message_len);
    if message.version() != MetadataVersion::V5 || batch.compression().is_some() {
        return Err(bad("it is compressed or of another version"));
    }
    if message.bodyLength() != data.len() as i64 || batch.length() != rows as i64 {
        return Err(bad("its lengths are not the expected ones"));
    }
    Shape::of(&batch, data.len()).and_then(|shape| shape.check(schema, rows as i64)).map_err(bad)?;
    let none = HashMap::new();
    RecordBatchDecoder::try_new(&data, batch, Arc::clone(schema), &none, &MetadataVersion::V5)
        .and_then(|decoder| decoder.with_projection(projection).read_record_batch())
        .map_err(|e| bad(&e.to_string()).with_source(e))
}

type Checked<T> = std::result::Result<T, &'static str>;

/// The array nodes and buffers that a message lists, taken in schema order and checked against it.
struct Shape {
    nodes: std::vec::IntoIter<(i64, i64)>,
    buffers: std::vec::IntoIter<i64>,
    variadic: std::vec::IntoIter<i64>,
}

impl Shape {
    fn of(batch: &arrow_ipc::RecordBatch<'_>, data_len: usize) -> Checked<Self> {
        let nodes = batch.nodes().ok_or("it lists no nodes")?;
        let nodes: Vec<_> = nodes.iter().map(|n| (n.length(), n.null_count())).collect();
        if nodes.iter().any(|&(len, nulls)| !(0..=MAX_ARRAY_LEN).contains(&len) || nulls < 0 || nulls > len) {
            return Err("a node's length is out of range");
        }
        let mut buffers = Vec::new();
        for buffer in batch.buffers().ok_or("it lists no buffers")?.iter() {
            let (offset, len) = (buffer.offset(), buffer.length());
            if offset < 0 || len < 0 || offset.checked_add(len).is_none_or(|end| end > data_len as i64) {
                return Err("a buffer lies outside the body");
            }
            if offset % 8 != 0 {
                return Err("a buffer is not aligned");
            }
            buffers.push(len);
        }
        let variadic: Vec<i64> = batch.variadicBufferCounts().into_iter().flatten().collect();
        if variadic.iter().any(|&n| n < 0 || n > buffers.len() as i64) {
            return Err("a view column's buffer count is out of range");
        }
        Ok(Self { nodes: nodes.into_iter(), buffers: buffers.into_iter(), variadic: variadic.into_iter() })
    }

    fn check(mut self, schema: &SchemaRef, rows: i64) -> Checked<()> {
        for field in schema.fields() {
            if self.array(field.data_type())? != rows {
                return Err("a column's length is not the row count");
            }
        }
        if self.nodes.next().is_some() || self.buffers.next().is_some() || self.variadic.next().is_some() {
            return Err("it lists more columns than the schema");
        }
        Ok(())
    }

    /// Takes what one array of `data_type` needs; returns its length.
    fn array(&mut self, data_type: &DataType) -> Checked<i64> {
        let (len, nulls) = self.nodes.next().ok_or("it lists fewer columns than the schema")?;
        match data_type {
            DataType::Null => {}
            DataType::RunEndEncoded(_, _) => {}
            DataType::Union(_, mode) => {
                self.buffer(len)?;
                if *mode == UnionMode::Dense {
                    self.buffer(len * 4)?;
                }
            }
            _ => {
                let validity = if nulls > 0 { (len + 7) / 8 } else { 0 };
                self.buffer(validity)?;
                self.value_buffers(data_type)?;
            }
        }
        for child in children(data_type) {
            self.array(child.data_type())?;
        }
        Ok(len)
    }

    /// The buffers after validity. Their sizes are arrow's to check, but it panics where one holds part of an element.
    fn value_buffers(&mut self, data_type: &DataType) -> Checked<()> {
        match data_type {
            DataType::Struct(_) | DataType::FixedSizeList(_, _) => {}
            DataType::Utf8 | DataType::Binary => {
                self.elements(4)?;
                self.elements(1)?;
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.elements(8)?;
                self.elements(1)?;
            }
            DataType::List(_) | DataType::Map(_, _) => self.elements(4)?,
            DataType::LargeList(_) => self.elements(8)?,
            DataType::ListView(_) => (0..2).try_for_each(|_| self.elements(4))?,
            DataType::LargeListView(_) => (0..2).try_for_each(|_| self.elements(8))?,
            DataType::Utf8View | DataType::BinaryView => {
                self.elements(16)?;
                let count = self.variadic.next().ok_or("a view column's buffer count is missing")?;
                (0..count).try_for_each(|_| self.elements(1))?;
            }
            other => self.elements(other.primitive_width().unwrap_or(1))?,
        }
        Ok(())
    }

    /// A buffer of elements of `width` bytes.
    fn elements(&mut self, width: usize) -> Checked<()> {
        match self.buffers.next() {
            Some(len) if len % width as i64 == 0 => Ok(()),
            Some(_) => Err("a buffer ends inside an element"),
            None => Err("it lists fewer buffers than the schema"),
        }
    }

    fn buffer(&mut self, at_least: i64) -> Checked<()> {
        match self.buffers.next() {
            Some(len) if len >= at_least => Ok(()),
            Some(_) => Err("a buffer is shorter than its array"),
            None => Err("it lists fewer buffers than the schema"),
        }
    }
}
