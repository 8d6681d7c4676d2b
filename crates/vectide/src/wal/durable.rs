//! The durable mark: a small file that tells readers in other processes how far a local log is durable.
//!
//! The log thread overwrites it after each sync and before it acknowledges; [`tail`](super::tail) reads it. It is not
//! synced itself. Invariant: what it names was durable when it was written, so it is never ahead of the log; after a
//! power cut it may be behind.

use super::frame::pad8;
use crate::ids::{Epoch, LogPosition, PubNo};
use crate::store::{File, Fs};
use crc32c::crc32c;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// The mark's name in the shard's `wal` directory.
pub(super) const DURABLE_NAME: &str = "durable";
const MAGIC: [u8; 8] = *b"VTDDUR\r\n";
const BYTES: usize = pad8(36);

/// How far a local log is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurableMark {
    /// First byte behind the last durable frame.
    pub(super) position: LogPosition,
    /// The last durable publication number.
    pub(super) publication: PubNo,
}

impl DurableMark {
    fn encode(self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..16].copy_from_slice(&self.position.epoch.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.position.at.to_le_bytes());
        out[24..32].copy_from_slice(&self.publication.0.to_le_bytes());
        let crc = crc32c(&out[..32]);
        out[32..36].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let crc = u32::from_le_bytes(bytes.get(32..36)?.try_into().ok()?);
        if bytes[..8] != MAGIC || crc != crc32c(&bytes[..32]) {
            return None;
        }
        Some(Self { position: LogPosition { epoch: Epoch(word(8)?), at: word(16)? }, publication: PubNo(word(24)?) })
    }

    /// Overwrites the mark in place: one small write, which readers see whole or tell from its checksum.
    pub(super) fn write(self, file: &dyn File) -> io::Result<()> {
        crate::failpoint::hit("wal.local.mark.before")?;
        file.write_all_at(&[IoSlice::new(&self.encode())], 0)
    }

    /// The file that holds the mark, made if it is missing.
    pub(super) fn file(fs: &dyn Fs, wal_dir: &Path) -> io::Result<Arc<dyn File>> {
        let path = wal_dir.join(DURABLE_NAME);
        match fs.create_new(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => fs.open(&path, true),
            other => other,
        }
    }

    /// The mark as it stands; `None` if there is none, or none that is whole (it is being overwritten, or was lost in a
    /// power cut).
    pub(super) fn read(fs: &dyn Fs, wal_dir: &Path) -> io::Result<Option<Self>> {
        let file = match fs.open(&wal_dir.join(DURABLE_NAME), false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = [0; BYTES];
        for _ in 0..3 {
            let len = file.read_at(&mut bytes, 0)?;
            if let Some(mark) = Self::parse(&bytes[..len]) {
                return Ok(Some(mark));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_any_flipped_bit_is_seen() {
        let mark = DurableMark { position: LogPosition { epoch: Epoch(7), at: 4096 }, publication: PubNo(99) };
        let bytes = mark.encode();
        assert_eq!(DurableMark::parse(&bytes), Some(mark));
        for i in 0..36 {
            let mut flipped = bytes;
            flipped[i] ^= 1;
            assert_eq!(DurableMark::parse(&flipped), None, "byte {i}");
        }
        assert_eq!(DurableMark::parse(&bytes[..20]), None);
    }
}
