//! Where an interrupted ingest goes on: one small record per (database, table, file), outside of the database.
//!
//! Records live in `$XDG_STATE_HOME/vectide/ingest` (else `~/.local/state/vectide/ingest`), written after every
//! acknowledged batch. A record counts only for the same table (by its id, so not for one dropped and made anew) and the
//! same file (by path, size and time of change). Invariant: a record never says more than what is durable; at most the
//! batch in flight is not in it, and `mod.rs` finds out what became of that one.

use super::source::Source;
use crate::database;
use crate::error::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Subject {
    uri: String,
    table: String,
    table_id: String,
    file: PathBuf,
    size: u64,
    modified_ns: u64,
}

/// How far a file has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Rows of the file that are acknowledged.
    pub(crate) rows: u64,
    /// Rows of the table then: tells an append-only table's batch in flight from a lost one.
    pub(crate) table_rows: u64,
    /// Whether the batch after them may have been in flight when this was written.
    pub(crate) in_doubt: bool,
    /// Whether that is all.
    pub(crate) done: bool,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    subject: Subject,
    position: Position,
}

/// A record on disk.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    subject: Subject,
    /// Whether each save is synced: where a batch must not be written twice.
    sync: bool,
}

impl Record {
    /// The record of `source` going into a table.
    pub(crate) fn new(uri: &str, table: &str, table_id: &str, source: &Source, sync: bool) -> Outcome<Self> {
        Self::in_folder(&folder()?, uri, table, table_id, source, sync)
    }

    fn in_folder(folder: &Path, uri: &str, table: &str, table_id: &str, source: &Source, sync: bool) -> Outcome<Self> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let uri = database::local_path(uri).map_or_else(|| uri.to_owned(), |p| absolute(&p).display().to_string());
        let subject = Subject {
            uri,
            table: table.to_owned(),
            table_id: table_id.to_owned(),
            file: absolute(&source.path),
            size: source.size,
            modified_ns: source.modified_ns,
        };
        let name = format!("{:016x}.json", fnv1a(&serde_json::to_vec(&subject)?));
        std::fs::create_dir_all(folder).map_err(|e| unwritable(e, folder))?;
        Ok(Self { path: folder.join(name), subject, sync })
    }

    /// What an earlier run left, if it was about the same thing. An unreadable record counts as none.
    pub(crate) fn load(&self) -> Option<Position> {
        let stored: Stored = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        (stored.subject == self.subject).then_some(stored.position)
    }

    /// Replaces the record in one step.
    pub(crate) fn save(&self, position: &Position) -> Outcome {
        let stored = Stored { subject: self.subject.clone(), position: position.clone() };
        let bytes = serde_json::to_vec(&stored)?;
        let next = self.path.with_extension("next");
        let write = || {
            let mut file = std::fs::File::create(&next)?;
            file.write_all(&bytes)?;
            if self.sync {
                file.sync_data()?;
            }
            std::fs::rename(&next, &self.path)
        };
        write().map_err(|e| unwritable(e, &self.path))
    }

    /// Forgets what an earlier run left.
    pub(crate) fn forget(&self) {
        // A record that is not there is forgotten already; one that cannot be removed is overwritten by the next save.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn folder() -> Outcome<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    let state = state.ok_or_else(|| {
        Failure::invalid("no place for the record that makes an ingest resumable")
            .hint("set HOME or XDG_STATE_HOME to a directory that can be written")
    })?;
    Ok(state.join("vectide").join("ingest"))
}

fn unwritable(error: std::io::Error, path: &Path) -> Failure {
    Failure::from(error)
        .context(format_args!("writing {}, the record that makes an ingest resumable", path.display()))
        .hint("make room or set XDG_STATE_HOME to a directory that can be written, then run the command again")
}

/// FNV-1a, 64 bits: names the record's file; the content says whether it is the right one.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use std::sync::Arc;

    fn source(size: u64) -> Source {
        Source {
            path: PathBuf::from("rows.jsonl"),
            format: super::super::source::FileFormat::JsonLines,
            schema: Arc::new(Schema::empty()),
            rows: None,
            size,
            modified_ns: 1,
        }
    }

    #[test]
    fn a_record_counts_for_the_same_table_and_the_same_file_only() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let record = |id: &str, size| {
            Record::in_folder(folder.path(), "./db", "docs", id, &source(size), false).expect("a record")
        };
        let position = Position { rows: 300, table_rows: 300, in_doubt: true, done: false };
        assert_eq!(record("a", 10).load(), None);
        record("a", 10).save(&position).expect("saves");
        assert_eq!(record("a", 10).load(), Some(position));
        assert_eq!(record("b", 10).load(), None, "the table was dropped and made anew");
        assert_eq!(record("a", 11).load(), None, "the file grew");
        record("a", 10).forget();
        assert_eq!(record("a", 10).load(), None);
    }

    #[test]
    fn a_damaged_record_counts_as_none() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let record = Record::in_folder(folder.path(), "./db", "docs", "a", &source(10), true).expect("a record");
        record.save(&Position::default()).expect("saves");
        std::fs::write(&record.path, b"{\"subject\":").expect("writes");
        assert_eq!(record.load(), None);
    }
}
