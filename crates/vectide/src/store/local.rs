//! Objects go in, files come out: [`Store`] over a directory of any [`Fs`].
//!
//! `open_uri` builds it for a path; `manifest`, `segment` and `flush` write through it. A whole object is written under a
//! temporary name, synced, given its own name (a rename, or a hard link where absence decides) and its directory is
//! synced. Invariant: a name that can be seen holds the whole object, and what a call reports as done survives a power
//! cut.

use super::paths::{check_path, check_prefix};
use super::{File, Fs, LocalDir, ObjectMeta, ObjectWriter, PutOutcome, Store, Written};
use crate::error::{Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A streamed object's pieces are gathered up to this many bytes before they are written.
const GATHER: usize = 4 << 20;
/// Bytes that are written at once: few enough to be in cache still after they were checksummed.
const HOT: usize = 1 << 20;
/// A streamed object is synced behind its back whenever this many bytes are not: the disk works while the rest is
/// encoded, and another file's sync (the log's) never waits for more than about two such shares.
const SYNC_BEHIND: u64 = 16 << 20;
/// How often a write starts over because its directory, emptied by a delete, was removed under it.
const MAX_DIR_RACES: usize = 16;

/// A local directory as a [`Store`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalStore {
    inner: Arc<Inner>,
    inline: bool,
}

#[derive(Debug)]
struct Inner {
    dir: LocalDir,
    /// Directories known to exist durably, so that a put does not sync its parents again.
    ready: Mutex<HashSet<PathBuf>>,
    temporaries: AtomicU64,
}

impl LocalStore {
    /// The store of the directory `root`, which is created (durably) if missing. Blocks.
    pub fn open(fs: Arc<dyn Fs>, root: impl Into<PathBuf>) -> Result<Self> {
        let root: PathBuf = root.into();
        fs.create_dir_all(&root).map_err(|e| Error::io(format!("creating directory {}", root.display()), e))?;
        Ok(Self::over(LocalDir { root, fs }))
    }

    /// The store of a directory that exists already: nothing is created. `NotFound` otherwise. Blocks.
    pub fn open_existing(fs: Arc<dyn Fs>, root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs.read_dir(&root).map_err(|e| Error::io(format!("opening directory {}", root.display()), e))?;
        Ok(Self::over(LocalDir { root, fs }))
    }

    fn over(dir: LocalDir) -> Self {
        let inner = Inner { dir, ready: Mutex::default(), temporaries: AtomicU64::new(0) };
        Self { inner: Arc::new(inner), inline: false }
    }

    /// The same store with its file calls made on the calling thread instead of Tokio's blocking pool: for simulations,
    /// whose order of calls must follow from their seed.
    #[must_use]
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    async fn run<T: Send + 'static>(&self, call: impl FnOnce(&Arc<Inner>) -> Result<T> + Send + 'static) -> Result<T> {
        run(&self.inner, self.inline, call).await
    }
}

/// Runs a blocking call off the async threads. Dropping the future does not stop a call that has begun.
async fn run<T: Send + 'static>(
    inner: &Arc<Inner>,
    inline: bool,
    call: impl FnOnce(&Arc<Inner>) -> Result<T> + Send + 'static,
) -> Result<T> {
    if inline {
        return call(inner);
    }
    let inner = inner.clone();
    match tokio::task::spawn_blocking(move || call(&inner)).await {
        Ok(result) => result,
        Err(e) => Err(Error::internal("a file call panicked or its runtime is shutting down").with_source(e)),
    }
}

/// Removes what unfinished writes left behind, and makes every name below `dir` durable; returns how many were removed.
///
/// The writer calls it once it holds the directory's lock, before it reads anything: a process that was killed may have
/// left names that are visible but not yet synced, and a decision must not rest on those. Blocks; O(files).
pub fn sweep_temporaries(dir: &LocalDir) -> Result<u64> {
    let mut swept = 0;
    let mut folders = vec![dir.root.clone()];
    while let Some(folder) = folders.pop() {
        let doing = |e| Error::io(format!("sweeping {}", folder.display()), e);
        for entry in dir.fs.read_dir(&folder).map_err(doing)? {
            let path = folder.join(&entry.name);
            if entry.is_dir {
                folders.push(path);
            } else if is_temporary(&entry.name) {
                dir.fs.remove_file(&path).map_err(doing)?;
                swept += 1;
            }
        }
        dir.fs.sync_dir(&folder).map_err(doing)?;
    }
    Ok(swept)
}

/// No object path has a part that begins with a dot, so these never meet one.
fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

#[async_trait]
impl Store for LocalStore {
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        check_path(path)?;
        let path = path.to_owned();
        self.run(move |inner| {
            let target = inner.dir.file(&path);
            let put = || {
                let temporary = inner.write_temporary(&target, &bytes)?;
                inner.publish(&temporary, &target)
            };
            inner.retry_lost_dir(&target, put).map_err(|e| Error::io(format!("writing {path}"), e))
        })
        .await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        check_path(path)?;
        let path = path.to_owned();
        self.run(move |inner| {
            let target = inner.dir.file(&path);
            let put = || inner.link_if_absent(&target, &bytes);
            inner.retry_lost_dir(&target, put).map_err(|e| Error::io(format!("writing {path}"), e))
        })
        .await
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        check_path(path)?;
        let path = path.to_owned();
        self.run(move |inner| inner.read(&path).map_err(|e| Error::io(format!("reading {path}"), e))).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        check_prefix(prefix)?;
        let prefix = prefix.to_owned();
        self.run(move |inner| inner.list(&prefix).map_err(|e| Error::io(format!("listing {prefix}"), e))).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        check_path(path)?;
        let path = path.to_owned();
        self.run(move |inner| inner.delete(&path).map_err(|e| Error::io(format!("deleting {path}"), e))).await
    }

    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>> {
        check_path(path)?;
        let path = path.to_owned();
        let inline = self.inline;
        self.run(move |inner| {
            let target = inner.dir.file(&path);
            let (file, temporary) = inner
                .retry_lost_dir(&target, || inner.create_temporary(&target))
                .map_err(|e| Error::io(format!("creating {path}"), e))?;
            let temporary = Temporary { inner: inner.clone(), path: Some(temporary) };
            let state = Stream { file, temporary, target, path, offset: 0, synced: 0, crc32c: 0 };
            let (stream, gathered) = (Some(state), Vec::new());
            Ok(Box::new(LocalWriter { stream, gathered, gathered_bytes: 0, syncing: None, inline })
                as Box<dyn ObjectWriter>)
        })
        .await
    }

    async fn map(&self, path: &str, len: u64) -> Result<Bytes> {
        check_path(path)?;
        let path = path.to_owned();
        self.run(move |inner| {
            let doing = |e| Error::io(format!("mapping {path}"), e);
            let file = inner.dir.fs.open(&inner.dir.file(&path), false).map_err(doing)?;
            let actual = file.len().map_err(doing)?;
            if actual != len {
                return Err(super::wrong_length(&path, len, actual));
            }
            file.map(len).map_err(doing)
        })
        .await
    }

    fn local(&self) -> Option<LocalDir> {
        Some(self.inner.dir.clone())
    }
}

impl Inner {
    fn parent<'a>(&self, target: &'a Path) -> &'a Path {
        target.parent().expect("an object's file lies below the root")
    }

    /// Makes the directory of `target` exist, durably.
    fn ensure_dir(&self, target: &Path) -> io::Result<()> {
        let parent = self.parent(target);
        if !self.ready.lock().contains(parent) {
            self.dir.fs.create_dir_all(parent)?;
            self.ready.lock().insert(parent.to_owned());
        }
        Ok(())
    }

    /// Runs a write, and again if the directory vanished under it.
    fn retry_lost_dir<T>(&self, target: &Path, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.ensure_dir(target).and_then(|()| write()) {
                Err(e) if e.kind() == ErrorKind::NotFound && attempt < MAX_DIR_RACES => self.ready.lock().clear(),
                other => return other,
            }
        }
    }

    fn create_temporary(&self, target: &Path) -> io::Result<(Arc<dyn File>, PathBuf)> {
        let name = target.file_name().and_then(|n| n.to_str()).expect("object paths are text");
        loop {
            // ORDERING: Relaxed suffices: the number only has to differ from every other, and create_new has the last word.
            let n = self.temporaries.fetch_add(1, Ordering::Relaxed);
            let path = target.with_file_name(format!(".{name}.{}-{n}.tmp", std::process::id()));
            match self.dir.fs.create_new(&path) {
                Ok(file) => return Ok((file, path)),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes and syncs `bytes` under a temporary name beside `target`. Leaves nothing behind on an error.
    fn write_temporary(&self, target: &Path, bytes: &Bytes) -> io::Result<PathBuf> {
        let (file, path) = self.create_temporary(target)?;
        let written = file.write_all_at(&[IoSlice::new(bytes)], 0).and_then(|()| file.sync_data());
        self.or_remove(&path, written).map(|()| path)
    }

    /// On an error, removes a temporary file as well as it can be done: a sweep takes what stays.
    fn or_remove<T>(&self, temporary: &Path, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            let _ = self.dir.fs.remove_file(temporary);
        }
        result
    }

    /// Gives a synced temporary file its name.
    fn publish(&self, temporary: &Path, target: &Path) -> io::Result<()> {
        self.or_remove(temporary, self.dir.fs.rename(temporary, target))?;
        self.dir.fs.sync_dir(self.parent(target))
    }

    fn link_if_absent(&self, target: &Path, bytes: &Bytes) -> io::Result<PutOutcome> {
        let temporary = self.write_temporary(target, bytes)?;
        let outcome = match self.dir.fs.hard_link(&temporary, target) {
            Ok(()) => Ok(PutOutcome::Created),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(PutOutcome::Exists),
            Err(e) => Err(e),
        };
        let removed = self.dir.fs.remove_file(&temporary);
        let outcome = outcome?;
        removed?;
        // Also for `Exists`: its writer may not have come to its own sync yet, and our caller goes on to rely on it.
        self.dir.fs.sync_dir(self.parent(target))?;
        Ok(outcome)
    }

    fn read(&self, path: &str) -> io::Result<Bytes> {
        let file = self.dir.fs.open(&self.dir.file(path), false)?;
        let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        let mut bytes = vec![0; len];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes.into())
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<ObjectMeta>> {
        let mut found = Vec::new();
        let mut folders = vec![prefix.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match self.dir.fs.read_dir(&self.dir.file(&folder)) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            for entry in entries {
                let path = format!("{folder}{}", entry.name);
                if entry.is_dir {
                    folders.push(path + "/");
                } else if !entry.name.starts_with('.') {
                    found.push(ObjectMeta { path, size: entry.len });
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        let file = self.dir.file(path);
        let absent = |e: io::Error| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) };
        self.dir.fs.remove_file(&file).or_else(absent)?;
        let mut folder = self.parent(&file);
        self.dir.fs.sync_dir(folder).or_else(absent)?;
        // Folders that the object leaves empty go too; a folder that is not empty refuses.
        while folder != self.dir.root && self.dir.fs.remove_dir(folder).is_ok() {
            self.ready.lock().remove(folder);
            folder = self.parent(folder);
            self.dir.fs.sync_dir(folder).or_else(absent)?;
        }
        Ok(())
    }
}

/// A temporary file that is removed unless its name is taken out.
#[derive(Debug)]
struct Temporary {
    inner: Arc<Inner>,
    path: Option<PathBuf>,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            let _ = self.inner.dir.fs.remove_file(&path);
        }
    }
}

#[derive(Debug)]
struct Stream {
    file: Arc<dyn File>,
    temporary: Temporary,
    target: PathBuf,
    path: String,
    offset: u64,
    /// Bytes whose sync has begun.
    synced: u64,
    crc32c: u32,
}

impl Stream {
    fn append(&mut self, mut pieces: &[Bytes]) -> Result<()> {
        while !pieces.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            while count < pieces.len() && (count == 0 || bytes + pieces[count].len() <= HOT) {
                self.crc32c = crc32c::crc32c_append(self.crc32c, &pieces[count]);
                bytes += pieces[count].len();
                count += 1;
            }
            let (now, later) = pieces.split_at(count);
            let slices: Vec<IoSlice<'_>> = now.iter().map(|p| IoSlice::new(p)).collect();
            self.file
                .write_all_at(&slices, self.offset)
                .map_err(|e| Error::io(format!("writing {} at byte {}", self.path, self.offset), e))?;
            self.offset += bytes as u64;
            pieces = later;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Written> {
        let inner = self.temporary.inner.clone();
        let temporary = self.temporary.path.clone().expect("held until the name is given");
        let named = self.file.sync_data().and_then(|()| inner.publish(&temporary, &self.target));
        named.map_err(|e| Error::io(format!("finishing {}", self.path), e))?;
        self.temporary.path = None;
        Ok(Written { len: self.offset, crc32c: self.crc32c })
    }
}

/// Streams an object. Dropped unfinished, or after an error, it removes what it wrote.
#[derive(Debug)]
struct LocalWriter {
    /// Taken by a call in flight and by a failed one.
    stream: Option<Stream>,
    gathered: Vec<Bytes>,
    gathered_bytes: usize,
    /// A sync of what was written so far.
    syncing: Option<tokio::task::JoinHandle<io::Result<()>>>,
    inline: bool,
}

impl LocalWriter {
    /// Starts a sync of what was written so far if that is enough, after the sync before it.
    async fn sync_behind(&mut self) -> Result<()> {
        if self.stream.as_ref().is_none_or(|stream| stream.offset - stream.synced < SYNC_BEHIND) {
            return Ok(());
        }
        self.synced().await?;
        let stream = self.stream.as_mut().expect("looked at above, and no sync failed");
        stream.synced = stream.offset;
        let file = Arc::clone(&stream.file);
        if self.inline {
            let synced = file.sync_data().map_err(|e| Error::io(format!("syncing {}", stream.path), e));
            return synced.inspect_err(|_| self.stream = None);
        }
        self.syncing = Some(tokio::task::spawn_blocking(move || file.sync_data()));
        Ok(())
    }

    /// Waits for the sync that was started. One that failed ends the object: the kernel forgets what it could not write.
    async fn synced(&mut self) -> Result<()> {
        let Some(syncing) = self.syncing.take() else { return Ok(()) };
        let result = syncing.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        result.map_err(|e| match self.stream.take() {
            Some(stream) => Error::io(format!("syncing {}", stream.path), e),
            None => Error::io("syncing", e),
        })
    }

    async fn flush(&mut self) -> Result<Stream> {
        let mut stream = self.stream.take().ok_or_else(|| Error::closed("an earlier write of this object failed"))?;
        let pieces = std::mem::take(&mut self.gathered);
        self.gathered_bytes = 0;
        let inner = stream.temporary.inner.clone();
        run(&inner, self.inline, move |_| stream.append(&pieces).map(|()| stream)).await
    }
}

#[async_trait]
impl ObjectWriter for LocalWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.gathered_bytes += bytes.len();
        self.gathered.push(bytes);
        if self.gathered_bytes >= GATHER {
            self.stream = Some(self.flush().await?);
            self.sync_behind().await?;
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        self.synced().await?;
        let stream = self.flush().await?;
        let inner = stream.temporary.inner.clone();
        run(&inner, self.inline, move |_| stream.finish()).await
    }
}

#[cfg(test)]
mod tests;
