//! Calls on files go in, system calls come out: [`Fs`] over the machine's own disk.
//!
//! `LocalStore` and the local log stand on it. Invariant: a sync that failed is reported and never retried on the same
//! file, because the kernel forgets dirty pages it could not write (fsyncgate, 2018): callers write anew elsewhere.

use super::{DirEntry, File, Fs, LockGuard, map};
use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most buffers that one `pwritev` takes (`IOV_MAX` on Linux).
const MAX_VECTORS: usize = 1024;
/// Written at once where the file system cannot reserve space.
const ZEROS: usize = 1 << 20;
/// Longest text of a lock's owner that is read back.
const MAX_OWNER: usize = 1024;
/// How often and how fast a lock's owner is looked for.
const HOLDER_LOOKS: u32 = 50;
const HOLDER_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFs;

impl DiskFs {
    /// The machine's file system, shared.
    #[must_use]
    pub fn shared() -> Arc<dyn Fs> {
        Arc::new(Self)
    }
}

impl Fs for DiskFs {
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(write).open(path)?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Removed since the directory was read.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            // Names that are no UTF-8 are not ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let len = if meta.is_dir() { 0 } else { meta.len() };
            entries.push(DirEntry { name, is_dir: meta.is_dir(), len });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<PathBuf> = Vec::new();
        let mut present = path;
        while !present.is_dir() {
            missing.push(present.to_owned());
            present = parent(present);
        }
        // Whoever made the deepest one may have died before syncing it into its parent. Not ours to sync: one we may
        // not read, such as a parent of the database's own directory.
        match self.sync_dir(parent(present)) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {}
            other => other?,
        }
        for dir in missing.into_iter().rev() {
            match std::fs::create_dir(&dir) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
                other => other?,
            }
            self.sync_dir(parent(&dir))?;
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path, owner: &str) -> io::Result<Result<Box<dyn LockGuard>, String>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // The text first, its length second: a rival that looks in between finds this owner on the first line.
                let line = format!("{owner}\n");
                file.write_all_at(line.as_bytes(), 0)?;
                file.set_len(line.len() as u64)?;
                Ok(Ok(Box::new(DiskLock { _file: file })))
            }
            Err(Errno::WOULDBLOCK) => Ok(Err(holder(&file)?)),
            Err(e) => Err(e.into()),
        }
    }
}

/// Who holds the lock on `file`, by its first line. Between a lock's change of hands and its new owner's line the file
/// names nobody, or a process that has died: looked at again for a moment.
fn holder(file: &std::fs::File) -> io::Result<String> {
    let mut found = String::new();
    for _ in 0..HOLDER_LOOKS {
        let mut text = [0; MAX_OWNER];
        let read = file.read_at(&mut text, 0)?;
        found = String::from_utf8_lossy(&text[..read]).lines().next().unwrap_or_default().trim().to_owned();
        let is_dead = found.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if !found.is_empty() && !is_dead {
            return Ok(found);
        }
        #[allow(
            clippy::disallowed_methods,
            reason = "a few milliseconds on the blocking pool, only where a lock is held"
        )]
        std::thread::sleep(HOLDER_PAUSE);
    }
    Ok(if found.is_empty() { "unknown".to_owned() } else { found })
}

/// The directory above, `.` for a bare relative name and the root for itself.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if p.as_os_str().is_empty() => Path::new("."),
        Some(p) => p,
        None => path,
    }
}

/// The lock belongs to the open file description, so it ends with the guard or with the process, however that dies.
#[derive(Debug)]
struct DiskLock {
    _file: std::fs::File,
}

impl LockGuard for DiskLock {}

#[derive(Debug)]
struct DiskFile(std::fs::File);

impl File for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, bufs: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let mut rest: Vec<&[u8]> = bufs.iter().map(|b| &**b).filter(|b| !b.is_empty()).collect();
        rest.reverse();
        while !rest.is_empty() {
            let vectors: Vec<IoSlice<'_>> = rest.iter().rev().take(MAX_VECTORS).map(|b| IoSlice::new(b)).collect();
            let mut written = match rustix::io::pwritev(&self.0, &vectors, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            offset += written as u64;
            while written > 0 {
                let buf = rest.pop().expect("the kernel wrote no more than it was given");
                if written < buf.len() {
                    rest.push(&buf[written..]);
                }
                written -= written.min(buf.len());
            }
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        loop {
            match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.write_zeros(offset, len),
                other => return Ok(other?),
            }
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        map::map(&self.0, len)
    }
}

impl DiskFile {
    /// Reserves by writing: zeros from the end of the file on, so that bytes already there are kept.
    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        let mut at = self.len()?;
        let zeros = vec![0u8; ZEROS];
        while at < end {
            let n = (end - at).min(ZEROS as u64) as usize;
            self.0.write_all_at(&zeros[..n], at)?;
            at += n as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn thousands_of_buffers_are_written_in_order() {
        let dir = dir();
        let file = DiskFs.create_new(&dir.path().join("x")).expect("created");
        let parts: Vec<Vec<u8>> = (0..3000u32).map(|i| vec![i as u8; (i % 5) as usize]).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
        file.write_all_at(&slices, 3).expect("written");
        let want = parts.concat();
        let mut got = vec![0; want.len() + 10];
        let n = file.read_at(&mut got, 3).expect("read");
        assert_eq!(got[..n], want[..]);
    }

    #[test]
    fn allocating_extends_with_zeros_and_keeps_what_is_there() {
        let dir = dir();
        let file = DiskFile(
            OpenOptions::new().read(true).write(true).create_new(true).open(dir.path().join("x")).expect("created"),
        );
        file.write_all_at(&[IoSlice::new(b"abc")], 0).expect("written");
        file.allocate(0, 5000).expect("allocated");
        file.write_zeros(0, 9000).expect("allocated the slow way");
        assert_eq!(file.len().expect("length"), 9000);
        let mut got = vec![1; 9000];
        file.read_at(&mut got, 0).expect("read");
        assert_eq!(&got[..3], b"abc");
        assert!(got[3..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_lock_names_its_holder_and_dies_with_its_guard() {
        let dir = dir();
        let path = dir.path().join("LOCK");
        let guard = DiskFs.lock(&path, "pid 17").expect("no error").expect("free");
        assert_eq!(DiskFs.lock(&path, "pid 18").expect("no error").expect_err("held"), "pid 17");
        drop(guard);
        let _again = DiskFs.lock(&path, "19").expect("no error").expect("free again");
        assert_eq!(DiskFs.lock(&path, "20").expect("no error").expect_err("held"), "19");
    }

    #[test]
    fn names_collide_as_the_trait_says() {
        let dir = dir();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        DiskFs.create_new(&a).expect("created");
        assert_eq!(DiskFs.create_new(&a).expect_err("taken").kind(), ErrorKind::AlreadyExists);
        DiskFs.hard_link(&a, &b).expect("linked");
        assert_eq!(DiskFs.hard_link(&a, &b).expect_err("taken").kind(), ErrorKind::AlreadyExists);
        let deep = dir.path().join("d/e/f");
        DiskFs.create_dir_all(&deep).expect("created");
        DiskFs.create_dir_all(&deep).expect("already there");
        assert!(DiskFs.remove_dir(&dir.path().join("d")).is_err(), "not empty");
        let names: Vec<String> = DiskFs.read_dir(dir.path()).expect("listed").into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["a", "b", "d"]);
        assert_eq!(DiskFs.read_dir(&dir.path().join("no")).expect_err("absent").kind(), ErrorKind::NotFound);
    }
}
