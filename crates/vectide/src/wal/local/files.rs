//! The log's files as its thread sees them: created, preallocated, written, synced, replaced.
//!
//! [`LocalLog`](super::LocalLog)'s thread is the only caller. Invariants: a frame stands in one file; a file's name and
//! header are durable before any frame in it counts; when a file exists, everything below its start is durable; space
//! that was promised to a writer is never taken back (a new file starts with at least what the old one had left).

use crate::error::{Error, Result};
use crate::failpoint::hit;
use crate::ids::{Epoch, LogPosition, PubNo};
use crate::store::{File, Fs};
use crate::wal::durable::DurableMark;
use crate::wal::frame::LogSchema;
use crate::wal::queue::Space;
use crate::wal::{epoch_name, log_file_name};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Slices handed to one vectored write; below the system's limit of 1,024.
const MAX_SLICES: usize = 512;
/// Space is asked for in multiples of this.
const SPACE_UNIT: u64 = 4 << 10;

/// Sizes of log files.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSizes {
    /// A file is replaced once it has grown to this.
    pub(super) full: u64,
    /// What the epoch's first file starts with; it doubles up to `full`.
    pub(super) first: u64,
}

/// The file that frames go to.
#[derive(Debug)]
struct Active {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Log position of its first byte.
    start: u64,
    /// Bytes preallocated.
    allocated: u64,
}

/// The epoch's files, newest one open.
#[derive(Debug)]
pub(super) struct Files {
    fs: Arc<dyn Fs>,
    wal_dir: PathBuf,
    epoch: Epoch,
    schema: Arc<LogSchema>,
    sizes: FileSizes,
    space: Arc<Space>,
    active: Option<Active>,
    mark: Option<Arc<dyn File>>,
    has_warned: bool,
    /// Log position behind the last frame.
    position: u64,
    next_first_bytes: u64,
}

/// Why there is no more space.
pub(super) enum NoSpace {
    /// The disk is full: nothing was changed, a later attempt may succeed.
    Full(io::Error),
    /// The files are in an unknown state: the log is over.
    Broken(Error),
}

impl Files {
    pub(super) fn new(
        fs: Arc<dyn Fs>,
        wal_dir: PathBuf,
        epoch: Epoch,
        schema: Arc<LogSchema>,
        sizes: FileSizes,
        space: Arc<Space>,
    ) -> Self {
        let next_first_bytes = sizes.first;
        Self {
            fs,
            wal_dir,
            epoch,
            schema,
            sizes,
            space,
            active: None,
            mark: None,
            has_warned: false,
            position: 0,
            next_first_bytes,
        }
    }

    /// Log position behind the last frame (and the current file's header).
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn remaining(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.start + active.allocated - self.position)
    }

    /// Whether it is time to ask for more, before a writer has to wait for it: `reserve` is nothing to a writer.
    pub(super) fn is_low(&self, reserve: u64) -> bool {
        let low = |active: &Active| reserve + (active.allocated / 4).min(self.sizes.full / 8);
        self.active.as_ref().is_some_and(|active| self.space.free() < low(active))
    }

    /// Preallocates `need` bytes more than are free now, or `least` if the disk has no more, in the current file or in a
    /// new one; usually more than that. On success the space is in [`Space`]; `Ok(true)` tells that a file was created.
    pub(super) fn extend(&mut self, need: u64, least: u64) -> Result<bool, NoSpace> {
        let (need, least) = (need.next_multiple_of(SPACE_UNIT), least.next_multiple_of(SPACE_UNIT));
        match &mut self.active {
            Some(active) if active.allocated < self.sizes.full => {
                let wish = active.allocated.min(self.sizes.full - active.allocated).max(need);
                let grown = allocate(active.file.as_ref(), &active.path, active.allocated, &[wish, need, least])?;
                active.allocated += grown;
                self.space.add(grown);
                Ok(false)
            }
            _ => self.replace(need, least).map(|()| true),
        }
    }

    /// Starts a new file with `need` (or `least`) bytes more than the old one had left. All that was written is synced.
    fn replace(&mut self, need: u64, least: u64) -> Result<(), NoSpace> {
        let header = self.schema.file_header(self.epoch, self.position);
        let left = self.remaining();
        let with = |bytes: u64| (left + bytes + header.len() as u64).next_multiple_of(SPACE_UNIT);
        let sizes = [self.next_first_bytes.max(with(need)), with(need), with(least)];
        let dir = self.wal_dir.join(epoch_name(self.epoch));
        if self.active.is_none() {
            hit("wal.local.mkdir.before").and_then(|()| self.fs.create_dir_all(&dir)).map_err(|e| classify(&dir, e))?;
            if self.mark.is_none() {
                let mark =
                    DurableMark::file(self.fs.as_ref(), &self.wal_dir).map_err(|e| classify(&self.wal_dir, e))?;
                self.mark = Some(mark);
            }
        }
        let path = dir.join(log_file_name(self.position));
        let file =
            hit("wal.local.create.before").and_then(|()| self.fs.create_new(&path)).map_err(|e| classify(&path, e))?;
        let allocated = match self.fill_new(file.as_ref(), &path, &header, &sizes) {
            Ok(allocated) => allocated,
            Err(NoSpace::Full(full)) => return Err(self.undo_create(&path, &dir, full)),
            Err(broken) => return Err(broken),
        };
        hit("wal.local.sync_dir.before")
            .and_then(|()| self.fs.sync_dir(&dir))
            .map_err(|e| broken("syncing", &dir, e))?;
        if let Some(old) = self.active.take() {
            // Gives back what was preallocated and not needed. Only room is at stake: the zeros read the same.
            let _ = old.file.set_len(self.position - old.start);
        }
        self.active = Some(Active { file, path, start: self.position, allocated });
        self.position += header.len() as u64;
        self.next_first_bytes = (self.sizes.full / 4).max(self.sizes.first).min(self.sizes.full);
        self.space.add(allocated - header.len() as u64 - left);
        Ok(())
    }

    fn fill_new(&self, file: &dyn File, path: &Path, header: &[u8], sizes: &[u64]) -> Result<u64, NoSpace> {
        let allocated = allocate(file, path, 0, sizes)?;
        hit("wal.local.header.before")
            .and_then(|()| file.write_all_at(&[IoSlice::new(header)], 0))
            .and_then(|()| hit("wal.local.header.sync.before"))
            .and_then(|()| file.sync_data())
            .map_err(|e| broken("writing", path, e))?;
        Ok(allocated)
    }

    /// Removes a file that could not be filled. Its name must not outlive this: a file says that all below it is durable,
    /// and deletes may still go to the old file.
    fn undo_create(&self, path: &Path, dir: &Path, full: io::Error) -> NoSpace {
        match self.fs.remove_file(path).and_then(|()| self.fs.sync_dir(dir)) {
            Ok(()) => NoSpace::Full(full),
            Err(e) => broken("removing", path, e),
        }
    }

    /// Writes `slices` (`len` bytes) behind the last frame and makes them durable.
    pub(super) fn append(&mut self, slices: &[&[u8]], len: u64) -> Result<()> {
        let active = self.active.as_mut().ok_or_else(|| Error::internal("a frame was queued without space"))?;
        let mut offset = self.position - active.start;
        if offset + len > active.allocated {
            return Err(Error::internal(format!("{len} bytes do not fit {} at {offset}", active.path.display())));
        }
        let unknown = |doing: &str, offset: u64, e: io::Error| {
            let path = active.path.display();
            Error::unavailable(format!(
                "{doing} {path} at byte {offset}: {e}; the outcome of the writes in flight is unknown: open the table anew"
            ))
            .with_source(e)
        };
        for some in slices.chunks(MAX_SLICES) {
            let io: Vec<_> = some.iter().map(|slice| IoSlice::new(slice)).collect();
            hit("wal.local.write.before")
                .and_then(|()| active.file.write_all_at(&io, offset))
                .map_err(|e| unknown("writing", offset, e))?;
            offset += some.iter().map(|slice| slice.len() as u64).sum::<u64>();
        }
        hit("wal.local.sync.before")
            .and_then(|()| active.file.sync_data())
            .and_then(|()| hit("wal.local.sync.after"))
            .map_err(|e| unknown("syncing", offset, e))?;
        self.position += len;
        Ok(())
    }

    /// Tells readers in other processes that everything written is durable.
    pub(super) fn publish(&mut self, publication: PubNo) {
        let position = LogPosition { epoch: self.epoch, at: self.position };
        let Some(mark) = &self.mark else { return };
        if let Err(e) = (DurableMark { position, publication }).write(mark.as_ref())
            && !std::mem::replace(&mut self.has_warned, true)
        {
            tracing::warn!(error = %e, dir = %self.wal_dir.display(), "readers in other processes will lag: the durable mark cannot be written");
        }
    }

    /// Closes the current file if everything in it lies before `position` and nobody holds space in it: the next frame
    /// then starts a new one. Returns whether there is no current file now.
    pub(super) fn retire(&mut self, position: LogPosition) -> bool {
        let covers = position >= LogPosition { epoch: self.epoch, at: self.position };
        if self.active.is_some() && covers && self.space.take_all(self.remaining()) {
            self.active = None;
            self.next_first_bytes = self.sizes.first;
        }
        self.active.is_none()
    }

    /// Gives the preallocated rest back when the log ends.
    pub(super) fn finish(&mut self) {
        if let Some(active) = self.active.take() {
            let _ = active.file.set_len(self.position - active.start);
        }
    }

    /// Log position of the current file's first byte.
    pub(super) fn current_start(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.start)
    }
}

/// Tries `sizes` one after the other; returns the one that fitted.
fn allocate(file: &dyn File, path: &Path, from: u64, sizes: &[u64]) -> Result<u64, NoSpace> {
    let mut last = None;
    for &size in sizes {
        match hit("wal.local.allocate.before").and_then(|()| file.allocate(from, size)) {
            Ok(()) => return Ok(size),
            Err(e) if is_full(&e) => {
                // A failed attempt may have grown the file part of the way.
                file.set_len(from).map_err(|e| broken("shrinking", path, e))?;
                last = Some(e);
            }
            Err(e) => return Err(broken("preallocating", path, e)),
        }
    }
    Err(NoSpace::Full(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::StorageFull))))
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn classify(path: &Path, e: io::Error) -> NoSpace {
    if is_full(&e) { NoSpace::Full(e) } else { broken("creating", path, e) }
}

fn broken(doing: &str, path: &Path, e: io::Error) -> NoSpace {
    NoSpace::Broken(Error::io(format!("{doing} {}", path.display()), e).with_kind(crate::ErrorKind::Unavailable))
}

/// Removes files of `wal_dir` that lie wholly before `position`, oldest first; returns how many of `own` epoch went.
/// Never the newest file of `position`'s or a later epoch, unless `own`'s current file was retired (`current` is `None`).
pub(super) fn trim(
    fs: &dyn Fs,
    wal_dir: &Path,
    position: LogPosition,
    own: Epoch,
    current: Option<u64>,
) -> Result<u64> {
    let doing = |path: &Path| format!("trimming {}", path.display());
    let entries = match fs.read_dir(wal_dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other.map_err(|e| Error::io(doing(wal_dir), e))?,
    };
    let mut own_removed = 0;
    for entry in entries.iter().filter(|entry| entry.is_dir) {
        let Ok(epoch) = entry.name.parse().map(Epoch) else { continue };
        let dir = wal_dir.join(&entry.name);
        if epoch < position.epoch && epoch != own {
            hit("wal.local.trim.before")
                .and_then(|()| fs.remove_dir_all(&dir))
                .map_err(|e| Error::io(doing(&dir), e))?;
        } else if epoch == position.epoch {
            let keep_from = if epoch == own { current } else { None };
            let removed = trim_epoch(fs, &dir, position.at, keep_from, epoch == own)?;
            own_removed += if epoch == own { removed } else { 0 };
        }
    }
    Ok(own_removed)
}

fn trim_epoch(fs: &dyn Fs, dir: &Path, at: u64, current: Option<u64>, is_own: bool) -> Result<u64> {
    let starts = list_files(fs, dir)?;
    let mut removed = 0;
    for (i, &start) in starts.iter().enumerate() {
        let end = match starts.get(i + 1) {
            Some(&next) => next,
            // The own log's last file: only if it was retired, in which case it ends at the trim's position at most.
            None if is_own && current.is_none() => at,
            None => break,
        };
        // A file that starts at the position was made after the retirement.
        if start >= at || end > at || current.is_some_and(|current| start >= current) {
            break;
        }
        let path = dir.join(log_file_name(start));
        hit("wal.local.trim.before")
            .and_then(|()| fs.remove_file(&path))
            .map_err(|e| Error::io(format!("trimming {}", path.display()), e))?;
        removed += 1;
    }
    Ok(removed)
}

/// Start positions of the log files in an epoch's directory, ascending; empty if it does not exist.
pub(in crate::wal) fn list_files(fs: &dyn Fs, dir: &Path) -> Result<Vec<u64>> {
    let entries = match fs.read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| Error::io(format!("listing {}", dir.display()), e))?,
    };
    let start = |name: &str| name.strip_suffix(".log").and_then(|digits| digits.parse().ok());
    let mut starts: Vec<u64> = entries.iter().filter(|e| !e.is_dir).filter_map(|e| start(&e.name)).collect();
    starts.sort_unstable();
    Ok(starts)
}
