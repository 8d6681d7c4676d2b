//! Where a run keeps its database: a local directory, memory, a bucket, or memory behind a delay.

use crate::error::{Error, Outcome};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use vectide::store::{Metered, ObjectBackend};
use vectide::{Options, Vectide};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A directory: the log is files.
    Local,
    /// Objects in memory: the log is objects.
    Memory,
    /// A bucket, named by `--dir`.
    S3,
    /// Objects in memory, each request taking so long.
    Latency(Duration),
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "local" => Ok(Self::Local),
            "memory" => Ok(Self::Memory),
            "s3" => Ok(Self::S3),
            _ => {
                let ms = text.strip_prefix("latency:").and_then(|delay| delay.strip_suffix("ms"));
                let ms = ms.and_then(|ms| ms.parse::<u64>().ok());
                let known = "it must be local, memory, s3 or latency:30ms";
                ms.map(|ms| Self::Latency(Duration::from_millis(ms))).ok_or_else(|| known.to_owned())
            }
        }
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Memory => f.write_str("memory"),
            Self::S3 => f.write_str("s3"),
            Self::Latency(delay) => write!(f, "latency:{}ms", delay.as_millis()),
        }
    }
}

/// An open database, and the directory that goes with it.
pub(super) struct Opened {
    pub(super) db: Vectide,
    /// The local directory that it lies in, removed when dropped; nothing for objects.
    pub(super) folder: Option<TempDir>,
}

impl StoreKind {
    /// Opens a new database. Under `dir`, a local one; by default in the current directory, because a temporary one is
    /// often in memory, where a sync costs nothing.
    pub(super) async fn open(self, dir: Option<&str>, options: Options) -> Outcome<Opened> {
        match self {
            Self::Local => {
                let folder = new_folder(dir.unwrap_or("."))?;
                let db = Vectide::open(&folder.path().join("db").to_string_lossy(), options).await?;
                Ok(Opened { db, folder: Some(folder) })
            }
            Self::Memory => Ok(Opened { db: Vectide::open("memory://", options).await?, folder: None }),
            Self::S3 => {
                let uri = dir.filter(|dir| dir.starts_with("s3://"));
                let uri = uri.ok_or_else(|| Error::argument("--store s3 needs --dir s3://bucket/prefix"))?;
                Ok(Opened { db: Vectide::open(uri, options).await?, folder: None })
            }
            Self::Latency(delay) => {
                let store = Arc::new(ThrottledStore::new(InMemory::new(), delayed(delay)));
                let store = Arc::new(Metered::new(Arc::new(ObjectBackend::new(store))));
                let db = Vectide::builder("memory://").options(options).store(store).open().await?;
                Ok(Opened { db, folder: None })
            }
        }
    }
}

/// A new folder below `dir`, which must exist.
pub(super) fn new_folder(dir: &str) -> Outcome<TempDir> {
    let folder = tempfile::Builder::new().prefix("vectide-bench-").tempdir_in(dir);
    folder.map_err(|source| Error::Write { path: PathBuf::from(dir), source })
}

/// Every request takes `delay`, however many are under way; bytes take none.
fn delayed(delay: Duration) -> ThrottleConfig {
    ThrottleConfig {
        wait_put_per_call: delay,
        wait_get_per_call: delay,
        wait_list_per_call: delay,
        wait_list_with_delimiter_per_call: delay,
        wait_delete_per_call: delay,
        ..ThrottleConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_read_as_they_are_written() {
        for text in ["local", "memory", "s3", "latency:30ms"] {
            assert_eq!(text.parse::<StoreKind>().expect(text).to_string(), text);
        }
        for text in ["disk", "latency:30", "latency:ms", ""] {
            assert!(text.parse::<StoreKind>().expect_err(text).contains("latency:30ms"));
        }
    }

    #[tokio::test]
    async fn what_cannot_be_opened_says_what_to_give() {
        let error = StoreKind::S3.open(Some("somewhere"), Options::default()).await.err().expect("no bucket");
        assert!(error.to_string().contains("--dir s3://"), "{error}");
        let error = StoreKind::Local.open(Some("no/such/folder"), Options::default()).await.err().expect("no folder");
        assert!(error.to_string().contains("no/such/folder"), "{error}");
    }
}
