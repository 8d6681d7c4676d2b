//! Every path of the on-disk format, in one place; names come in, store paths go out.
//!
//! `manifest`, `wal`, `segment`, `flush`, `merge` and `table` ask here and nowhere else. Paths are relative to the store's
//! root and `/`-separated; numbers in names are padded to 20 digits, so that their order as text is their order. Invariant:
//! nothing that a caller names can leave the root.
//!
//! ```text
//! LOCK
//! catalog/<version>.json
//! tables/<table id>/<shard>/manifest/<version>.json
//! tables/<table id>/<shard>/wal/<epoch>/<n>.log | <n>.obj
//! tables/<table id>/<shard>/segments/<epoch>-<n>/rows.arrow | keys.arrow | ends.arrow | graph-<i>.arrow
//! tables/<table id>/<shard>/base/<epoch>-<n>.arrow
//! ```

use crate::error::{Error, Result};
use crate::ids::{Epoch, ShardId};

/// The lock file of a local directory, held by its one writer.
pub const LOCK: &str = "LOCK";
/// The folder of catalog versions.
pub const CATALOG_DIR: &str = "catalog/";
/// The folder of objects by which a store is tried before a database is made in it.
const PROBE_DIR: &str = "probe/";
/// A segment's rows.
pub const ROWS: &str = "rows.arrow";
/// A segment's key index.
pub const KEYS: &str = "keys.arrow";
/// The end marks that a flush set on older rows.
pub const ENDS: &str = "ends.arrow";
/// Longest table or snapshot name, in characters.
pub const MAX_NAME: usize = 128;

/// A segment's graph of vector column number `column`.
#[must_use]
pub fn graph_part(column: usize) -> String {
    format!("graph-{column}.arrow")
}

/// A numbered JSON object in `dir` (which ends in `/`): manifests and catalogs.
#[must_use]
pub fn version(dir: &str, version: u64) -> String {
    format!("{dir}{version:020}.json")
}

/// An object by which a store is tried; `n` is drawn at random.
pub(crate) fn probe(n: u64) -> String {
    format!("{PROBE_DIR}{n:016x}")
}

/// The number of a path made by [`version`] in `dir`, `None` for anything else.
#[must_use]
pub fn parse_version(dir: &str, path: &str) -> Option<u64> {
    number(path.strip_prefix(dir)?.strip_suffix(".json")?)
}

/// The folder of everything that belongs to a table; `id` as checked by [`check_table_id`].
#[must_use]
pub fn table_dir(id: &str) -> String {
    format!("tables/{id}/")
}

/// The id of the segment that the writer of `epoch` numbered `n`.
#[must_use]
pub fn segment_id(epoch: Epoch, n: u64) -> String {
    format!("{epoch}-{n}")
}

/// Epoch and number of an id made by [`segment_id`].
#[must_use]
pub fn parse_segment_id(id: &str) -> Option<(Epoch, u64)> {
    let (epoch, n) = id.split_once('-')?;
    let parsed = (Epoch(epoch.parse().ok()?), n.parse().ok()?);
    (segment_id(parsed.0, parsed.1) == id).then_some(parsed)
}

/// What the log folder of an epoch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogKind {
    /// `.log`: an append-only file.
    File,
    /// `.obj`: one group commit, or a fence.
    Object,
}

impl LogKind {
    const fn extension(self) -> &'static str {
        match self {
            Self::File => ".log",
            Self::Object => ".obj",
        }
    }
}

/// The paths of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPaths {
    base: String,
}

impl ShardPaths {
    /// The paths of a table's shard. `Invalid` if the id is not 32 hexadecimal digits.
    pub fn new(table_id: &str, shard: ShardId) -> Result<Self> {
        check_table_id(table_id)?;
        Ok(Self { base: format!("{}{shard}/", table_dir(table_id)) })
    }

    /// The shard's folder, ending in `/`.
    #[must_use]
    pub fn dir(&self) -> &str {
        &self.base
    }

    /// The folder of manifest versions.
    #[must_use]
    pub fn manifest_dir(&self) -> String {
        format!("{}manifest/", self.base)
    }

    /// The folder of all epochs' logs.
    #[must_use]
    pub fn wal_dir(&self) -> String {
        format!("{}wal/", self.base)
    }

    /// The folder of one epoch's log.
    #[must_use]
    pub fn wal_epoch_dir(&self, epoch: Epoch) -> String {
        format!("{}wal/{:020}/", self.base, epoch.0)
    }

    /// File or object number `n` of an epoch's log.
    #[must_use]
    pub fn wal(&self, epoch: Epoch, n: u64, kind: LogKind) -> String {
        format!("{}{n:020}{}", self.wal_epoch_dir(epoch), kind.extension())
    }

    /// Epoch, number and kind of a path made by [`ShardPaths::wal`], `None` for anything else.
    #[must_use]
    pub fn parse_wal(&self, path: &str) -> Option<(Epoch, u64, LogKind)> {
        let (epoch, name) = path.strip_prefix(&self.wal_dir())?.split_once('/')?;
        let epoch = Epoch(number(epoch)?);
        [LogKind::File, LogKind::Object]
            .into_iter()
            .find_map(|kind| Some((epoch, number(name.strip_suffix(kind.extension())?)?, kind)))
    }

    /// The folder of all segments.
    #[must_use]
    pub fn segments_dir(&self) -> String {
        format!("{}segments/", self.base)
    }

    /// The folder of one segment.
    #[must_use]
    pub fn segment_dir(&self, id: &str) -> String {
        format!("{}segments/{id}/", self.base)
    }

    /// The folder of all bases' files.
    #[must_use]
    pub fn base_dir(&self) -> String {
        format!("{}base/", self.base)
    }

    /// A base file or delta in [`ShardPaths::base_dir`].
    #[must_use]
    pub fn links_name(id: &str) -> String {
        format!("{id}.arrow")
    }

    /// The id of a path in [`ShardPaths::base_dir`], `None` for anything else.
    #[must_use]
    pub fn parse_links<'a>(&self, path: &'a str) -> Option<&'a str> {
        let id = path.strip_prefix(&self.base_dir())?.strip_suffix(".arrow")?;
        parse_segment_id(id).map(|_| id)
    }

    /// One part of a segment, such as [`ROWS`] or [`graph_part`].
    #[must_use]
    pub fn segment_part(&self, id: &str, part: &str) -> String {
        format!("{}{part}", self.segment_dir(id))
    }
}

/// Exactly 20 digits, as [`version`] writes them.
fn number(text: &str) -> Option<u64> {
    if text.len() != 20 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Refuses a table name that is not 1 to 128 of `A-Z a-z 0-9 _ . -` or begins with a dot.
pub fn check_table_name(name: &str) -> Result<()> {
    check_name("table", name)
}

/// Refuses a snapshot name by the same rule as [`check_table_name`].
pub fn check_snapshot_name(name: &str) -> Result<()> {
    check_name("snapshot", name)
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.bytes().all(allowed) {
        let shown: String = name.chars().take(MAX_NAME).collect();
        return Err(Error::invalid(format!(
            "`{shown}` is no {what} name: use 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`, not beginning with a dot"
        )));
    }
    Ok(())
}

/// Refuses a table id that is not 32 lower-case hexadecimal digits (128 random bits).
pub fn check_table_id(id: &str) -> Result<()> {
    if id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Ok(());
    }
    Err(Error::invalid(format!("`{id}` is no table id: expected 32 lower-case hexadecimal digits")))
}

/// Refuses an object path that is empty, absolute, or has an empty part or one that begins with a dot.
pub fn check_path(path: &str) -> Result<()> {
    let part = |p: &str| !p.is_empty() && !p.starts_with('.') && !p.contains(['\\', '\0']);
    if path.split('/').all(part) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "`{path}` is no object path: expected relative parts joined by `/`, none beginning with `.`"
    )))
}

/// Refuses a listing prefix that is not empty and not an object path followed by `/`.
pub fn check_prefix(prefix: &str) -> Result<()> {
    match prefix.strip_suffix('/') {
        _ if prefix.is_empty() => Ok(()),
        Some(folder) => check_path(folder),
        None => Err(Error::invalid(format!("`{prefix}` is no folder: a listing prefix is empty or ends in `/`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const ID: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn names_that_leave_the_root_are_refused_and_the_message_says_what_is_allowed() {
        for bad in ["", ".", "..", "../../x", "a/b", "a\\b", ".hidden", "ü", "a b", "a\0b", &"x".repeat(129)] {
            let error = check_table_name(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains("1 to 128 letters, digits"), "{error}");
            assert!(check_snapshot_name(bad).expect_err(bad).message().contains("snapshot name"));
        }
        for good in ["docs", "a", "A-1_b.c", "x..y", &"x".repeat(128)] {
            check_table_name(good).expect(good);
        }
    }

    #[test]
    fn object_paths_stay_below_the_root() {
        for bad in ["", "/a", "a/", "a//b", "../x", "a/../b", "a/./b", "a/.tmp"] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
        check_path("tables/x/0/wal/1/2.log").expect("a plain path");
        check_prefix("").expect("everything");
        check_prefix("a/b/").expect("a folder");
        assert!(check_prefix("a/b").is_err());
        assert!(check_prefix("/").is_err());
    }

    #[test]
    fn paths_parse_back_and_sort_as_their_numbers() {
        let shard = ShardPaths::new(ID, ShardId(0)).expect("a valid id");
        for kind in [LogKind::File, LogKind::Object] {
            let path = shard.wal(Epoch(7), u64::MAX, kind);
            assert_eq!(shard.parse_wal(&path), Some((Epoch(7), u64::MAX, kind)));
            check_path(&path).expect("a legal path");
        }
        let dir = shard.manifest_dir();
        assert_eq!(parse_version(&dir, &version(&dir, 12)), Some(12));
        assert_eq!(parse_version(&dir, &format!("{dir}12.json")), None);
        assert_eq!(parse_version(&dir, &format!("{dir}{:020}.json.tmp", 1)), None);
        assert!(version(&dir, 9) < version(&dir, 10));
        assert_eq!(parse_segment_id(&segment_id(Epoch(3), 14)), Some((Epoch(3), 14)));
        assert_eq!(parse_segment_id("3-014"), None);
        assert_eq!(shard.segment_part("3-14", ROWS), format!("tables/{ID}/0/segments/3-14/rows.arrow"));
        assert!(ShardPaths::new("../../x", ShardId(0)).is_err());
    }
}
