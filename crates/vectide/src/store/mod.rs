//! Where bytes live: files, objects, and the one trait that the tiers above write through.
//!
//! Two seams. [`Fs`] is a directory of files with explicit syncs: the local log and the local [`Store`] stand on it, and
//! tests put a simulated disk under it that forgets what was not synced. [`Store`] is a namespace of immutable objects
//! with put-if-absent: manifests, segments and the object log stand on it. `manifest`, `wal`, `segment` and `flush` call
//! it; nothing above them touches a path. Invariant: what a call here reports as done is durable.

use crate::error::Result;
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

mod cache;
pub mod fs;
pub mod local;
pub(crate) mod map;
pub mod object;
pub mod paths;
pub mod retry;
mod rng;
pub mod stats;
mod uri;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod fault;
#[cfg(any(test, feature = "testing"))]
pub mod fault_fs;
#[cfg(any(test, feature = "testing"))]
pub mod objects_only;
#[cfg(any(test, feature = "testing"))]
pub mod sim;

pub use fs::DiskFs;
pub use local::{LocalStore, sweep_temporaries};
pub use object::ObjectBackend;
pub use retry::{RetryOptions, RetryStore};
pub use stats::{Metered, OpStats, StoreStats};
pub use uri::{S3Options, Secret, StoreOptions, open_existing_uri, open_uri};

/// An object's name and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Path below the store's root, `/`-separated, without a leading slash.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
}

/// What a put-if-absent found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object was absent and is now ours, durably.
    Created,
    /// Another object of that name was there already; nothing changed.
    Exists,
}

/// Size and checksum of a finished object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes written.
    pub len: u64,
    /// CRC32C of all of them.
    pub crc32c: u32,
}

/// A namespace of objects: a local directory, memory, or any object store.
///
/// Paths are relative, `/`-separated. Every method is durable on return. Errors: `NotFound` for a missing object,
/// `Unavailable` when the store cannot serve (after the backend's own bounded retries), `Fenced` never.
#[async_trait]
pub trait Store: Send + Sync + Debug {
    /// Writes a whole object. Callers use names that are never reused, so overwriting is not expected.
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()>;

    /// Writes a whole object unless one of that name exists; atomic against every other writer, in any process.
    ///
    /// After an ambiguous failure the backend must not answer `Exists` for its own object without telling: callers
    /// that need to know compare the content.
    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome>;

    /// Reads a whole object.
    async fn get(&self, path: &str) -> Result<Bytes>;

    /// All objects whose path begins with `prefix` (a folder, ending in `/`), sorted by path.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>>;

    /// Removes an object; removing a missing one is no error.
    async fn delete(&self, path: &str) -> Result<()>;

    /// Starts an object that is written piece by piece; it is there, whole and durable, when `finish` returns.
    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>>;

    /// The object's bytes for random reading: memory-mapped from a local file, or fetched once into the bounded local
    /// cache and mapped from there. `Corrupt` if its length is not `len`.
    async fn map(&self, path: &str, len: u64) -> Result<Bytes>;

    /// The local directory's files, where this store is one: the log then writes files instead of objects.
    fn local(&self) -> Option<LocalDir>;

    /// Requests, errors and bytes so far, by operation; zeros for a store that nothing counts. A few atomic loads.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// An object being written.
#[async_trait]
pub trait ObjectWriter: Send {
    /// Appends bytes.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;
    /// Makes the object whole and durable.
    async fn finish(self: Box<Self>) -> Result<Written>;
}

/// The error of an object that is not as long as its manifest says.
fn wrong_length(path: &str, expected: u64, actual: u64) -> crate::Error {
    crate::Error::corrupt(format!("{path} is damaged: expected {expected} bytes, it has {actual}"))
}

/// A store's directory as files: the root on the machine and the layer that reaches it.
#[derive(Clone, Debug)]
pub struct LocalDir {
    /// The directory that the store's paths are relative to.
    pub root: std::path::PathBuf,
    /// The file layer.
    pub fs: Arc<dyn Fs>,
}

impl LocalDir {
    /// Where a store path lies on the machine.
    #[must_use]
    pub fn file(&self, path: &str) -> std::path::PathBuf {
        let mut file = self.root.clone();
        file.extend(path.split('/').filter(|part| !part.is_empty()));
        file
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// File name, without the directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Length in bytes (0 for a directory).
    pub len: u64,
}

/// Files with explicit durability. All calls block; paths are absolute.
///
/// A file's bytes are durable after [`File::sync_data`] of it, its name after [`Fs::sync_dir`] of its directory.
pub trait Fs: Send + Sync + Debug {
    /// Creates a file for reading and writing; `AlreadyExists` if the name is taken.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading, and for writing if `write`.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// Moves a file over whatever holds the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name; `AlreadyExists` if that name is taken. Atomic: this is local put-if-absent.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory if it is empty; any error leaves it as it was. Not durable until its parent is synced.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes a directory and all below it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// The entries of a directory, sorted by name; `NotFound` if it does not exist.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;
    /// Creates a directory and its missing parents, each durable in its parent on return.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes an exclusive advisory lock on a file (created if missing) without waiting and writes `owner` into it;
    /// `Ok(Err(owner))` names the holder. Released when the guard drops or the process dies.
    fn lock(&self, path: &Path, owner: &str) -> io::Result<Result<Box<dyn LockGuard>, String>>;
}

/// A held file lock; dropping it releases the lock.
pub trait LockGuard: Send + Sync + Debug {}

/// One open file. Positioned I/O only, so that threads can share it.
pub trait File: Send + Sync + Debug {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bufs`, one after the other, from `offset` on.
    fn write_all_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Reserves zeroed disk space for `offset..offset + len`, extending the file: later writes there cannot run out of
    /// space.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the bytes (and the length) durable: `fdatasync`.
    fn sync_data(&self) -> io::Result<()>;
    /// The first `len` bytes for random reading, mapped where the platform can.
    fn map(&self, len: u64) -> io::Result<Bytes>;
}
