//! Manifests and catalogs go in, JSON bytes come out, and back.
//!
//! `manifest/commit` writes and reads them; `table/open`, `flush`, `merge` and readers look at the fields. A file is one
//! JSON object whose first member is the CRC32C of everything behind it, so that a flipped bit is damage and never another
//! manifest:
//!
//! ```text
//! {"crc32c":"9ab01c3e","commit":"<who>-<n>","format":1,"version":7, ...the document's fields... }
//! └─ 22 bytes, fixed ─┘└──────────────────────── what the checksum covers ────────────────────────┘
//! ```
//!
//! Members that are not known are passed over; a format above ours is refused. Invariant: what [`decode`] returns is
//! consistent, and no bytes make it panic.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, LogPosition, PubNo, RowId, Seq};
use crate::store::paths;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt::Debug;

/// The format that this build writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
const PREFIX: &str = "{\"crc32c\":\"";
/// Bytes before the checksummed part: the prefix, 8 hexadecimal digits, a quote and a comma.
const COVERED_FROM: usize = PREFIX.len() + 10;

/// What a versioned log can hold.
pub trait Document: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What it is called in messages.
    const KIND: &'static str;
    /// Whether commits carry a writer's epoch; one that is not fenced is edited by anybody.
    const FENCED: bool;
    /// The number under which it is stored; from 1 on.
    fn version(&self) -> u64;
    /// Set by the commit that writes it.
    fn set_version(&mut self, version: u64);
    /// The writer that owns the shard; 0 where nobody does.
    fn epoch(&self) -> Epoch;
    /// Set by the takeover alone; no effect where nobody owns it.
    fn set_epoch(&mut self, epoch: Epoch);
    /// Refuses what contradicts itself, as `Corrupt` naming `path`.
    fn validate(&self, path: &str) -> Result<()>;
}

/// Where a writer's log ends: recorded in the manifest once it was closed cleanly or recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochEnd {
    /// Whose log.
    pub epoch: Epoch,
    /// First byte or object number behind its last whole batch.
    pub at: u64,
    /// The last seq that it made durable (or the last one before it, if it wrote nothing).
    pub last_seq: Seq,
}

/// What a shard consists of, as of one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardManifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Number of this version; from 1 on.
    pub version: u64,
    /// The writer that owns the shard.
    pub epoch: Epoch,
    /// Where a replay of the log starts.
    pub replay_from: LogPosition,
    /// Frames whose rows lie below it are in segments.
    pub replay_seq: Seq,
    /// First row id not given out as of this version.
    pub next_row: RowId,
    /// First publication number not given out as of this version.
    pub next_publication: PubNo,
    /// Number of the next segment.
    pub next_segment: u64,
    /// Logs whose end is known, by ascending epoch.
    #[serde(default)]
    pub closed: Vec<EpochEnd>,
    /// The segments, in any order; their rows do not overlap.
    #[serde(default)]
    pub segments: Vec<SegmentMeta>,
    /// The base that searches use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseMeta>,
    /// The base that is being built to take its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_base: Option<BaseMeta>,
}

impl ShardManifest {
    /// The manifest of a new, empty shard that nobody owns yet: version 1, epoch 0, the first row is 0, the first seq,
    /// publication and segment are 1.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            format: FORMAT,
            version: 1,
            epoch: Epoch(0),
            replay_from: LogPosition::default(),
            replay_seq: Seq(1),
            next_row: RowId(0),
            next_publication: PubNo(1),
            next_segment: 1,
            closed: Vec::new(),
            segments: Vec::new(),
            base: None,
            next_base: None,
        }
    }
}

/// One base, as of one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseMeta {
    /// `<epoch>-<n>`, numbered among the segments: which base it is, whatever its version.
    pub id: String,
    /// Steps of merges that were committed.
    pub version: u32,
    /// The version up to which `file` holds all rows of links.
    pub folded: u32,
    /// The base file; a base that began empty has none at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<LinksMeta>,
    /// The rows that each version after `folded` wrote, one file a version, ascending.
    #[serde(default)]
    pub deltas: Vec<LinksMeta>,
    /// The segments whose rows it links, in the order of their nodes; only the last can be incomplete.
    pub segments: Vec<AdoptedMeta>,
}

impl BaseMeta {
    /// The segment of that name.
    #[must_use]
    pub fn segment(&self, id: &str) -> Option<&AdoptedMeta> {
        self.segments.iter().find(|s| s.id == id)
    }

    /// Its files.
    pub fn files(&self) -> impl Iterator<Item = &LinksMeta> {
        self.file.iter().chain(&self.deltas)
    }
}

/// A file of links: a base file or a delta.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinksMeta {
    /// `<epoch>-<n>`, numbered among the segments; also its name.
    pub id: String,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
}

/// A segment whose rows a base links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedMeta {
    /// The segment.
    pub id: String,
    /// The node of its row at offset 0; a multiple of 64.
    pub first_node: u32,
    /// Rows that ended at or before it are left out, but for those of the segment that the base began with.
    pub horizon: PubNo,
    /// Rows that are in, in the order of a walk over the segment's graph.
    pub inserted: u32,
    /// Whether all are, so that searches find its rows in the base.
    pub is_complete: bool,
}

/// One immutable segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentMeta {
    /// `<epoch>-<n>`, see [`paths::segment_id`]; also its folder.
    pub id: String,
    /// Row id of its first row; the others follow densely.
    pub first_row: RowId,
    /// Rows in it; 0 if it only carries end marks.
    pub rows: u32,
    /// Smallest seq of its rows and deletes.
    pub first_seq: Seq,
    /// Largest seq of its rows and deletes.
    pub last_seq: Seq,
    /// The batch that published its first row.
    pub first_publication: PubNo,
    /// The batch that published its last row.
    pub last_publication: PubNo,
    /// Its files.
    pub parts: Vec<PartMeta>,
}

/// One file of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartMeta {
    /// File name in the segment's folder.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
}

/// The tables of a database, as of one version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    /// [`FORMAT`].
    pub format: u32,
    /// Number of this version; from 1 on.
    pub version: u64,
    /// The tables, in any order; names and ids are unique.
    #[serde(default)]
    pub tables: Vec<TableEntry>,
}

impl Catalog {
    /// The catalog of a new database: version 1, no tables.
    #[must_use]
    pub fn empty() -> Self {
        Self { format: FORMAT, version: 1, tables: Vec::new() }
    }

    /// The table of that name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&TableEntry> {
        self.tables.iter().find(|t| t.name == name)
    }
}

/// One table of the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableEntry {
    /// Its name, see [`paths::check_table_name`].
    pub name: String,
    /// 32 random hexadecimal digits that its paths carry, so that drop and create do not meet.
    pub id: String,
    /// Its schema as text; opaque here.
    pub schema: String,
    /// Its options; opaque here.
    pub options: serde_json::Value,
}

impl Document for ShardManifest {
    const KIND: &'static str = "shard manifest";
    const FENCED: bool = true;

    fn version(&self) -> u64 {
        self.version
    }

    fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    fn validate(&self, path: &str) -> Result<()> {
        let bad = |what: String| Err(inconsistent(path, &what));
        if self.replay_from.epoch > self.epoch {
            return bad(format!("replay starts in epoch {}, the owner is {}", self.replay_from.epoch, self.epoch));
        }
        for pair in self.closed.windows(2) {
            if pair[0].epoch >= pair[1].epoch || pair[0].last_seq > pair[1].last_seq {
                return bad(format!("closed epochs {} and {} are out of order", pair[0].epoch, pair[1].epoch));
            }
        }
        if let Some(last) = self.closed.last().filter(|last| last.epoch > self.epoch) {
            return bad(format!("epoch {} is closed, the owner is {}", last.epoch, self.epoch));
        }
        let mut ids = HashSet::new();
        for segment in &self.segments {
            segment.validate(self).or_else(|what| bad(format!("segment {}: {what}", segment.id)))?;
            if !ids.insert(&segment.id) {
                return bad(format!("segment {} is listed twice", segment.id));
            }
        }
        let mut ranges: Vec<&SegmentMeta> = self.segments.iter().filter(|s| s.rows > 0).collect();
        ranges.sort_by_key(|s| s.first_row);
        for pair in ranges.windows(2) {
            if pair[0].end_row() > pair[1].first_row.0 {
                return bad(format!("the rows of segments {} and {} overlap", pair[0].id, pair[1].id));
            }
        }
        for base in self.base.iter().chain(&self.next_base) {
            base.validate(self).or_else(|what| bad(format!("base {}: {what}", base.id)))?;
        }
        Ok(())
    }
}

impl BaseMeta {
    fn validate(&self, shard: &ShardManifest) -> Result<(), String> {
        let ids = [&self.id].into_iter().chain(self.files().map(|file| &file.id));
        for id in ids {
            match paths::parse_segment_id(id) {
                Some((epoch, n)) if epoch <= shard.epoch && n < shard.next_segment => {}
                _ => return Err(format!("epoch {} numbers files below {}, not {id}", shard.epoch, shard.next_segment)),
            }
        }
        if self.files().any(|file| file.len == 0) {
            return Err("a file of links is empty".to_owned());
        }
        let behind = self.version.checked_sub(self.folded);
        if behind.is_none_or(|n| n as usize != self.deltas.len()) || (self.file.is_none() && self.folded > 0) {
            let deltas = self.deltas.len();
            return Err(format!("version {} is folded up to {}, and has {deltas} deltas", self.version, self.folded));
        }
        let mut free = 0u64;
        for (at, adopted) in self.segments.iter().enumerate() {
            let Some(segment) = shard.segments.iter().find(|s| s.id == adopted.id) else {
                return Err(format!("segment {} is not there", adopted.id));
            };
            let is_last = at + 1 == self.segments.len();
            if !adopted.first_node.is_multiple_of(64) || u64::from(adopted.first_node) < free {
                return Err(format!("segment {} begins at node {}, {free} is free", adopted.id, adopted.first_node));
            }
            if adopted.inserted > segment.rows || !(adopted.is_complete || is_last) {
                return Err(format!("{} of {} rows of segment {} are in", adopted.inserted, segment.rows, adopted.id));
            }
            if adopted.horizon >= shard.next_publication {
                return Err(format!("segment {} was merged as of {}", adopted.id, adopted.horizon));
            }
            free = u64::from(adopted.first_node) + u64::from(segment.rows);
        }
        let mut ids: Vec<&str> = self.segments.iter().map(|s| s.id.as_str()).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("segment {} is in it twice", pair[0])),
            None if free >= u64::from(u32::MAX) => Err("its nodes do not fit 32 bits".to_owned()),
            None => Ok(()),
        }
    }
}

impl SegmentMeta {
    /// First row id behind its rows; saturates in a manifest that is then refused.
    #[must_use]
    pub fn end_row(&self) -> u64 {
        self.first_row.0.saturating_add(u64::from(self.rows))
    }

    /// The file of that name.
    #[must_use]
    pub fn part(&self, name: &str) -> Option<&PartMeta> {
        self.parts.iter().find(|p| p.name == name)
    }

    fn validate(&self, shard: &ShardManifest) -> Result<(), String> {
        let Some((epoch, n)) = paths::parse_segment_id(&self.id) else {
            return Err("its id is not <epoch>-<n>".to_owned());
        };
        if epoch > shard.epoch || n >= shard.next_segment {
            return Err(format!("epoch {} numbers segments below {} only", shard.epoch, shard.next_segment));
        }
        if self.first_row.0.checked_add(u64::from(self.rows)).is_none_or(|end| end > shard.next_row.0) {
            return Err(format!("{} rows from {} on end behind {}", self.rows, self.first_row, shard.next_row));
        }
        if self.first_seq > self.last_seq {
            return Err(format!("its seqs run from {} to {}", self.first_seq, self.last_seq));
        }
        if self.first_publication > self.last_publication || self.last_publication >= shard.next_publication {
            return Err(format!(
                "its publications run from {} to {}, the next is {}",
                self.first_publication, self.last_publication, shard.next_publication
            ));
        }
        let mut names = HashSet::new();
        for part in &self.parts {
            if part.name.contains('/') || paths::check_path(&part.name).is_err() || !names.insert(&part.name) {
                return Err(format!("part `{}` has no proper name of its own", part.name));
            }
            if part.len == 0 {
                return Err(format!("part {} is empty", part.name));
            }
        }
        if names.is_empty() { Err("it has no parts".to_owned()) } else { Ok(()) }
    }
}

impl Document for Catalog {
    const KIND: &'static str = "catalog";
    const FENCED: bool = false;

    fn version(&self) -> u64 {
        self.version
    }

    fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    fn epoch(&self) -> Epoch {
        Epoch(0)
    }

    fn set_epoch(&mut self, _: Epoch) {}

    fn validate(&self, path: &str) -> Result<()> {
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        for table in &self.tables {
            paths::check_table_name(&table.name)
                .and_then(|()| paths::check_table_id(&table.id))
                .map_err(|e| inconsistent(path, e.message()))?;
            if !names.insert(&table.name) || !ids.insert(&table.id) {
                return Err(inconsistent(path, &format!("table {} ({}) is listed twice", table.name, table.id)));
            }
        }
        Ok(())
    }
}

fn inconsistent(path: &str, what: &str) -> Error {
    Error::corrupt(format!("{path} contradicts itself: {what}"))
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    commit: &'a str,
    #[serde(flatten)]
    document: &'a T,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    commit: String,
    format: u32,
    version: u64,
}

/// A document and the name of the commit that wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<T> {
    /// Unique to one call of `commit`: tells a writer its own object from another's that says the same.
    pub commit: String,
    /// What it wrote.
    pub document: T,
}

/// The bytes of `document` as written by the commit named `commit`.
pub fn encode<T: Document>(document: &T, commit: &str) -> Result<Bytes> {
    let body = serde_json::to_vec(&Envelope { commit, document })
        .map_err(|e| Error::internal(format!("a {} cannot be written as JSON: {e}", T::KIND)).with_source(e))?;
    let covered = &body[1..];
    let mut bytes = format!("{PREFIX}{:08x}\",", crc32c::crc32c(covered)).into_bytes();
    bytes.extend_from_slice(covered);
    Ok(bytes.into())
}

/// The document in `bytes`, read from `path`. O(bytes).
///
/// `Corrupt`, with path and offset, if they are damaged, torn or inconsistent; `Invalid` if a newer Vectide wrote them.
pub fn decode<T: Document>(path: &str, bytes: &[u8]) -> Result<Decoded<T>> {
    check_sum(path, bytes)?;
    let header: Header = parse(path, bytes)?;
    if header.format > FORMAT {
        return Err(Error::invalid(format!(
            "{path} was written by a newer Vectide (format {}, this one reads up to {FORMAT}): upgrade to open it",
            header.format
        )));
    }
    if header.format == 0 || header.version == 0 {
        return Err(inconsistent(path, &format!("format {}, version {}", header.format, header.version)));
    }
    let document: T = parse(path, bytes)?;
    document.validate(path)?;
    Ok(Decoded { commit: header.commit, document })
}

fn check_sum(path: &str, bytes: &[u8]) -> Result<()> {
    let stored = bytes.strip_prefix(PREFIX.as_bytes()).and_then(|rest| {
        let digits = std::str::from_utf8(rest.get(..8)?).ok()?;
        let closed = rest.get(8..10)? == b"\",";
        closed.then(|| u32::from_str_radix(digits, 16).ok())?
    });
    let Some(stored) = stored else {
        return Err(Error::corrupt(format!("{path} is damaged at byte 0: it does not begin with its checksum")));
    };
    let actual = crc32c::crc32c(&bytes[COVERED_FROM..]);
    if stored == actual {
        return Ok(());
    }
    // A torn file is no JSON either, and that says where; a flipped bit can be anywhere.
    let torn = parse::<serde::de::IgnoredAny>(path, bytes).err();
    Err(torn.unwrap_or_else(|| {
        Error::corrupt(format!(
            "{path} is damaged in bytes {COVERED_FROM} to {}: its checksum is {actual:08x}, expected {stored:08x}",
            bytes.len()
        ))
    }))
}

fn parse<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| {
        let before: usize =
            bytes.split_inclusive(|b| *b == b'\n').take(e.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let offset = before + e.column().saturating_sub(1);
        Error::new(ErrorKind::Corrupt, format!("{path} is damaged at byte {offset}: {e}")).with_source(e)
    })
}

#[cfg(test)]
mod tests;
