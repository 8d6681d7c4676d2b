//! Edits go in, numbered versions come out, in an order that all writers agree on.
//!
//! `table/open` loads and raises the epoch, `flush`, `merge` and the catalog commit. The log is a folder of objects
//! `<version>.json`; the highest number is the truth. A commit applies its edit to the newest document and puts the result
//! at the next number if that is absent; if it is not, somebody was faster, and the edit is applied again to what they
//! wrote. Invariant: each successful call added exactly one version, on top of every version below it, under an epoch that
//! was the newest at that number.
//!
//! [`Versioned::trim`] removes old versions, with two exceptions that all of this rests on: the version that raised an epoch
//! and the one before it are kept for good, and of an unfenced log the newest [`KEPT`] are kept. A writer that slept through a takeover then finds the next number taken, whatever was collected meanwhile, instead of putting its
//! commit into a hole where nobody looks.

use super::model::{Decoded, Document, decode, encode};
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::hit;
use crate::ids::Epoch;
use crate::store::{PutOutcome, Store, paths};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Newest versions of an unfenced log that a collector leaves alone.
pub const KEPT: u64 = 100;
/// How many faster writers a commit lets pass before it gives up.
const MAX_ATTEMPTS: u32 = 256;
/// How often one version is put while its outcome is unknown, on top of the store's own retries.
const MAX_UNKNOWN: u32 = 4;
/// How often a load starts over because the version it had listed was collected.
const MAX_RELOADS: u32 = 16;

/// A log of versions of `T` in one folder of a store. All methods are safe to call concurrently.
#[derive(Debug)]
pub struct Versioned<T> {
    store: Arc<dyn Store>,
    dir: String,
    writer: String,
    commits: AtomicU64,
    /// The newest version seen so far.
    newest: Mutex<Option<Arc<T>>>,
    /// Old versions that a trim has found it must keep, and their epochs.
    kept: Mutex<BTreeMap<u64, Epoch>>,
}

enum Put {
    Won,
    Taken,
}

impl<T: Document> Versioned<T> {
    /// The log in `dir` (which ends in `/`). Nothing is read yet.
    ///
    /// `writer` must differ between any two instances that ever write to this folder, in any process: draw it at random.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, dir: impl Into<String>, writer: u64) -> Self {
        let writer = format!("{writer:016x}");
        let (newest, kept) = (Mutex::new(None), Mutex::default());
        Self { store, dir: dir.into(), writer, commits: AtomicU64::new(0), newest, kept }
    }

    /// The folder, ending in `/`.
    #[must_use]
    pub fn dir(&self) -> &str {
        &self.dir
    }

    /// The newest version that this instance has seen, without a request.
    #[must_use]
    pub fn cached(&self) -> Option<Arc<T>> {
        self.newest.lock().clone()
    }

    /// The newest version; `None` if there is none. One LIST and usually two GETs.
    ///
    /// A listing may be stale, so the numbers above its highest are tried until one is absent. `Corrupt` if the newest is
    /// damaged: an older one is never taken in its place.
    pub async fn load_latest(&self) -> Result<Option<Arc<T>>> {
        for _ in 0..MAX_RELOADS {
            let highest = self.versions().await?.last().copied().unwrap_or(0);
            let start = match highest {
                0 => None,
                _ => match self.read(highest).await? {
                    // Collected between the listing and now: there are newer ones.
                    None => continue,
                    found => found,
                },
            };
            return self.walk(start).await;
        }
        Err(Error::unavailable(format!("{}: versions are collected faster than they can be read", self.dir)))
    }

    /// One version by its number: `Expired` if it has been collected (or never was).
    pub async fn load(&self, version: u64) -> Result<Arc<T>> {
        let found = self.read(version).await?;
        let expired = || Error::new(ErrorKind::Expired, format!("{} is gone", paths::version(&self.dir, version)));
        found.map(|decoded| Arc::new(decoded.document)).ok_or_else(expired)
    }

    /// The numbers of all versions that are listed, ascending.
    pub async fn versions(&self) -> Result<Vec<u64>> {
        let listed = self.store.list(&self.dir).await?;
        Ok(listed.iter().filter_map(|meta| paths::parse_version(&self.dir, &meta.path)).collect())
    }

    /// Puts the first version. `Conflict` if there is one already, whoever wrote it.
    pub async fn create(&self, mut first: T) -> Result<Arc<T>> {
        let taken = || Error::conflict(format!("{}: there is a {} already", self.dir, T::KIND));
        if self.load_latest().await?.is_some() {
            return Err(taken());
        }
        first.set_version(1);
        match self.put(&first).await? {
            Put::Won => Ok(self.saw(first)),
            Put::Taken => Err(taken()),
        }
    }

    /// Applies `edit` to the newest version and puts the result as the next one; returns what was put, durable.
    ///
    /// `edit` may run many times, each time on a newer document: it must follow from its argument alone. Its version
    /// number is set here. `Fenced` if a newer epoch owns the shard; `NotFound` if there is no version; errors of `edit`
    /// as they are. After `Unavailable` the outcome is unknown: the version may be there, or come to be there still, so
    /// that an edit that is committed again has to recognize its own earlier effect.
    pub async fn commit(&self, epoch: Epoch, mut edit: impl FnMut(&T) -> Result<T> + Send) -> Result<Arc<T>> {
        self.append(|newest| {
            self.check_epoch(epoch, newest)?;
            let next = edit(newest)?;
            if next.epoch() != newest.epoch() {
                return Err(Error::internal(format!("{}: an edit must not change the epoch", self.dir)));
            }
            Ok(next)
        })
        .await
    }

    /// Takes the shard over: puts a version whose epoch is one above the newest. From then on every earlier writer's
    /// commit is `Fenced`. The new epoch is the caller's alone.
    pub async fn raise_epoch(&self) -> Result<Arc<T>> {
        self.append(|newest| {
            let mut next = newest.clone();
            next.set_epoch(newest.epoch().plus(1));
            Ok(next)
        })
        .await
    }

    /// Removes versions that are neither among the newest `keep` nor needed to shut out a writer that was taken over (see
    /// the head of this file), nor in `pinned`; returns how many. One LIST, and a GET and a DELETE for each one removed.
    ///
    /// May stop or fail at any point and be called again.
    pub async fn trim(&self, keep: u64, pinned: &[u64]) -> Result<u64> {
        let keep = if T::FENCED { keep.max(1) } else { keep.max(KEPT) };
        let versions = self.versions().await?;
        let Some(last) = versions.last().and_then(|newest| newest.checked_sub(keep)) else { return Ok(0) };
        let mut removed = 0;
        let (mut below, mut next) = (None, None);
        for version in versions.into_iter().take_while(|v| *v <= last) {
            if let Some(epoch) = self.kept.lock().get(&version) {
                (below, next) = (Some(*epoch), None);
                continue;
            }
            let known = next.take().filter(|(v, _)| *v == version);
            let Some((_, epoch)) = (match known {
                None => self.epoch_of(version).await?,
                known => known,
            }) else {
                continue;
            };
            next = self.epoch_of(version + 1).await?;
            // In ascending order, so that a lower neighbour that is gone was one that this version raised nothing above.
            let raises = below.is_some_and(|below| below < epoch) || next.is_some_and(|(_, above)| epoch < above);
            below = Some(epoch);
            if T::FENCED && raises {
                self.kept.lock().insert(version, epoch);
            } else if !pinned.contains(&version) {
                self.store.delete(&paths::version(&self.dir, version)).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    async fn epoch_of(&self, version: u64) -> Result<Option<(u64, Epoch)>> {
        Ok(self.read(version).await?.map(|found| (version, found.document.epoch())))
    }

    fn check_epoch(&self, ours: Epoch, newest: &T) -> Result<()> {
        let owner = newest.epoch();
        if !T::FENCED || owner == ours {
            return Ok(());
        }
        if owner > ours {
            return Err(Error::fenced(format!(
                "{}: the writer of epoch {owner} took over; this one, of epoch {ours}, can write no more: open anew",
                self.dir
            )));
        }
        Err(Error::internal(format!(
            "{}: a commit under epoch {ours}, which was never raised (it is {owner})",
            self.dir
        )))
    }

    async fn append(&self, mut edit: impl FnMut(&T) -> Result<T> + Send) -> Result<Arc<T>> {
        // An unfenced log has no takeover to find at the next number, so it is looked up afresh.
        let cached = if T::FENCED { self.cached() } else { None };
        let mut newest = match cached {
            Some(newest) => newest,
            None => self.load_existing().await?,
        };
        for _ in 0..MAX_ATTEMPTS {
            let mut next = edit(&newest)?;
            next.set_version(newest.version() + 1);
            match self.put(&next).await? {
                Put::Won => return Ok(self.saw(next)),
                Put::Taken => newest = self.load_from(next.version()).await?,
            }
        }
        Err(Error::unavailable(format!("{}: {MAX_ATTEMPTS} other commits came first; nothing was written", self.dir)))
    }

    async fn load_existing(&self) -> Result<Arc<T>> {
        let absent = || Error::not_found(format!("{}: there is no {}", self.dir, T::KIND));
        self.load_latest().await?.ok_or_else(absent)
    }

    /// The newest version, given that `version` was there a moment ago.
    async fn load_from(&self, version: u64) -> Result<Arc<T>> {
        let start = match self.read(version).await? {
            Some(found) => self.walk(Some(found)).await?,
            None => None,
        };
        match start {
            Some(newest) => Ok(newest),
            None => self.load_existing().await,
        }
    }

    /// Walks upward from `start` (from nothing: from version 1) to the first absent number.
    async fn walk(&self, start: Option<Decoded<T>>) -> Result<Option<Arc<T>>> {
        let mut newest = start;
        loop {
            let next = newest.as_ref().map_or(0, |found| found.document.version()) + 1;
            match self.read(next).await? {
                Some(found) => newest = Some(found),
                None => return Ok(newest.map(|found| self.saw(found.document))),
            }
        }
    }

    async fn read(&self, version: u64) -> Result<Option<Decoded<T>>> {
        let path = paths::version(&self.dir, version);
        let bytes = match self.store.get(&path).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let found: Decoded<T> = decode(&path, &bytes)?;
        let inside = found.document.version();
        if inside != version {
            return Err(Error::corrupt(format!("{path} is damaged: it says it is version {inside}")));
        }
        Ok(Some(found))
    }

    /// Puts `next` at its number if that is absent.
    async fn put(&self, next: &T) -> Result<Put> {
        let path = paths::version(&self.dir, next.version());
        next.validate(&path).map_err(|e| e.with_kind(ErrorKind::Internal).context("an edit was refused"))?;
        // ORDERING: Relaxed suffices: the number only makes the commit's name unique.
        let n = self.commits.fetch_add(1, Ordering::Relaxed);
        let bytes = encode(next, &format!("{}-{n}", self.writer))?;
        let mut attempt = 1;
        let failed = |e| Error::io(format!("committing {path}, outcome unknown"), e);
        loop {
            hit("manifest.put.before").map_err(failed)?;
            let put = self.store.put_if_absent(&path, bytes.clone()).await;
            hit("manifest.put.after").map_err(failed)?;
            match put {
                Ok(PutOutcome::Created) => return Ok(Put::Won),
                Ok(PutOutcome::Exists) => return self.whose(&path, &bytes).await,
                // Unknown: it may be there. Putting the same bytes again tells, and does nothing twice.
                Err(e) if e.kind() == ErrorKind::Unavailable && attempt < MAX_UNKNOWN => attempt += 1,
                Err(e) => return Err(e.context(format!("committing {path}, outcome unknown"))),
            }
        }
    }

    /// Whether the object that was there already is this very commit's, put by an attempt that looked failed.
    async fn whose(&self, path: &str, ours: &Bytes) -> Result<Put> {
        match self.store.get(path).await {
            Ok(there) if there == *ours => Ok(Put::Won),
            Ok(_) => Ok(Put::Taken),
            // Collected since: somebody is far ahead.
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Put::Taken),
            Err(e) => Err(e.context(format!("committing {path}, outcome unknown"))),
        }
    }

    /// Remembers the newest version seen.
    fn saw(&self, document: T) -> Arc<T> {
        let document = Arc::new(document);
        let mut newest = self.newest.lock();
        if newest.as_ref().is_none_or(|n| n.version() < document.version()) {
            *newest = Some(document.clone());
        }
        document
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
