//! Frames: how a batch stands in the log, byte by byte.
//!
//! The caller's thread turns rows into an [`EncodedBatch`] (bodies and their checksums); the log thread seals each
//! part's header once it knows where the frame will stand; [`parse`] reads them back. Everything is little endian and
//! padded to 8 bytes. Invariant: a reader accepts a frame only at the position, and in the epoch, that it was sealed for,
//! so that bytes of an older file or a copy inside a user's column are never mistaken for one.
//!
//! ```text
//! file or object   header: magic 8 | format u32 | reserved u32 | epoch u64 | start u64 | put schema length u32
//!                  | delete schema length u32 | put schema | delete schema | crc32c u32 of all before | zeros to 8
//!                  then frames, then zeros (preallocated space)
//! frame            header: see `FrameHeader::seal` (80 bytes) | idempotency key, zeros to 8 | body
//! ```

use super::body::{self, BodyEncoder};
use crate::error::{Error, Result};
use crate::ids::{Epoch, PubNo, Seq};
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use crc32c::{crc32c, crc32c_append};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Bytes of a frame's header without its idempotency key.
pub(crate) const HEADER_BYTES: usize = 80;
/// A caller's idempotency key is at most this long.
pub(crate) const MAX_KEY_BYTES: usize = 64;
/// No body is larger: the bound that a reader puts on a length before it trusts it.
pub(crate) const MAX_BODY_BYTES: u64 = 1 << 30;
/// A part is cut at about so many bytes.
const PART_BYTES: usize = 8 << 20;
/// A part holds at most so many rows.
const PART_ROWS: usize = 65_536;

const FRAME_MAGIC: [u8; 4] = *b"VTDF";
const FRAME_VERSION: u16 = 1;
const FILE_MAGIC: [u8; 8] = *b"VTDLOG\r\n";
const FILE_FORMAT: u32 = 1;
const FILE_FIXED_BYTES: usize = 40;
/// Bound on each schema in a file header.
const MAX_SCHEMA_BYTES: usize = 16 << 20;
/// Encoders that a schema keeps for reuse.
const MAX_IDLE_ENCODERS: usize = 64;

/// What a batch does to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrameKind {
    /// Rows of the table's schema: inserts and upserts.
    Put,
    /// Keys to delete, in the log schema's delete columns.
    Delete,
}

/// A schema message's schema. Arrow's decoder panics on some messages that its own verifier lets pass (types that it
/// does not know), so a panic means what an error does: no schema of ours. Fuzzers stop at any panic and go without.
fn decoded(message: &[u8]) -> Option<Schema> {
    if cfg!(fuzzing) {
        return None;
    }
    let decode = || arrow_ipc::convert::try_schema_from_flatbuffer_bytes(message).ok();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode)).ok().flatten()
}

/// The two schemas of a shard's log, and encoders ready for them. One per table, shared by all its writers.
pub(crate) struct LogSchema {
    put: SchemaRef,
    delete: SchemaRef,
    messages: [Vec<u8>; 2],
    idle: [Mutex<Vec<BodyEncoder>>; 2],
}

impl fmt::Debug for LogSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSchema").field("put", &self.put).field("delete", &self.delete).finish_non_exhaustive()
    }
}

impl LogSchema {
    /// `put` is the table's schema, `delete` the columns of a delete's batch (the key; empty for a key-less table).
    ///
    /// # Errors
    /// `Invalid` if a column holds a dictionary type (the writer resolves those first) or a schema is absurdly large.
    pub(crate) fn new(put: SchemaRef, delete: SchemaRef) -> Result<Arc<Self>> {
        for field in put.fields().iter().chain(delete.fields()) {
            if body::has_dictionary(field.data_type()) {
                return Err(Error::invalid(format!(
                    "column `{}` is of type {}: dictionaries have to be resolved before rows are logged",
                    field.name(),
                    field.data_type()
                )));
            }
        }
        let messages = [body::schema_message(&put), body::schema_message(&delete)];
        if messages.iter().any(|m| m.len() > MAX_SCHEMA_BYTES) {
            return Err(Error::invalid("the schema's description is larger than 16 MiB: shorten its metadata"));
        }
        Ok(Arc::new(Self { put, delete, messages, idle: Default::default() }))
    }

    /// The schema of batches of `kind`.
    pub(crate) fn of(&self, kind: FrameKind) -> &SchemaRef {
        match kind {
            FrameKind::Put => &self.put,
            FrameKind::Delete => &self.delete,
        }
    }

    fn with_encoder<T>(&self, kind: FrameKind, work: impl FnOnce(&mut BodyEncoder) -> Result<T>) -> Result<T> {
        let idle = &self.idle[kind as usize];
        let kept = idle.lock().pop();
        let mut encoder = match kept {
            Some(encoder) => encoder,
            None => BodyEncoder::new(self.of(kind))?,
        };
        let done = work(&mut encoder);
        if done.is_ok() {
            let mut idle = idle.lock();
            if idle.len() < MAX_IDLE_ENCODERS {
                idle.push(encoder);
            }
        }
        done
    }

    /// The header that opens a log file (`start` = its first byte's position) or object (`start` = its number).
    pub(crate) fn file_header(&self, epoch: Epoch, start: u64) -> Vec<u8> {
        let [put, delete] = &self.messages;
        let mut out = Vec::with_capacity(FILE_FIXED_BYTES + put.len() + delete.len() + 16);
        out.extend_from_slice(&FILE_MAGIC);
        out.extend_from_slice(&FILE_FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&epoch.0.to_le_bytes());
        out.extend_from_slice(&start.to_le_bytes());
        out.extend_from_slice(&(put.len() as u32).to_le_bytes());
        out.extend_from_slice(&(delete.len() as u32).to_le_bytes());
        out.extend_from_slice(put);
        out.extend_from_slice(delete);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(pad8(out.len()), 0);
        out
    }

    /// Whether stored schema messages mean this log's schemas. Equal bytes, or (after an upgrade of arrow) equal meaning.
    fn matches(&self, put: &[u8], delete: &[u8]) -> bool {
        let same = |stored: &[u8], message: &[u8], schema: &Schema| {
            stored == message || decoded(stored).is_some_and(|stored| stored == *schema)
        };
        same(put, &self.messages[0], &self.put) && same(delete, &self.messages[1], &self.delete)
    }

    /// Reads the header of a file or object of `epoch` that starts at `start`. `bytes` may go on behind it.
    pub(crate) fn parse_file_header(&self, bytes: &[u8], epoch: Epoch, start: u64) -> FileHeader {
        use FileHeader::{Bad, Foreign, Short};
        let fields = Fields(bytes);
        if bytes.len() < FILE_FIXED_BYTES {
            return Short(FILE_FIXED_BYTES);
        }
        if bytes[..8] != FILE_MAGIC {
            return Bad("it does not begin with the log's magic".into());
        }
        let (put_len, delete_len) = (fields.u32(32) as usize, fields.u32(36) as usize);
        if put_len > MAX_SCHEMA_BYTES || delete_len > MAX_SCHEMA_BYTES {
            return Bad("its schema's length is out of range".into());
        }
        let crc_at = FILE_FIXED_BYTES + put_len + delete_len;
        let len = pad8(crc_at + 4);
        if bytes.len() < len {
            return Short(len);
        }
        if crc32c(&bytes[..crc_at]) != fields.u32(crc_at) {
            return Bad("the header's checksum does not match".into());
        }
        if fields.u32(8) != FILE_FORMAT {
            return Foreign(format!("format {} is not known to this version of Vectide: upgrade", fields.u32(8)));
        }
        if fields.u64(16) != epoch.0 || fields.u64(24) != start {
            return Foreign(format!("it belongs at {}/{} of the log", fields.u64(16), fields.u64(24)));
        }
        let schemas = &bytes[FILE_FIXED_BYTES..crc_at];
        if !self.matches(&schemas[..put_len], &schemas[put_len..]) {
            return Foreign("it was written with another schema than the table's".into());
        }
        FileHeader::Whole { len }
    }
}

/// What stands at the start of a log file or object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FileHeader {
    /// A header of `len` bytes.
    Whole {
        /// Its bytes, padding included.
        len: usize,
    },
    /// At least so many bytes are needed to tell.
    Short(usize),
    /// Cut off or damaged; says why.
    Bad(String),
    /// Whole, but not for this reader: of a newer version, another schema, another place. Never a torn tail.
    Foreign(String),
}

/// One part of a batch: up to 65,536 rows in one frame.
#[derive(Debug)]
struct Part {
    body: Buffer,
    crc: u32,
    rows: u32,
}

/// A batch in log form, with everything but its place: made in the caller's thread, read by memtable and log alike.
#[derive(Debug)]
pub(crate) struct EncodedBatch {
    kind: FrameKind,
    schema: Arc<LogSchema>,
    key: Option<Box<[u8]>>,
    parts: Vec<Part>,
    rows: u64,
    bytes: u64,
}

impl EncodedBatch {
    /// Encodes and checksums `batch` (`[rows]`, at least one, in the log schema's columns for `kind`), split into parts
    /// of about 8 MiB or 65,536 rows. Copies the rows once; keeps nothing of the caller's memory.
    ///
    /// # Errors
    /// `Invalid` if the batch is empty or of another schema, the idempotency key longer than 64 bytes, or a single row
    /// larger than 1 GiB.
    pub(crate) fn encode(
        schema: &Arc<LogSchema>,
        kind: FrameKind,
        batch: &RecordBatch,
        idempotency_key: Option<&[u8]>,
    ) -> Result<Self> {
        check_columns(schema.of(kind), batch)?;
        if let Some(key) = idempotency_key.filter(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
            return Err(Error::invalid(format!("the idempotency key has {} bytes: 1 to 64 are allowed", key.len())));
        }
        let batch = body::without_slack(batch)?;
        let parts = schema.with_encoder(kind, |encoder| encode_parts(encoder, &batch))?;
        let mut encoded = Self {
            kind,
            schema: Arc::clone(schema),
            key: idempotency_key.map(Into::into),
            rows: parts.iter().map(|part| u64::from(part.rows)).sum(),
            parts,
            bytes: 0,
        };
        encoded.bytes = (0..encoded.parts.len())
            .map(|i| (HEADER_BYTES + pad8(encoded.part_key(i).len()) + encoded.parts[i].body.len()) as u64)
            .sum();
        Ok(encoded)
    }

    /// Rows put, or keys deleted; each takes one seq.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes that its frames take in the log, headers included.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The rows as views on exactly the bytes that go to the log: one batch a part, nothing copied.
    pub(crate) fn decode_parts(&self) -> Result<Vec<RecordBatch>> {
        self.parts.iter().map(|part| body::decode(&part.body, self.schema.of(self.kind), part.rows as usize)).collect()
    }

    pub(crate) fn part_count(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn part_body(&self, part: usize) -> &Buffer {
        &self.parts[part].body
    }

    fn part_key(&self, part: usize) -> &[u8] {
        match &self.key {
            Some(key) if part == 0 => key,
            _ => &[],
        }
    }

    /// Bytes of the frame of `part`.
    pub(crate) fn part_bytes(&self, part: usize) -> u64 {
        (HEADER_BYTES + pad8(self.part_key(part).len()) + self.parts[part].body.len()) as u64
    }

    /// Appends the header (and key) of `part` to `out`: the frame is this followed by the part's body.
    pub(crate) fn seal_header(&self, part: usize, place: &Place, out: &mut Vec<u8>) {
        let before: u64 = self.parts[..part].iter().map(|part| u64::from(part.rows)).sum();
        let sealed = &self.parts[part];
        FrameHeader {
            kind: self.kind,
            epoch: place.epoch,
            at: place.at,
            first_seq: place.first_seq.plus(before),
            publication: place.publication,
            synced_to: place.synced_to,
            rows: sealed.rows,
            part: part as u32,
            parts: self.parts.len() as u32,
            body_len: sealed.body.len() as u64,
            body_crc: sealed.crc,
            key: self.part_key(part).into(),
        }
        .seal(out);
    }
}

fn check_columns(expected: &SchemaRef, batch: &RecordBatch) -> Result<()> {
    if batch.num_rows() == 0 {
        return Err(Error::invalid("an empty batch is not logged"));
    }
    if Arc::ptr_eq(expected, batch.schema_ref()) {
        return Ok(());
    }
    let got = batch.schema_ref();
    let types = |schema: &Schema| schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
    if types(expected) != types(got) {
        return Err(Error::invalid(format!("the batch's columns are {got}, the log's are {expected}")));
    }
    Ok(())
}

fn encode_parts(encoder: &mut BodyEncoder, batch: &RecordBatch) -> Result<Vec<Part>> {
    let rows = batch.num_rows();
    let by_bytes = if rows == 1 { 1 } else { (rows * PART_BYTES / body::batch_bytes(batch).max(1)).max(1) };
    let step = by_bytes.min(PART_ROWS);
    let mut parts = Vec::with_capacity(rows.div_ceil(step));
    for first in (0..rows).step_by(step) {
        let count = step.min(rows - first);
        let body = if count == rows { encoder.encode(batch)? } else { encoder.encode(&batch.slice(first, count))? };
        if body.len() as u64 > MAX_BODY_BYTES {
            let what = if count == 1 { "row" } else { "run of rows" };
            return Err(Error::invalid(format!("the {what} at {first} takes {} bytes: at most 1 GiB fit", body.len())));
        }
        parts.push(Part { crc: crc32c(&body), body, rows: count as u32 });
    }
    Ok(parts)
}

/// Where a frame stands: known when the log thread writes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) epoch: Epoch,
    /// Log byte of the frame's first byte (local), or its object's number.
    pub(crate) at: u64,
    /// The *batch's* first seq; a part adds the rows before it.
    pub(crate) first_seq: Seq,
    pub(crate) publication: PubNo,
    /// Everything in the log before this byte (or object number) was durable when the header was sealed.
    pub(crate) synced_to: u64,
}

/// A frame's header, as written and as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    pub(crate) epoch: Epoch,
    pub(crate) at: u64,
    pub(crate) first_seq: Seq,
    pub(crate) publication: PubNo,
    pub(crate) synced_to: u64,
    pub(crate) rows: u32,
    pub(crate) part: u32,
    pub(crate) parts: u32,
    pub(crate) body_len: u64,
    pub(crate) body_crc: u32,
    pub(crate) key: Box<[u8]>,
}

/// What stands where a frame could begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderRead {
    /// A header that is whole and belongs here; its body follows `len` bytes on.
    Whole {
        header: FrameHeader,
        /// Bytes of header and key.
        len: usize,
    },
    /// Nothing: zeros, as in space that was reserved and not written.
    Zero,
    /// Fewer bytes than a header: at least so many are needed.
    Short(usize),
    /// Something else, torn or damaged; says why.
    Bad(&'static str),
    /// Whole, but of a version that this reader does not know. Never a torn tail.
    Foreign(&'static str),
}

impl FrameHeader {
    /// ```text
    ///  0 magic | 4 version u16 | 6 kind u8 | 7 key length u8 | 8 epoch | 16 at | 24 first seq | 32 publication
    /// 40 synced to | 48 body length | 56 rows u32 | 60 part u32 | 64 parts u32 | 68 body crc u32 | 72 zero u32
    /// 76 crc32c u32 of bytes 0..76 and the key
    /// ```
    fn seal(&self, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&FRAME_MAGIC);
        out.extend_from_slice(&FRAME_VERSION.to_le_bytes());
        out.push(match self.kind {
            FrameKind::Put => 1,
            FrameKind::Delete => 2,
        });
        out.push(self.key.len() as u8);
        for word in [self.epoch.0, self.at, self.first_seq.0, self.publication.0, self.synced_to, self.body_len] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [self.rows, self.part, self.parts, self.body_crc, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c_append(crc32c(&out[from..]), &self.key);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&self.key);
        out.resize(from + HEADER_BYTES + pad8(self.key.len()), 0);
    }

    /// Reads what stands at log position `at` of `epoch`. Never panics; looks at no more than a header and key.
    pub(crate) fn parse(bytes: &[u8], epoch: Epoch, at: u64) -> HeaderRead {
        use HeaderRead::{Bad, Foreign, Short, Zero};
        if bytes.len() < HEADER_BYTES {
            return if bytes.iter().all(|&b| b == 0) { Zero } else { Short(HEADER_BYTES) };
        }
        let fields = Fields(bytes);
        if bytes[..4] != FRAME_MAGIC {
            return if bytes[..HEADER_BYTES].iter().all(|&b| b == 0) { Zero } else { Bad("no frame begins here") };
        }
        let key_len = usize::from(bytes[7]);
        if key_len > MAX_KEY_BYTES {
            return Bad("the frame's key is too long");
        }
        let len = HEADER_BYTES + pad8(key_len);
        if bytes.len() < len {
            return Short(len);
        }
        let key = &bytes[HEADER_BYTES..HEADER_BYTES + key_len];
        if crc32c_append(crc32c(&bytes[..76]), key) != fields.u32(76) {
            return Bad("the frame header's checksum does not match");
        }
        if fields.u16(4) != FRAME_VERSION {
            return Foreign("the frame's version is not known to this version of Vectide: upgrade");
        }
        let kind = match bytes[6] {
            1 => FrameKind::Put,
            2 => FrameKind::Delete,
            _ => return Foreign("the frame's kind is not known to this version of Vectide: upgrade"),
        };
        let header = Self {
            kind,
            epoch: Epoch(fields.u64(8)),
            at: fields.u64(16),
            first_seq: Seq(fields.u64(24)),
            publication: PubNo(fields.u64(32)),
            synced_to: fields.u64(40),
            body_len: fields.u64(48),
            rows: fields.u32(56),
            part: fields.u32(60),
            parts: fields.u32(64),
            body_crc: fields.u32(68),
            key: key.into(),
        };
        if header.epoch != epoch || header.at != at {
            return Bad("the frame belongs elsewhere");
        }
        if !header.is_consistent() {
            return Bad("the frame header contradicts itself");
        }
        HeaderRead::Whole { header, len }
    }

    /// Whether `bytes` begin like a frame: a cheap test before [`FrameHeader::parse`] when searching.
    pub(super) fn may_begin(bytes: &[u8]) -> bool {
        bytes.starts_with(&FRAME_MAGIC)
    }

    fn is_consistent(&self) -> bool {
        self.rows > 0
            && self.part < self.parts
            && self.body_len <= MAX_BODY_BYTES
            && self.body_len.is_multiple_of(8)
            && self.synced_to <= self.at
            && self.first_seq.0.checked_add(u64::from(self.rows)).is_some()
    }
}

/// A frame with its body.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) header: FrameHeader,
    pub(crate) body: Buffer,
}

impl Frame {
    /// Whether the body is the one that was sealed.
    pub(crate) fn body_is_whole(&self) -> bool {
        self.body.len() as u64 == self.header.body_len && crc32c(&self.body) == self.header.body_crc
    }

    /// The rows, as views on the body.
    pub(crate) fn decode(&self, schema: &LogSchema) -> Result<RecordBatch> {
        body::decode(&self.body, schema.of(self.header.kind), self.header.rows as usize)
    }
}

/// A frame read from bytes that hold all of it (an object, a fuzzer's input), or why there is none.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A whole frame of `len` bytes.
    Frame {
        frame: Frame,
        /// Its bytes, header and key included.
        len: usize,
    },
    /// Zeros or nothing.
    End,
    /// Cut off, or damaged; says what is wrong.
    Bad(&'static str),
}

/// Reads the frame at the start of `bytes`, which stands at `at` in `epoch`'s log. The body is copied into a 64-byte
/// aligned buffer of its own. Never panics.
pub(crate) fn parse(bytes: &[u8], epoch: Epoch, at: u64) -> Parsed {
    let (header, len) = match FrameHeader::parse(bytes, epoch, at) {
        HeaderRead::Whole { header, len } => (header, len),
        HeaderRead::Zero => return Parsed::End,
        HeaderRead::Short(_) => return Parsed::Bad("the frame's header is cut off"),
        HeaderRead::Bad(why) | HeaderRead::Foreign(why) => return Parsed::Bad(why),
    };
    let end = len + header.body_len as usize;
    if end > bytes.len() {
        return Parsed::Bad("the frame's body is cut off");
    }
    let frame = Frame { header, body: aligned(&bytes[len..end]) };
    if !frame.body_is_whole() {
        return Parsed::Bad("the frame body's checksum does not match");
    }
    Parsed::Frame { frame, len: end }
}

/// A 64-byte aligned copy of exactly these bytes.
pub(super) fn aligned(bytes: &[u8]) -> Buffer {
    Buffer::from_slice_ref(bytes)
}

/// `n` rounded up to a multiple of 8.
pub(crate) const fn pad8(n: usize) -> usize {
    (n + 7) & !7
}

/// Little-endian fields of bytes whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.0[at..at + 2].try_into().expect("two bytes"))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
