//! What the disk itself does: the log's bytes written plainly, and what a sync of one group takes.
//!
//! In the same directory and run as the database, over the same file layer. The file is preallocated and its preallocation
//! synced before anything is timed.

use crate::error::{Error, Outcome};
use crate::figures::{percentile, rounded};
use serde::Serialize;
use std::io::IoSlice;
use std::path::Path;
use std::time::Instant;
use vectide::store::{DiskFs, File};

/// Bytes of one write of the plain one.
const WRITE_BYTES: u64 = 8 << 20;
/// Syncs that are timed, at least and at most; as many as the log made, if that is between.
const SYNCS: std::ops::RangeInclusive<u64> = 50..=1_000;
/// Bytes that timing syncs may write.
const SYNCED_BYTES: u64 = 256 << 20;

/// Figures of the bare disk.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Disk {
    /// All bytes in writes of 8 MiB, then one `fdatasync`.
    pub(super) one_sync_mb_per_s: f64,
    /// Bytes in writes of `group_bytes`, each with an `fdatasync` of its own.
    pub(super) sync_each_mb_per_s: f64,
    /// Bytes of one write before each timed `fdatasync`.
    pub(super) group_bytes: u64,
    /// The `fdatasync` alone, the write before it not counted.
    pub(super) fdatasync_p50_us: f64,
    pub(super) fdatasync_p99_us: f64,
    /// Syncs that were timed.
    pub(super) syncs: usize,
}

/// Writes `bytes` into a file of its own below `dir`, at once, and as a log does that made `groups` group commits of them.
pub(super) fn measure(dir: &Path, bytes: u64, groups: u64) -> Outcome<Disk> {
    let bytes = bytes.max(4_096);
    let group_bytes = (bytes / groups.max(1)).clamp(512, WRITE_BYTES);
    let path = dir.join("plain");
    let failed = |source| Error::Write { path: path.clone(), source };
    let run = || -> std::io::Result<Disk> {
        let started = Instant::now;
        let file = preallocated(&path, bytes)?;
        let plain = started();
        write(&*file, bytes, WRITE_BYTES, |_| Ok(()))?;
        file.sync_data()?;
        let one_sync_mb_per_s = mb(bytes) / plain.elapsed().as_secs_f64();
        drop(file);
        std::fs::remove_file(&path)?;
        let groups = groups.min(SYNCED_BYTES / group_bytes).clamp(*SYNCS.start(), *SYNCS.end());
        let bytes = groups * group_bytes;
        let file = preallocated(&path, bytes)?;
        let mut times_us = Vec::new();
        let grouped = started();
        write(&*file, bytes, group_bytes, |file| {
            let sync = started();
            file.sync_data()?;
            times_us.push(sync.elapsed().as_secs_f64() * 1e6);
            Ok(())
        })?;
        let sync_each_mb_per_s = mb(bytes) / grouped.elapsed().as_secs_f64();
        drop(file);
        std::fs::remove_file(&path)?;
        Ok(Disk {
            one_sync_mb_per_s: rounded(one_sync_mb_per_s),
            sync_each_mb_per_s: rounded(sync_each_mb_per_s),
            group_bytes,
            fdatasync_p50_us: rounded(percentile(&times_us, 50.0)),
            fdatasync_p99_us: rounded(percentile(&times_us, 99.0)),
            syncs: times_us.len(),
        })
    };
    run().map_err(failed)
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn preallocated(path: &Path, bytes: u64) -> std::io::Result<std::sync::Arc<dyn File>> {
    let file = DiskFs::shared().create_new(path)?;
    file.allocate(0, bytes)?;
    file.sync_data()?;
    Ok(file)
}

/// Writes `bytes` in pieces that are no zeros, and calls `after` behind each.
fn write(
    file: &dyn File,
    bytes: u64,
    piece: u64,
    mut after: impl FnMut(&dyn File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let content: Vec<u8> = (0..piece).map(|i| (i * 31 % 251) as u8).collect();
    for at in (0..bytes).step_by(piece as usize) {
        let len = piece.min(bytes - at) as usize;
        file.write_all_at(&[IoSlice::new(&content[..len])], at)?;
        after(file)?;
    }
    Ok(())
}

/// The file system that `dir` lies on, by the name that `/proc/mounts` has for it; `unknown` elsewhere.
pub(super) fn file_system(dir: &Path) -> String {
    let Ok(dir) = dir.canonicalize() else { return "unknown".to_owned() };
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
        dir.starts_with(at).then(|| (at.len(), kind.to_owned()))
    });
    mounts.max_by_key(|(length, _)| *length).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let disk = measure(dir.path(), 100_000, 100).expect("measured");
        assert_eq!((disk.syncs, disk.group_bytes), (100, 1_000));
        assert!(disk.one_sync_mb_per_s > 0.0 && disk.fdatasync_p50_us <= disk.fdatasync_p99_us, "{disk:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
        let error = measure(&dir.path().join("none"), 1, 1).expect_err("no such folder");
        assert!(error.to_string().contains("none"), "{error}");
    }
}
