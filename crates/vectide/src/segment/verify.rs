//! Checks a segment's files whole: checksums first, then what they say about one another.
//!
//! In: an open segment and its manifest entry. Out: what was looked at, or the first damage as `Corrupt`, naming the
//! object. `table/verify` calls it on a blocking thread; costs a pass over every byte and every link.

use super::{Body, Segment};
use crate::error::{Error, Result};
use crate::manifest::SegmentMeta;
use crate::rows::RowSource;
use crate::store::paths;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Files.
    pub(crate) parts: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Rows, dead ones included.
    pub(crate) rows: u64,
    /// Nodes of all vector columns' graphs, each reachable.
    pub(crate) reachable_nodes: u64,
}

impl Segment {
    /// Checks the checksum of every part, every row, key, link and mark.
    ///
    /// # Errors
    /// `Corrupt` naming the damaged object and what is wrong with it.
    pub(crate) fn verify(&self, meta: &SegmentMeta) -> Result<Verified> {
        let mut verified = Verified { rows: u64::from(self.rows()), ..Verified::default() };
        for part in &meta.parts {
            let file = self.part(&part.name).ok_or_else(|| {
                Error::corrupt(format!("segment {} has a part `{}` that its table has no use for", meta.id, part.name))
            })?;
            let actual = crc32c::crc32c(file.bytes());
            if actual != part.crc32c {
                return Err(Error::corrupt(format!(
                    "{} is damaged: the checksum of its {} bytes is {actual:08x}, expected {:08x}",
                    file.path(),
                    part.len,
                    part.crc32c
                )));
            }
            verified.parts += 1;
            verified.bytes += part.len;
        }
        self.marks()?;
        if let Some(body) = &self.body {
            body.verify_rows(meta)?;
            body.verify_keys()?;
            for (column, file) in &body.columns {
                verified.reachable_nodes += column.verify(file)?;
            }
        }
        Ok(verified)
    }

    fn part(&self, name: &str) -> Option<&super::ArrowFile> {
        if name == paths::ENDS {
            return Some(&self.marks);
        }
        let body = self.body.as_ref()?;
        match name {
            paths::ROWS => Some(&body.rows.file),
            paths::KEYS => body.keys.as_ref().map(|keys| &keys.file),
            _ => {
                let graphs = body.columns.iter().enumerate();
                graphs
                    .map(|(column, (_, file))| (paths::graph_part(column), file))
                    .find(|(at, _)| at == name)
                    .map(|g| g.1)
            }
        }
    }
}

impl Body {
    /// Every record batch decodes, and seqs ascend within the manifest's bounds.
    fn verify_rows(&self, meta: &SegmentMeta) -> Result<()> {
        let mut last = None;
        for chunk in 0..self.rows.chunk_count() {
            for &seq in self.rows.decode(chunk)?.seqs.values() {
                let bounds = meta.first_seq.0..=meta.last_seq.0;
                if last.is_some_and(|last| last >= seq) || !bounds.contains(&seq) {
                    return Err(self.rows.file.corrupt(format!(
                        "seq {seq} follows {last:?} in record batch {chunk}, the manifest says {bounds:?}"
                    )));
                }
                last = Some(seq);
            }
        }
        Ok(())
    }

    /// Entries ascend by hash and offset, each row has one, its hash is the row's key's, and the filter lets it through.
    fn verify_keys(&self) -> Result<()> {
        let Some(keys) = &self.keys else {
            return Ok(());
        };
        let mut seen = vec![0u64; keys.len().div_ceil(64)];
        let mut last = None;
        for at in 0..keys.len() {
            let entry = (keys.hash(at), keys.offset(at));
            let (hash, offset) = entry;
            let word = seen.get_mut(offset as usize / 64).filter(|_| (offset as usize) < keys.len());
            let Some(word) = word.filter(|word| **word >> (offset % 64) & 1 == 0) else {
                return Err(keys.file.corrupt(format!("entry {at} names row {offset} of {}, or again", keys.len())));
            };
            *word |= 1 << (offset % 64);
            if last.is_some_and(|last| last >= entry) {
                return Err(keys.file.corrupt(format!("entry {at} is out of order")));
            }
            if !keys.may_contain(hash) {
                return Err(keys.file.corrupt(format!("the filter denies entry {at}")));
            }
            if !self.rows.key_at(offset, |keys, row| keys.hash(row) == hash)? {
                return Err(keys.file.corrupt(format!("entry {at} is not the hash of row {offset}'s key")));
            }
            last = Some(entry);
        }
        Ok(())
    }
}
