//! File calls go in, a disk in memory changes; a power cut comes out as another disk.
//!
//! Tests put it under `LocalStore` and the local log. It keeps, for every file, what was synced and what was only written
//! (in 4 KiB pages, and the length), and for every directory which names were synced. [`SimFs::power_cut`] keeps a random
//! part of what was not. Invariant: what was synced as [`Fs`] asks is on every disk that a cut can leave; everything else
//! may be missing on some. After ALICE (Pillai et al., OSDI 2014) and TigerBeetle's storage faults.
//!
//! What a cut may do: a page written since its file's last sync is as it was at that sync, as it is now, or as it was after
//! any one of the last writes between; pages are independent. The length is old, new or between, and what lies beyond an
//! old length is gone, what was never written below a new one is zero. Each change of a directory since its last sync (a
//! rename within one directory is one change) happened or did not, independently of the others. A directory whose name was
//! lost is gone with all below it. Locks are free.

mod disk;

use super::{DirEntry, File, Fs, LockGuard};
use bytes::Bytes;
use disk::{Disk, Node, Skip};
use parking_lot::Mutex;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which syncs a [`SimFs::skip_sync`] leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// `File::sync_data`.
    File,
    /// `Fs::sync_dir`, and those that `create_dir_all` makes.
    Dir,
}

/// A sync that a [`SimFs`] was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Sync<'a> {
    /// Of what.
    pub kind: SyncKind,
    /// The file, or the directory.
    pub path: &'a Path,
    /// The fail point that the calling thread passed last: tells one sync of a file from another.
    pub point: &'static str,
}

/// A simulated disk. Clones are the same disk. Every call is one critical section; deterministic.
#[derive(Clone, Debug)]
pub struct SimFs(Arc<Mutex<Disk>>);

impl Default for SimFs {
    fn default() -> Self {
        Self::new()
    }
}

impl SimFs {
    /// An empty disk with nothing but the directory `/`.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Disk::new())
    }

    fn of(disk: Disk) -> Self {
        Self(Arc::new(Mutex::new(disk)))
    }

    /// The same, for callers that take an [`Fs`].
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Fs> {
        Arc::new(self.clone())
    }

    /// The disk as it may look if the power fails now; `seed` decides what of the unsynced is kept: of every four seeds
    /// one keeps nothing, one everything, two a random part. This disk goes on as it was.
    #[must_use]
    pub fn power_cut(&self, seed: u64) -> Self {
        Self::of(self.0.lock().power_cut(seed))
    }

    /// The disk after all its processes were killed: everything written is there, what was not synced is still not, locks
    /// and open files are gone. This disk goes on as it was.
    #[must_use]
    pub fn kill(&self) -> Self {
        Self::of(self.0.lock().kill())
    }

    /// Makes creating, writing and allocating fail with `StorageFull` beyond so many bytes, counted in 4 KiB pages; `None`
    /// lifts the limit. A write that does not fit has written what did.
    pub fn limit_bytes(&self, limit: Option<u64>) {
        self.0.lock().limit_bytes = limit;
    }

    /// Bytes in pages of files that have a name or are open.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used_bytes
    }

    /// From now on syncs of this kind whose path contains `pattern` report success and do nothing.
    pub fn skip_sync(&self, kind: SyncKind, pattern: &str) {
        let pattern = pattern.to_owned();
        self.skip_syncs_where(move |sync| sync.kind == kind && sync.path.to_string_lossy().contains(&pattern));
    }

    /// From now on syncs of which `is_skipped` says so report success and do nothing; also on disks made of this one.
    pub fn skip_syncs_where(&self, is_skipped: impl Fn(&Sync<'_>) -> bool + Send + std::marker::Sync + 'static) {
        self.0.lock().skips.push(Skip(Arc::new(is_skipped)));
    }

    /// How many syncs were left out so far: a test that skips what is never called proves nothing.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.0.lock().skipped
    }

    /// Damages one byte of a file in place, on this disk and on those that a cut leaves. Panics if it is not there.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) {
        self.0.lock().flip(path, offset, mask).expect("a byte of an existing file");
    }

    fn handle(&self, id: u64, path: &Path, write: bool) -> Arc<dyn File> {
        Arc::new(SimFile { disk: self.0.clone(), id, path: path.to_owned(), write })
    }
}

impl Fs for SimFs {
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let id = self.0.lock().create(path)?;
        Ok(self.handle(id, path, true))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        let id = self.0.lock().open(path)?;
        Ok(self.handle(id, path, write))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.lock().rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.lock().hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.lock().remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.lock().remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.lock().remove_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let disk = self.0.lock();
        let entries = disk.dir(disk.resolve(path)?)?.now.iter();
        let entry = |(name, id): (&String, &u64)| match &disk.nodes[id] {
            Node::Dir(_) => DirEntry { name: name.clone(), is_dir: true, len: 0 },
            Node::File(file) => DirEntry { name: name.clone(), is_dir: false, len: file.len },
        };
        Ok(entries.map(entry).collect())
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.lock().create_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.lock().sync_dir(path)
    }

    fn lock(&self, path: &Path, owner: &str) -> io::Result<Result<Box<dyn LockGuard>, String>> {
        let mut disk = self.0.lock();
        if let Some(holder) = disk.locks.get(path) {
            return Ok(Err(holder.clone()));
        }
        match disk.create(path) {
            Ok(id) => disk.close(id),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        let id = disk.open(path)?;
        let written = disk.set_len(id, 0).and_then(|()| disk.write(id, &[IoSlice::new(owner.as_bytes())], 0));
        disk.close(id);
        written?;
        disk.locks.insert(path.to_owned(), owner.to_owned());
        Ok(Ok(Box::new(SimLock { disk: self.0.clone(), path: path.to_owned() })))
    }
}

#[derive(Debug)]
struct SimLock {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.lock().locks.remove(&self.path);
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    id: u64,
    path: PathBuf,
    write: bool,
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFile({})", self.path.display())
    }
}

impl SimFile {
    fn writable(&self) -> io::Result<parking_lot::MutexGuard<'_, Disk>> {
        if self.write { Ok(self.disk.lock()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().file(self.id).len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.disk.lock().file(self.id).read(buf, offset))
    }

    fn write_all_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.writable()?.write(self.id, bufs, offset)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?.allocate(self.id, offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?.set_len(self.id, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        if !disk.skips(SyncKind::File, &self.path) {
            disk.file_mut(self.id).sync();
        }
        Ok(())
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        let disk = self.disk.lock();
        let file = disk.file(self.id);
        if file.len < len {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len as usize];
        file.read(&mut bytes, 0);
        Ok(bytes.into())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.disk.lock().close(self.id);
    }
}

#[cfg(test)]
mod tests;
