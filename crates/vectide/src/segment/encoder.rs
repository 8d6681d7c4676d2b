//! An Arrow IPC file on its way out, as pieces that share the arrays' buffers.
//!
//! `writer` puts record batches in; the file's bytes come out in order, in lumps of a few mebibytes. Values are not
//! copied: a piece keeps the buffer that it lies in, and only what is short (messages, padding, small columns) is copied
//! together, so that a lump has few pieces. The messages are Arrow's own; magic, blocks and footer are put around them
//! here. Invariant: every buffer begins at a multiple of [`ALIGNMENT`] in the file.

use crate::error::{Error, Result};
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::convert::schema_to_fb_offset;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_ipc::{Block, FooterBuilder, MetadataVersion};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Alignment of every buffer in the files, in bytes.
const ALIGNMENT: usize = 64;
/// Shorter pieces are copied together.
const SMALL_BYTES: usize = 4 << 10;
/// Longer pieces are cut.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes that are handed on at once.
const LUMP_BYTES: usize = 4 << 20;

const MAGIC: [u8; 6] = *b"ARROW1";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Continuation marker and length, before each message.
const PREFIX_BYTES: usize = 8;

/// A file that is being encoded.
pub(super) struct Encoder {
    schema: SchemaRef,
    messages: StreamEncoder,
    /// Whether the schema's message is out: it comes with the first record batch.
    has_schema: bool,
    batches: Vec<Block>,
    outlet: Outlet,
}

impl Encoder {
    /// Begins a file of `schema`, metadata included, whose lumps go into `lumps`.
    ///
    /// # Errors
    /// `Internal` if Arrow cannot write a column's type; `Closed` if nobody takes the lumps.
    pub(super) fn start(schema: Schema, lumps: mpsc::Sender<Vec<Bytes>>) -> Result<Self> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        let messages = StreamEncoder::try_new_with_options(&schema, options)?;
        let mut outlet = Outlet { lumps, pieces: Vec::new(), small: Vec::new(), lump_bytes: 0, written: 0 };
        let mut head = [0; ALIGNMENT];
        head[..MAGIC.len()].copy_from_slice(&MAGIC);
        outlet.copy(&head)?;
        Ok(Self { schema: Arc::new(schema), messages, has_schema: false, batches: Vec::new(), outlet })
    }

    /// Appends a record batch. Its buffers are held until they are written; blocks while the writing is behind.
    ///
    /// # Errors
    /// As [`Encoder::start`].
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut message = self.messages.encode(batch)?.into_iter().peekable();
        if !self.has_schema {
            let mut left = message_bytes(message.peek())?;
            while left > 0 {
                let part = message.next().ok_or_else(|| unexpected("a schema breaks off"))?;
                left = left.checked_sub(part.len()).ok_or_else(|| unexpected("a schema has a body"))?;
                self.outlet.put(part)?;
            }
            self.has_schema = true;
        }
        let (start, head) = (self.outlet.written, message_bytes(message.peek())?);
        message.try_for_each(|part| self.outlet.put(part))?;
        let body = (self.outlet.written - start).checked_sub(head).ok_or_else(|| unexpected("a batch breaks off"))?;
        let too_long = |_| Error::internal(format!("a record batch of {body} bytes at byte {start}"));
        let head = i32::try_from(head).map_err(too_long)?;
        self.batches.push(Block::new(start as i64, head, body as i64));
        Ok(())
    }

    /// Writes the footer and hands on what is left.
    ///
    /// # Errors
    /// As [`Encoder::start`].
    pub(super) fn finish(self) -> Result<()> {
        let Self { schema, messages, batches, mut outlet, .. } = self;
        // The end-of-stream marker, after the schema if no batch brought that.
        messages.finish()?.into_iter().try_for_each(|part| outlet.put(part))?;
        let mut builder = FlatBufferBuilder::new();
        let batches = builder.create_vector(&batches);
        let dictionaries = builder.create_vector::<Block>(&[]);
        let schema = schema_to_fb_offset(&mut builder, &schema);
        let mut footer = FooterBuilder::new(&mut builder);
        footer.add_version(MetadataVersion::V5);
        footer.add_schema(schema);
        footer.add_dictionaries(dictionaries);
        footer.add_recordBatches(batches);
        let footer = footer.finish();
        builder.finish(footer, None);
        let footer = builder.finished_data();
        let len = i32::try_from(footer.len()).map_err(|_| unexpected("a footer is too long"))?;
        outlet.copy(footer)?;
        outlet.copy(&len.to_le_bytes())?;
        outlet.copy(&MAGIC)?;
        outlet.hand_on()
    }
}

fn unexpected(what: &str) -> Error {
    Error::internal(format!("Arrow's encoder gave out a message of an unknown shape: {what}"))
}

/// Bytes of the message that begins with `prefix`, that included, its body not.
fn message_bytes(prefix: Option<&Buffer>) -> Result<usize> {
    let prefix: Option<&[u8; PREFIX_BYTES]> = prefix.and_then(|prefix| prefix.as_slice().try_into().ok());
    let (marker, len) = prefix.ok_or_else(|| unexpected("no prefix"))?.split_at(CONTINUATION.len());
    if marker != CONTINUATION {
        return Err(unexpected("no continuation marker"));
    }
    Ok(PREFIX_BYTES + u32::from_le_bytes(len.try_into().expect("four bytes")) as usize)
}

/// Where bytes leave.
struct Outlet {
    lumps: mpsc::Sender<Vec<Bytes>>,
    /// The next lump, but for `small`, which comes behind it.
    pieces: Vec<Bytes>,
    small: Vec<u8>,
    lump_bytes: usize,
    /// Bytes of the file so far.
    written: usize,
}

/// An Arrow buffer as the owner of its bytes.
struct Held(Buffer);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Outlet {
    /// Appends a buffer: shared if it is long, copied if it is short.
    fn put(&mut self, buffer: Buffer) -> Result<()> {
        if buffer.len() < SMALL_BYTES {
            return self.copy(&buffer);
        }
        self.end_small();
        let mut rest = Bytes::from_owner(Held(buffer));
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            let len = piece.len();
            self.pieces.push(piece);
            self.count(len)?;
        }
        Ok(())
    }

    /// Appends a copy.
    fn copy(&mut self, bytes: &[u8]) -> Result<()> {
        self.small.extend_from_slice(bytes);
        self.count(bytes.len())
    }

    fn count(&mut self, bytes: usize) -> Result<()> {
        self.written += bytes;
        self.lump_bytes += bytes;
        if self.lump_bytes >= LUMP_BYTES { self.hand_on() } else { Ok(()) }
    }

    fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(Bytes::from(std::mem::take(&mut self.small)));
        }
    }

    fn hand_on(&mut self) -> Result<()> {
        self.end_small();
        self.lump_bytes = 0;
        // The receiver is gone if writing failed or was given up; its error is the one that counts.
        let lump = std::mem::take(&mut self.pieces);
        self.lumps.blocking_send(lump).map_err(|_| Error::closed("the object's writer has stopped"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, LargeBinaryArray};
    use arrow_ipc::reader::FileReader;

    /// The lumps of a file with these batches.
    fn encoded(schema: &SchemaRef, batches: &[RecordBatch]) -> Vec<Vec<Bytes>> {
        let (send, mut lumps) = mpsc::channel(100);
        let mut file = Encoder::start(Schema::clone(schema), send).expect("starts");
        batches.iter().for_each(|batch| file.write(batch).expect("fits"));
        file.finish().expect("ends");
        std::iter::from_fn(|| lumps.try_recv().ok()).collect()
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    #[test]
    fn long_buffers_are_shared_and_short_ones_copied_together() {
        let long = Int64Array::from_iter_values(0..300_000);
        let short: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20));
        let whole = batch(vec![("long", Arc::new(long.clone())), ("again", Arc::new(long.clone()))]);
        let lumps = encoded(&whole.schema(), std::slice::from_ref(&whole));
        let within = long.values().inner().as_slice().as_ptr_range();
        let shared = lumps.iter().flatten().filter(|piece| within.contains(&piece.as_ptr()));
        assert_eq!(shared.map(Bytes::len).sum::<usize>(), 2 * long.values().inner().len());
        assert!(lumps.iter().flatten().all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(lumps.len(), 2, "4.8 MB in lumps of {LUMP_BYTES}");
        let many = batch((0..50).map(|_| ("short", Arc::clone(&short))).collect());
        let lumps = encoded(&many.schema(), &[many]);
        assert_eq!(lumps.iter().flatten().count(), 1);
    }

    #[test]
    fn any_reader_of_arrow_files_reads_it_and_every_buffer_is_aligned() {
        let bytes = LargeBinaryArray::from_iter_values([&b"x"[..], &[7; 10_000], b""]);
        let ids = Int64Array::from(vec![Some(3), None, Some(-1)]);
        let one = batch(vec![("id", Arc::new(ids)), ("bytes", Arc::new(bytes))]);
        for batches in [&[][..], std::slice::from_ref(&one), &[one.clone(), one.slice(1, 2), one.slice(0, 0)]] {
            let metadata = [("vectide.part".to_owned(), "x".to_owned())].into();
            let schema = Arc::new(Schema::clone(&one.schema()).with_metadata(metadata));
            let file = encoded(&schema, batches).concat().concat();
            let reader = FileReader::try_new(std::io::Cursor::new(&file), None).expect("an Arrow file");
            assert_eq!(reader.schema(), schema);
            let read: Vec<_> = reader.map(|batch| batch.expect("decodes")).collect();
            assert_eq!(read.len(), batches.len());
            for (read, written) in read.iter().zip(batches) {
                assert_eq!(read.columns(), written.columns());
            }
            let trailer = file.len() - 10;
            let len = u32::from_le_bytes(file[trailer..trailer + 4].try_into().expect("four bytes")) as usize;
            let footer = arrow_ipc::root_as_footer(&file[trailer - len..trailer]).expect("a footer");
            for block in footer.recordBatches().into_iter().flatten() {
                assert_eq!(block.offset() % ALIGNMENT as i64, 0);
                assert_eq!(i64::from(block.metaDataLength()) % ALIGNMENT as i64, 0);
                let message = &file[block.offset() as usize + PREFIX_BYTES..];
                let message = arrow_ipc::root_as_message(message).expect("a message");
                let batch = message.header_as_record_batch().expect("a record batch");
                assert!(batch.buffers().into_iter().flatten().all(|buffer| buffer.offset() % ALIGNMENT as i64 == 0));
            }
        }
    }
}
