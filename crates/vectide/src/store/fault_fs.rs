//! File calls go through, and stop, fail or are watched where a test says so.
//!
//! Tests and the crash harness put it around any [`Fs`]: around `SimFs` to cut the power at every single call, around
//! `DiskFs` to kill a process at a named point. Every call that changes something, and every sync, has two points: before
//! it and after it. Invariant: without a hook or fault set, nothing but the counting differs from the layer below.

use super::{DirEntry, File, Fs, LockGuard};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Every operation that has points, as named in [`Point::op`].
pub const FS_OPS: [&str; 13] = [
    "fs.create",
    "fs.write",
    "fs.allocate",
    "fs.set_len",
    "fs.sync_data",
    "fs.rename",
    "fs.hard_link",
    "fs.remove_file",
    "fs.remove_dir",
    "fs.remove_dir_all",
    "fs.create_dir_all",
    "fs.sync_dir",
    "fs.lock",
];

/// Calls that the log of calls keeps, the newest last.
const MAX_LOG: usize = 100_000;

/// On which side of a call's effect a point lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Nothing has happened yet.
    Before,
    /// It has happened; nobody was told.
    After,
}

impl Phase {
    /// The last part of a point's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// A place where the world can be stopped.
#[derive(Clone, Copy, Debug)]
pub struct Point<'a> {
    /// One of [`FS_OPS`].
    pub op: &'static str,
    /// Before or after its effect.
    pub phase: Phase,
    /// The file or directory; of a rename or link, the new name.
    pub path: &'a Path,
    /// Number of the call, from 0 on.
    pub call: u64,
}

impl fmt::Display for Point<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.op, self.phase.as_str())
    }
}

/// Called at every point, on the calling thread. An error becomes the call's answer: without effect before it, after the
/// effect behind it. It may also not return: a harness kills the process here.
pub type FsHook = Arc<dyn Fn(&Point<'_>) -> io::Result<()> + Send + Sync>;

/// A file layer with points. Clones share them.
#[derive(Clone)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    hook: Option<FsHook>,
    calls: u64,
    failing: BTreeMap<u64, io::ErrorKind>,
    /// The point from which on nothing happens any more; point `2 * call` lies before a call, the next one after it.
    stop_at: Option<u64>,
    stopped: bool,
    log: Vec<String>,
}

impl fmt::Debug for FaultFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultFs({:?}, {} calls)", self.inner, self.calls())
    }
}

impl FaultFs {
    /// Points around every call to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Fs>) -> Self {
        Self { inner, state: Arc::default() }
    }

    /// The same, for callers that take an [`Fs`].
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Fs> {
        Arc::new(self.clone())
    }

    /// Has `hook` called at every point from now on.
    pub fn set_hook(&self, hook: FsHook) {
        self.state.lock().hook = Some(hook);
    }

    /// Calls with points so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// The calls so far, each as `op path`; the newest hundred thousand.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    /// Makes call number `call` (from 0 on, see [`FaultFs::calls`]) fail without effect, once.
    pub fn fail_call(&self, call: u64, error: io::ErrorKind) {
        self.state.lock().failing.insert(call, error);
    }

    /// Stops the world at point number `point`: call `point / 2` fails, before its effect if the number is even, after it
    /// if odd, and every later call with points fails without effect. What is below can then be cut or killed.
    pub fn stop_at(&self, point: u64) {
        self.state.lock().stop_at = Some(point);
    }

    /// Whether the world was stopped: a run that ended before its stop point saw all points there are.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.state.lock().stopped
    }

    fn around<T>(&self, op: &'static str, path: &Path, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let (number, hook) = self.begin(op, path)?;
        let point = |phase| Point { op, phase, path, call: number };
        if let Some(hook) = &hook {
            hook(&point(Phase::Before))?;
        }
        let done = call()?;
        self.stop(2 * number + 1)?;
        if let Some(hook) = &hook {
            hook(&point(Phase::After))?;
        }
        Ok(done)
    }

    fn begin(&self, op: &'static str, path: &Path) -> io::Result<(u64, Option<FsHook>)> {
        let mut state = self.state.lock();
        let number = state.calls;
        state.calls += 1;
        if state.log.len() == MAX_LOG {
            state.log.remove(0);
        }
        state.log.push(format!("{op} {}", path.display()));
        let failing = state.failing.remove(&number);
        let hook = state.hook.clone();
        drop(state);
        self.stop(2 * number)?;
        match failing {
            Some(kind) => Err(kind.into()),
            None => Ok((number, hook)),
        }
    }

    fn stop(&self, point: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.stop_at.is_some_and(|at| at <= point) {
            state.stopped = true;
            return Err(io::Error::other("the world was stopped here"));
        }
        Ok(())
    }

    fn file(&self, inner: Arc<dyn File>, path: &Path) -> Arc<dyn File> {
        Arc::new(FaultFile { inner, fs: self.clone(), path: path.to_owned() })
    }
}

impl Fs for FaultFs {
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = self.around("fs.create", path, || self.inner.create_new(path))?;
        Ok(self.file(file, path))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.inner.open(path, write)?, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around("fs.rename", to, || self.inner.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around("fs.hard_link", to, || self.inner.hard_link(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.around("fs.remove_file", path, || self.inner.remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.around("fs.remove_dir", path, || self.inner.remove_dir(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.around("fs.remove_dir_all", path, || self.inner.remove_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.read_dir(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.around("fs.create_dir_all", path, || self.inner.create_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.around("fs.sync_dir", path, || self.inner.sync_dir(path))
    }

    fn lock(&self, path: &Path, owner: &str) -> io::Result<Result<Box<dyn LockGuard>, String>> {
        self.around("fs.lock", path, || self.inner.lock(path, owner))
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn File>,
    fs: FaultFs,
    path: PathBuf,
}

impl File for FaultFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }

    fn write_all_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.fs.around("fs.write", &self.path, || self.inner.write_all_at(bufs, offset))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fs.around("fs.allocate", &self.path, || self.inner.allocate(offset, len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fs.around("fs.set_len", &self.path, || self.inner.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fs.around("fs.sync_data", &self.path, || self.inner.sync_data())
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.inner.map(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sim::SimFs;

    #[test]
    fn a_world_that_was_stopped_after_a_call_has_its_effect_and_nothing_later() {
        for (point, names) in [(0, vec![]), (1, vec!["a"]), (2, vec!["a"]), (3, vec!["a", "b"]), (4, vec!["a", "b"])] {
            let fs = FaultFs::new(SimFs::new().shared());
            fs.stop_at(point);
            let create = |name: &str| fs.create_new(Path::new(name)).is_ok();
            assert_eq!((create("/a"), create("/b")), (point > 1, point > 3));
            assert_eq!(fs.stopped(), point < 4);
            let entries = fs.read_dir(Path::new("/")).expect("reads go on");
            assert_eq!(entries.into_iter().map(|e| e.name).collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn hooks_see_every_point_and_chosen_calls_fail_without_effect() {
        let sim = SimFs::new();
        let fs = FaultFs::new(sim.shared());
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = seen.clone();
        fs.set_hook(Arc::new(move |point| {
            sink.lock().push(point.to_string());
            Ok(())
        }));
        let file = fs.create_new(Path::new("/a")).expect("created");
        fs.fail_call(fs.calls(), io::ErrorKind::StorageFull);
        let error = file.write_all_at(&[IoSlice::new(b"x")], 0).expect_err("chosen");
        assert_eq!((error.kind(), file.len().expect("a length")), (io::ErrorKind::StorageFull, 0));
        file.write_all_at(&[IoSlice::new(b"x")], 0).expect("once only");
        assert_eq!(*seen.lock(), ["fs.create.before", "fs.create.after", "fs.write.before", "fs.write.after"]);
        assert_eq!(fs.log(), ["fs.create /a", "fs.write /a", "fs.write /a"]);
    }
}
