//! Bytes of any content, read as a log.
//!
//! [`crate::fuzzing`] calls it. Invariant: whole batches, the log's end or a named damage come out, never a panic.

use super::assemble::Assembler;
use super::frame::{EncodedBatch, FileHeader, FrameKind, HEADER_BYTES, LogSchema, Parsed, Place, parse};
use super::index::{LOCAL_GRAIN, SeqIndex};
use super::read_local::LocalReader;
use super::{epoch_name, log_file_name};
use crate::fuzzing::{Edits, rows, table_schema};
use crate::ids::{Epoch, LogPosition, PubNo, Seq};
use crate::store::Fs;
use crate::store::sim::SimFs;
use crc32c::{crc32c, crc32c_append};
use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, OnceLock};

const EPOCH: Epoch = Epoch(1);
/// Where the frame header keeps its checksums, and the file header its schemas' lengths.
const BODY_CRC_AT: usize = 68;
const HEADER_CRC_AT: usize = 76;
const SCHEMAS_AT: usize = 40;

/// A log file that is whole, and where its frames and their bodies begin.
struct Sample {
    schema: Arc<LogSchema>,
    bytes: Vec<u8>,
    header_len: usize,
    frames: Vec<(usize, usize)>,
}

/// Four batches: puts of several sizes and a delete.
fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let table = table_schema();
        let schema = crate::table::open::log_schema(&table).expect("no dictionaries");
        let mut bytes = schema.file_header(EPOCH, 0);
        let header_len = bytes.len();
        let (mut frames, mut seq) = (Vec::new(), 1);
        for (n, count) in [1usize, 3, 2, 300].into_iter().enumerate() {
            let batch = rows(&table, seq as i64, count);
            let (kind, batch) = match n {
                2 => (FrameKind::Delete, batch.project(&[0]).expect("the key")),
                _ => (FrameKind::Put, batch),
            };
            let batch = batch.with_schema(Arc::clone(schema.of(kind))).expect("the log's columns");
            let batch = EncodedBatch::encode(&schema, kind, &batch, None).expect("encodes");
            let at = bytes.len() as u64;
            let place =
                Place { epoch: EPOCH, at, first_seq: Seq(seq), publication: PubNo(n as u64 + 1), synced_to: at / 2 };
            batch.seal_header(0, &place, &mut bytes);
            frames.push((at as usize, bytes.len()));
            bytes.extend_from_slice(batch.part_body(0));
            seq += count as u64;
        }
        Sample { schema, bytes, header_len, frames }
    })
}

/// Reads `bytes` as a file, as frames behind a good file header, and as edits of a good file whose checksums are then
/// made right again, so that what lies behind them is reached.
pub(crate) fn read(bytes: &[u8]) {
    let sample = sample();
    read_file(bytes);
    read_frames(bytes);
    let mut behind = sample.bytes[..sample.header_len].to_vec();
    behind.extend_from_slice(bytes);
    read_file(&behind);
    let mut edited = sample.bytes.clone();
    for edit in Edits(bytes) {
        edit.apply(&mut edited);
    }
    read_file(&edited);
    seal(sample, &mut edited);
    read_file(&edited);
    read_frames(&edited);
}

/// Makes every checksum right for what it covers.
fn seal(sample: &Sample, bytes: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let schemas = word(bytes, 32).saturating_add(word(bytes, 36));
    if let Some(crc_at) = schemas.checked_add(SCHEMAS_AT).filter(|at| at + 4 <= bytes.len()) {
        let crc = crc32c(&bytes[..crc_at]);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    for (n, &(at, body)) in sample.frames.iter().enumerate() {
        let end = sample.frames.get(n + 1).map_or(bytes.len(), |next| next.0);
        let body_crc = crc32c(&bytes[body..end]);
        bytes[at + BODY_CRC_AT..][..4].copy_from_slice(&body_crc.to_le_bytes());
        let key = usize::from(bytes[at + 7]).min(body - at - HEADER_BYTES);
        let crc = crc32c_append(crc32c(&bytes[at..at + HEADER_CRC_AT]), &bytes[at + HEADER_BYTES..][..key]);
        bytes[at + HEADER_CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn read_file(bytes: &[u8]) {
    let schema = &sample().schema;
    let (fs, wal_dir) = (SimFs::new(), Path::new("/wal"));
    let dir = wal_dir.join(epoch_name(EPOCH));
    fs.create_dir_all(&dir).expect("an empty disk");
    let file = fs.create_new(&dir.join(log_file_name(0))).expect("an empty disk");
    file.write_all_at(&[IoSlice::new(bytes)], 0).expect("an empty disk");
    let start = LogPosition { epoch: EPOCH, at: 0 };
    let mut batches = Assembler::new(Arc::clone(schema), Seq(1), SeqIndex::new(LOCAL_GRAIN, Seq(1), start));
    let Ok(mut reader) = LocalReader::open(fs.shared(), wal_dir, Arc::clone(schema), start) else { return };
    while let Ok(Some(frame)) = reader.next(None) {
        let (from, to) = (frame.header.at, reader.position());
        let at = |at| LogPosition { epoch: EPOCH, at };
        if batches.push(frame, at(from), at(to)).is_err() {
            return;
        }
    }
}

/// As a log object, and from the first byte on.
fn read_frames(bytes: &[u8]) {
    let schema = &sample().schema;
    let header = match schema.parse_file_header(bytes, EPOCH, 0) {
        FileHeader::Whole { len } => len,
        _ => 0,
    };
    let mut rest = &bytes[header..];
    while let Parsed::Frame { frame, len } = parse(rest, EPOCH, 0) {
        let _ = frame.decode(schema);
        rest = &rest[len..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_read_whole_and_still_is_after_sealing() {
        let sample = sample();
        let mut bytes = sample.bytes.clone();
        seal(sample, &mut bytes);
        assert_eq!(bytes, sample.bytes);
        for &(at, _) in &sample.frames {
            assert!(matches!(parse(&bytes[at..], EPOCH, at as u64), Parsed::Frame { .. }), "{at}");
        }
    }
}
