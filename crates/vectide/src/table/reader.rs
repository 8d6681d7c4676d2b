//! Tables read from beside their writer, in any process.
//!
//! A [`ReadTable`] stands on the same shard machinery as a writer, without a log of its own: it maps the manifest's
//! segments, applies the durable part of the log to a memtable, and looks for news when it is read and the last look is
//! older than `refresh_interval_ms`. When the writer has flushed, it starts over from the new manifest; snapshots taken
//! before go on reading what they see. Invariant: it never sees a batch that the writer could still lose.

use super::open::{all_visible, apply, open_base, open_segments, register};
use super::shard::{Ground, Shard};
use super::{Snapshot, verify};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::Keys;
use crate::manifest::{ShardManifest, Versioned};
use crate::schema::TableSchema;
use crate::search::request::{Pin_, Queries};
use crate::search::{Scan, Search, SearchBatch};
use crate::stats::{Staleness, TableStats, VerifyReport};
use crate::wal::tail::Tail;
use arrow::array::RecordBatch;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::time::Duration;

/// Starting over because the log was trimmed under the reader is tried this often before it gives up.
const MAX_RESTARTS: usize = 16;
/// Manifests that a verification begins with before it gives up on a writer that collects what they name.
const VERIFY_ATTEMPTS: usize = 8;

/// How often a reader looks for the newest manifest from a listing on: one that was overtaken by more versions than are
/// kept stays behind for so long at most.
const LISTING: Duration = Duration::from_secs(1);

/// A table open for reading only. Cheap to clone; all clones follow the writer together.
#[derive(Clone, Debug)]
pub struct ReadTable {
    inner: Arc<Follower>,
}

#[derive(Debug)]
struct Follower {
    ground: Ground,
    manifest: Versioned<ShardManifest>,
    /// One refresh at a time.
    following: tokio::sync::Mutex<Following>,
    /// What reads see now.
    shard: RwLock<Arc<Shard>>,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Following {
    manifest: Arc<ShardManifest>,
    tail: Tail,
    /// When the manifests were last listed.
    listed_at: Duration,
}

/// What a look at the manifest found.
enum News {
    None,
    /// Merges went on; segments and log are as before.
    Base(Arc<ShardManifest>),
    /// Everything may be different.
    Segments,
}

#[derive(Clone, Copy, Debug)]
struct Looked {
    at: Duration,
    caught_up: bool,
}

impl ReadTable {
    pub(crate) async fn open(ground: Ground) -> Result<Self> {
        let dir = ground.paths.manifest_dir();
        let manifest: Versioned<ShardManifest> =
            Versioned::new(Arc::clone(&ground.store), dir, crate::runtime::random_u64());
        let (following, shard) = start_over(&ground, &manifest).await?;
        let looked = Mutex::new(Looked { at: ground.clock.now(), caught_up: true });
        let (following, shard) = (tokio::sync::Mutex::new(following), RwLock::new(shard));
        Ok(Self { inner: Arc::new(Follower { ground, manifest, following, shard, looked }) })
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.ground.name
    }

    /// The table's schema.
    #[must_use]
    pub fn schema(&self) -> &TableSchema {
        &self.inner.ground.schema
    }

    /// Looks for news now: on return, reads see everything that was durable when it was called.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt` from the store; what was seen before stays readable.
    pub async fn refresh(&self) -> Result<()> {
        self.inner.refresh(true).await
    }

    /// How far behind the writer reads may be.
    #[must_use]
    pub fn staleness(&self) -> Staleness {
        let looked = *self.inner.looked.lock();
        let ago = self.inner.ground.clock.now().saturating_sub(looked.at).as_millis();
        Staleness {
            refreshed_ms_ago: u64::try_from(ago).unwrap_or(u64::MAX),
            applied_publication: self.inner.current().watermark.cut().at.0,
            caught_up: looked.caught_up,
        }
    }

    /// As [`Table::search`](super::Table::search).
    pub fn search(&self, query: &[f32]) -> Search {
        Search::new(self.pin(), query)
    }

    /// As [`Table::search_batch`](super::Table::search_batch).
    pub fn search_batch(&self, queries: &(impl Queries + ?Sized)) -> SearchBatch {
        SearchBatch::new(self.pin(), queries.queries())
    }

    /// As [`Table::get`](super::Table::get).
    ///
    /// # Errors
    /// As [`Table::get`](super::Table::get), and from looking for news.
    pub async fn get(&self, keys: impl Into<Keys>) -> Result<RecordBatch> {
        self.inner.refresh(false).await?;
        self.inner.current().reader().get_all(&keys.into())
    }

    /// As [`Table::scan`](super::Table::scan).
    pub fn scan(&self) -> Scan {
        Scan::new(self.pin())
    }

    /// As [`Table::count`](super::Table::count).
    ///
    /// # Errors
    /// From looking for news.
    pub async fn count(&self) -> Result<u64> {
        self.inner.refresh(false).await?;
        Ok(self.inner.current().watermark.cut().live)
    }

    /// As [`Table::snapshot`](super::Table::snapshot), after looking for news.
    ///
    /// # Errors
    /// From looking for news.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        self.inner.refresh(false).await?;
        Ok(Snapshot::of_reader(self.inner.current().reader(), self.inner.ground.options.snapshots as u64))
    }

    /// As [`Table::stats`](super::Table::stats), for this handle.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        super::stats_of(&self.inner.current())
    }

    /// As [`Table::verify`](super::Table::verify).
    ///
    /// # Errors
    /// `Corrupt` naming the damaged object.
    pub async fn verify(&self) -> Result<VerifyReport> {
        let mut before = None;
        for _ in 0..VERIFY_ATTEMPTS {
            self.inner.refresh(true).await?;
            let (manifest, reader) = {
                let following = self.inner.following.lock().await;
                (Arc::clone(&following.manifest), self.inner.current().reader())
            };
            let verified = verify::verify(&self.inner.ground, &manifest, reader).await;
            match verified {
                // The writer may have collected what this version names.
                Err(error) if error.kind() == ErrorKind::NotFound && before != Some(manifest.version) => {
                    before = Some(manifest.version);
                }
                verified => return verified.map_err(verify::missing_is_damage),
            }
        }
        Err(Error::expired(format!(
            "the writer collected files while they were read, {VERIFY_ATTEMPTS} times: verify while less is merged, or in \
             the writer's process"
        )))
    }

    fn pin(&self) -> Pin_ {
        let inner = Arc::clone(&self.inner);
        Arc::new(move || {
            let inner = Arc::clone(&inner);
            Box::pin(async move {
                inner.refresh(false).await?;
                Ok(inner.current().reader())
            })
        })
    }
}

impl Follower {
    fn current(&self) -> Arc<Shard> {
        Arc::clone(&self.shard.read())
    }

    /// Looks for news if the last look is old, or in any case if `now`.
    async fn refresh(&self, now: bool) -> Result<()> {
        let interval = Duration::from_millis(self.ground.options.refresh_interval_ms);
        let is_fresh = || self.ground.clock.now().saturating_sub(self.looked.lock().at) < interval;
        if !now && is_fresh() {
            return Ok(());
        }
        let mut following = self.following.lock().await;
        if !now && is_fresh() {
            return Ok(());
        }
        let started = self.ground.clock.now();
        self.follow(&mut following, now).await?;
        *self.looked.lock() = Looked { at: started, caught_up: true };
        Ok(())
    }

    async fn follow(&self, following: &mut Following, is_asked: bool) -> Result<()> {
        let started = self.ground.clock.now();
        let is_due = is_asked || started.saturating_sub(following.listed_at) >= LISTING;
        if is_due {
            following.listed_at = started;
        }
        match self.news(&following.manifest, is_due).await? {
            News::None => {}
            News::Base(newest) => self.follow_base(following, newest).await?,
            News::Segments => return self.restart(following).await,
        }
        match catch_up(&self.current(), &mut following.tail).await {
            // The log was trimmed: a newer manifest has the rows.
            Err(error) if error.kind() == ErrorKind::Expired => self.restart(following).await,
            other => other,
        }
    }

    /// What newer manifests say. The next number being absent is no news; but it could have been collected, so that now and
    /// then (`list`) the newest is looked for from a listing on.
    async fn news(&self, ours: &ShardManifest, list: bool) -> Result<News> {
        match self.manifest.load(ours.version + 1).await {
            Err(error) if error.kind() == ErrorKind::Expired => {
                let newest = if list { self.manifest.load_latest().await? } else { None };
                return Ok(match newest {
                    Some(newest) if newest.version > ours.version => News::Segments,
                    _ => News::None,
                });
            }
            other => drop(other?),
        }
        let Some(newest) = self.manifest.load_latest().await? else { return Ok(News::Segments) };
        let same = |a: &ShardManifest, b: &ShardManifest| {
            (&a.segments, a.replay_from, a.epoch, &a.closed) == (&b.segments, b.replay_from, b.epoch, &b.closed)
        };
        Ok(if same(ours, &newest) { News::Base(newest) } else { News::Segments })
    }

    /// Only the base has moved: reads its new deltas, whose rows take the places of older ones in the cache.
    async fn follow_base(&self, following: &mut Following, newest: Arc<ShardManifest>) -> Result<()> {
        let shard = self.current();
        let view = shard.view();
        match open_base(&self.ground, &newest, &view.sources, view.base()).await {
            Ok(base) => shard.set_base(base),
            // Collected since: there is a newer manifest.
            Err(error) if error.kind() == ErrorKind::NotFound => return self.restart(following).await,
            Err(error) => return Err(error),
        }
        following.manifest = newest;
        Ok(())
    }

    async fn restart(&self, following: &mut Following) -> Result<()> {
        let (next, shard) = start_over(&self.ground, &self.manifest).await?;
        *following = next;
        *self.shard.write() = shard;
        Ok(())
    }
}

/// A shard over the newest manifest, caught up with the log.
async fn start_over(ground: &Ground, manifest: &Versioned<ShardManifest>) -> Result<(Following, Arc<Shard>)> {
    let mut last = None;
    for _ in 0..MAX_RESTARTS {
        let newest = manifest
            .load_latest()
            .await?
            .ok_or_else(|| Error::not_found(format!("table {} has no manifest: it was dropped", ground.name)))?;
        let opened = async {
            let sources = open_segments(ground, &newest).await?;
            let base = open_base(ground, &newest, &sources, None).await?;
            Ok::<_, Error>((sources, base))
        };
        let (sources, base) = match opened.await {
            Ok(opened) => opened,
            // Collected between the manifest and now: there is a newer manifest.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                last = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let dir = ground.paths.manifest_dir();
        let own = Versioned::new(Arc::clone(&ground.store), dir, crate::runtime::random_u64());
        let shard = Arc::new(Shard::new(ground.clone(), own, &newest, sources, base)?);
        register(&shard);
        let mut tail = Tail::open(&ground.store, &ground.paths, Arc::clone(&ground.log_schema), &newest);
        match catch_up(&shard, &mut tail).await {
            Ok(()) => {
                let listed_at = ground.clock.now();
                return Ok((Following { manifest: newest, tail, listed_at }, shard));
            }
            Err(error) if error.kind() == ErrorKind::Expired => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    let expired = || Error::expired("the writer flushes and trims faster than this reader can follow");
    Err(last.unwrap_or_else(expired).with_kind(ErrorKind::Expired))
}

/// Applies what the log has become durable with, and indexes it.
async fn catch_up(shard: &Arc<Shard>, tail: &mut Tail) -> Result<()> {
    let mut any = false;
    while let Some(batch) = tail.next().await? {
        apply(shard, batch)?;
        any = true;
    }
    if any {
        all_visible(shard).await?;
    }
    Ok(())
}
