//! Remote objects come in once, local mapped files go out, within a byte limit.
//!
//! `store/object` keeps one per backend for its `map`. Each open cache owns a folder that no other process touches; the
//! folder of a process that died is removed by the next one. Invariant: files on disk never exceed the limit; a file
//! whose bytes are still held anywhere is not evicted, and what does not fit beside those is refused.

use super::{File, Fs, LockGuard};
use crate::error::{Error, Result};
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;

const LOCK: &str = "LOCK";
/// Folder names tried before a cache gives up: far more than processes share one directory.
const MAX_FOLDERS: u32 = 4096;

/// Mapped copies of remote objects.
#[derive(Debug)]
pub(super) struct MapCache {
    fs: Arc<dyn Fs>,
    folder: PathBuf,
    limit_bytes: u64,
    state: Mutex<State>,
    files: AtomicU64,
    _lock: Box<dyn LockGuard>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// Bytes of all entries, those being fetched included.
    bytes: u64,
    /// Counts uses: the entry with the smallest is evicted first.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    slot: Arc<Slot>,
    len: u64,
    used: u64,
}

/// One file, from the first request for it on. Callers hold it while they wait for it and while they use its bytes.
#[derive(Debug)]
struct Slot {
    path: PathBuf,
    bytes: OnceCell<Bytes>,
}

/// The owner behind the bytes that callers get: keeps its slot from being evicted.
struct Pinned(Arc<Slot>);

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes.get().expect("bytes are handed out once they are there")
    }
}

impl MapCache {
    /// Takes a folder of its own below `dir` and clears those that dead processes left. Blocks.
    pub(super) fn open(fs: Arc<dyn Fs>, dir: &Path, limit_bytes: u64) -> Result<Self> {
        let doing = |e| Error::io(format!("opening the cache directory {}", dir.display()), e);
        fs.create_dir_all(dir).map_err(doing)?;
        for n in 0..MAX_FOLDERS {
            let folder = dir.join(format!("{n:04}"));
            fs.create_dir_all(&folder).map_err(doing)?;
            let owner = std::process::id().to_string();
            let Ok(lock) = fs.lock(&folder.join(LOCK), &owner).map_err(doing)? else { continue };
            // Nobody lives here any more: its files are of no use, since nothing says that they are whole.
            for stale in fs.read_dir(&folder).map_err(doing)? {
                if stale.name != LOCK {
                    fs.remove_file(&folder.join(&stale.name)).map_err(doing)?;
                }
            }
            let (state, files) = (Mutex::default(), AtomicU64::new(0));
            return Ok(Self { fs, folder, limit_bytes, state, files, _lock: lock });
        }
        Err(Error::unavailable(format!("{} holds {MAX_FOLDERS} caches in use: name another directory", dir.display())))
    }

    /// The object's bytes; `fetch` fills the file if this is the first call for it, other callers wait for that one.
    pub(super) async fn map<'a>(
        &self,
        path: &str,
        len: u64,
        fetch: impl FnOnce(Arc<dyn File>) -> BoxFuture<'a, Result<()>> + Send,
    ) -> Result<Bytes> {
        let slot = self.slot(path, len)?;
        let filled = slot.bytes.get_or_try_init(|| self.fill(path, &slot.path, len, fetch)).await;
        if let Err(e) = filled {
            self.forget(path, slot);
            return Err(e);
        }
        Ok(Bytes::from_owner(Pinned(slot)))
    }

    /// The entry of `path`, made if missing, with room for it on disk.
    fn slot(&self, path: &str, len: u64) -> Result<Arc<Slot>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let used = state.clock;
        if let Some(entry) = state.entries.get_mut(path) {
            if entry.len != len {
                return Err(super::wrong_length(path, len, entry.len));
            }
            entry.used = used;
            return Ok(entry.slot.clone());
        }
        self.make_room(&mut state, path, len)?;
        // ORDERING: Relaxed suffices: only uniqueness counts.
        let n = self.files.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Slot { path: self.folder.join(n.to_string()), bytes: OnceCell::new() });
        state.bytes += len;
        state.entries.insert(path.to_owned(), Entry { slot: slot.clone(), len, used });
        Ok(slot)
    }

    /// Evicts the longest unused files that nobody holds until `len` more bytes fit.
    fn make_room(&self, state: &mut State, path: &str, len: u64) -> Result<()> {
        while state.bytes.saturating_add(len) > self.limit_bytes {
            // Held by the map alone, and the map is locked: nobody can begin to use it meanwhile.
            let idle = state.entries.iter().filter(|(_, e)| Arc::strong_count(&e.slot) == 1);
            let Some(oldest) = idle.min_by_key(|(_, e)| e.used).map(|(path, _)| path.clone()) else {
                return Err(Error::unavailable(format!(
                    "the local cache has no room for {path} ({len} bytes): {} of {} bytes are in use; raise cache_bytes",
                    state.bytes, self.limit_bytes
                )));
            };
            let entry = state.entries.remove(&oldest).expect("found above");
            state.bytes -= entry.len;
            self.remove(&entry.slot.path);
        }
        Ok(())
    }

    async fn fill<'a>(
        &self,
        path: &str,
        file_path: &Path,
        len: u64,
        fetch: impl FnOnce(Arc<dyn File>) -> BoxFuture<'a, Result<()>> + Send,
    ) -> Result<Bytes> {
        let doing = |e| Error::io(format!("caching {path} in {}", file_path.display()), e);
        // Left by a fetch that failed or was dropped.
        self.remove(file_path);
        let file = self.fs.create_new(file_path).map_err(doing)?;
        file.allocate(0, len).map_err(doing)?;
        fetch(file.clone()).await?;
        file.map(len).map_err(doing)
    }

    /// Writes a fetched piece into the file, off the async threads.
    pub(super) async fn write(&self, file: &Arc<dyn File>, offset: u64, bytes: Bytes) -> Result<()> {
        let file = file.clone();
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&[IoSlice::new(&bytes)], offset)).await;
        let written = written.map_err(|e| Error::internal("writing into the cache panicked").with_source(e))?;
        written.map_err(|e| Error::io(format!("writing into the cache {}", self.folder.display()), e))
    }

    /// Drops the entry after a failed fetch, unless another caller waits and tries anew.
    fn forget(&self, path: &str, slot: Arc<Slot>) {
        let mut state = self.state.lock();
        let ours = state.entries.get(path).is_some_and(|e| Arc::ptr_eq(&e.slot, &slot));
        // The map's reference and ours.
        if ours && Arc::strong_count(&slot) == 2 {
            let entry = state.entries.remove(path).expect("found above");
            state.bytes -= entry.len;
            self.remove(&slot.path);
        }
    }

    /// A file that cannot be removed stays until the folder is cleared: it costs space, not correctness.
    fn remove(&self, file: &Path) {
        if let Err(e) = self.fs.remove_file(file)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %file.display(), error = %e, "a cached file could not be removed");
        }
    }
}

impl Drop for MapCache {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut self.state.get_mut().entries);
        for entry in entries.values() {
            self.remove(&entry.slot.path);
        }
    }
}

#[cfg(test)]
mod tests;
