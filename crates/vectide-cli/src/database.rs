//! Opening databases and tables for a command: reading ones beside any writer, writing ones alone.
//!
//! Invariant: a command that only reads never takes the writer's place, and a mistyped path never makes a directory.

use crate::error::{Failure, Outcome};
use std::path::{Path, PathBuf};
use vectide::{ErrorKind, Options, ReadOnly, ReadTable, Table, Vectide};

/// Opens `uri` for reading, also while another process writes.
pub(crate) async fn read(uri: &str) -> Outcome<ReadOnly> {
    check(uri)?;
    must_exist(uri)?;
    Ok(Vectide::open_read_only(uri, Options::default()).await?)
}

/// Opens one table for reading.
pub(crate) async fn read_table(uri: &str, table: &str) -> Outcome<ReadTable> {
    Ok(read(uri).await?.open_table(table).await?)
}

/// Opens `uri` for writing and makes it if it is not there.
pub(crate) async fn write(uri: &str) -> Outcome<Vectide> {
    check(uri)?;
    Vectide::open(uri, Options::default()).await.map_err(|error| {
        let held = error.kind() == ErrorKind::Conflict;
        let failure = Failure::from(error);
        if held { failure.hint(HELD) } else { failure }
    })
}

const HELD: &str = "one process writes at a time: stop that one (its rows are durable) and run this again. \
search, get, scan, count, tables, stats and verify work beside it";

/// Opens one table of a database that exists for writing.
pub(crate) async fn write_table(uri: &str, table: &str) -> Outcome<(Vectide, Table)> {
    check(uri)?;
    must_exist(uri)?;
    let db = write(uri).await?;
    let table = db.open_table(table).await?;
    Ok((db, table))
}

fn check(uri: &str) -> Outcome {
    if uri.starts_with("memory:") {
        let message = format!("{uri} lives in one process only, so a command would leave nothing behind");
        return Err(Failure::usage(message).hint("name a directory, such as ./db"));
    }
    Ok(())
}

fn must_exist(uri: &str) -> Outcome {
    match local_path(uri) {
        Some(path) if !path.is_dir() => {
            let message = format!("there is no database at {}", path.display());
            Err(Failure::not_found(message).hint(
                "`vectide create` or `vectide ingest` makes one; `vectide quickstart --dir DIR` fills one with words",
            ))
        }
        _ => Ok(()),
    }
}

/// The directory that `uri` names, if it names one.
pub(crate) fn local_path(uri: &str) -> Option<PathBuf> {
    match uri.split_once("://") {
        None => Some(PathBuf::from(uri)),
        Some(("file", path)) => Some(Path::new(path).to_owned()),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_directory_is_refused_and_not_made() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let missing = dir.path().join("typo");
        let uri = missing.to_str().expect("the path is UTF-8");
        let failure = must_exist(uri).expect_err("nothing is there");
        assert!(failure.message.contains(uri) && failure.hint.is_some(), "{failure:?}");
        assert!(!missing.exists());
        assert!(must_exist("s3://bucket/prefix").is_ok());
    }

    #[test]
    fn local_uris_are_paths() {
        assert_eq!(local_path("./db"), Some(PathBuf::from("./db")));
        assert_eq!(local_path("file:///var/db"), Some(PathBuf::from("/var/db")));
        assert_eq!(local_path("s3://bucket"), None);
    }
}
