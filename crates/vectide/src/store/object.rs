//! Objects go in, requests come out: [`Store`] over anything that `object_store` speaks to, memory included.
//!
//! `open_uri` builds it for `memory://` and `s3://`, callers may hand any other `object_store` in. Invariant: a
//! conditional put is sent exactly once per call, so that an answer `Exists` is never about this very call's object.

use super::cache::MapCache;
use super::paths::{check_path, check_prefix};
use super::{LocalDir, ObjectMeta, ObjectWriter, PutOutcome, Store, Written};
use crate::error::{Error, ErrorKind, Result};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Objects up to this many bytes go up in one request, longer ones in parts of this size (S3 demands 5 MiB or more).
const PART: usize = 8 << 20;
/// Parts of one object that may be on their way at once: bounds a writer's memory at `PART * (IN_FLIGHT + 1)`.
const IN_FLIGHT: usize = 4;
/// Ranges of one object that are fetched at once.
const FETCHES: usize = 8;

/// An `object_store` as a [`Store`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectBackend {
    store: Arc<dyn ObjectStore>,
    /// Sends a request once: for conditional puts.
    once: Arc<dyn ObjectStore>,
    cache: Option<Arc<MapCache>>,
}

impl ObjectBackend {
    /// A backend without a local cache: `map` holds whole objects in memory. Meant for memory stores and tests.
    ///
    /// `store` must not retry conditional puts by itself; if it does, use [`ObjectBackend::with_once`] as well.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { once: store.clone(), store, cache: None }
    }

    /// An empty store in memory.
    #[must_use]
    pub fn memory() -> Self {
        Self::new(Arc::new(object_store::memory::InMemory::new()))
    }

    /// The same with a second client of the same bucket that sends each request once, used for conditional puts.
    #[must_use]
    pub fn with_once(mut self, once: Arc<dyn ObjectStore>) -> Self {
        self.once = once;
        self
    }

    /// The same with `map` going through files of at most `limit_bytes` in a folder of its own below `dir`. Blocks.
    pub fn with_cache(mut self, dir: Arc<dyn super::Fs>, path: &std::path::Path, limit_bytes: u64) -> Result<Self> {
        self.cache = Some(Arc::new(MapCache::open(dir, path, limit_bytes)?));
        Ok(self)
    }

    /// Fetches `range`; also the object's size, which tells a damaged object from a broken request.
    async fn fetch(&self, path: &str, range: Range<u64>) -> Result<(Bytes, u64)> {
        let location = location(path)?;
        let options = GetOptions::new().with_range((range.end > range.start).then_some(range));
        let result = self.store.get_opts(&location, options).await.map_err(|e| lift("reading", path, e))?;
        let size = result.meta.size;
        Ok((result.bytes().await.map_err(|e| lift("reading", path, e))?, size))
    }

    /// Fills a cache file with the object's `len` bytes, several ranges at a time.
    async fn fetch_into(&self, cache: &MapCache, file: Arc<dyn super::File>, path: &str, len: u64) -> Result<()> {
        let piece = |start: u64| async move {
            let end = (start + PART as u64).min(len);
            let (bytes, actual) = self.fetch(path, start..end).await?;
            let whole = actual == len && bytes.len() as u64 == end - start;
            if whole { Ok((start, bytes)) } else { Err(super::wrong_length(path, len, actual)) }
        };
        let mut pieces = futures::stream::iter((0..len.max(1)).step_by(PART)).map(piece).buffer_unordered(FETCHES);
        while let Some((start, bytes)) = pieces.try_next().await? {
            cache.write(&file, start, bytes).await?;
        }
        Ok(())
    }
}

fn location(path: &str) -> Result<ObjectPath> {
    check_path(path)?;
    ObjectPath::parse(path).map_err(|e| Error::invalid(format!("`{path}` is no object path: {e}")).with_source(e))
}

/// Whether a store has answered 412 (or 304, as some do) to a put-if-absent: an object is there.
fn is_precondition(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    match error {
        E::Precondition { .. } | E::NotModified { .. } => true,
        E::AlreadyExists { source, .. } => source.downcast_ref::<E>().is_some_and(is_precondition),
        _ => false,
    }
}

/// Puts an `object_store` error into our words.
fn lift(doing: &str, path: &str, source: object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match &source {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => ErrorKind::Conflict,
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::UnknownConfigurationKey { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{doing} {path}: {source}")).with_source(source)
}

#[async_trait]
impl Store for ObjectBackend {
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let result = self.store.put(&location(path)?, bytes.into()).await;
        result.map(drop).map_err(|e| lift("writing", path, e))
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        use object_store::Error as E;
        let location = location(path)?;
        match self.once.put_opts(&location, bytes.into(), PutMode::Create.into()).await {
            Ok(_) => Ok(PutOutcome::Created),
            Err(e) if is_precondition(&e) => Ok(PutOutcome::Exists),
            Err(E::AlreadyExists { .. }) => match self.store.head(&location).await {
                Ok(_) => Ok(PutOutcome::Exists),
                // S3 also answers 409 when a delete or another put is under way: nothing is there, nothing was written.
                Err(e @ E::NotFound { .. }) => {
                    Err(lift("writing", path, e).with_kind(ErrorKind::Unavailable).context("conflicting requests"))
                }
                Err(e) => Err(lift("writing", path, e)),
            },
            Err(e) => Err(lift("writing", path, e)),
        }
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        let result = self.store.get(&location(path)?).await.map_err(|e| lift("reading", path, e))?;
        result.bytes().await.map_err(|e| lift("reading", path, e))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        check_prefix(prefix)?;
        let folder = prefix.strip_suffix('/').map(location).transpose()?;
        let found = self.store.list(folder.as_ref());
        let mut found: Vec<ObjectMeta> = found
            .map_ok(|meta| ObjectMeta { path: meta.location.into(), size: meta.size })
            .try_collect()
            .await
            .map_err(|e| lift("listing", prefix, e))?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        match self.store.delete(&location(path)?).await {
            Err(e) if !matches!(e, object_store::Error::NotFound { .. }) => Err(lift("deleting", path, e)),
            _ => Ok(()),
        }
    }

    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(Upload {
            store: self.store.clone(),
            location: location(path)?,
            path: path.to_owned(),
            gathered: BytesMut::new(),
            parts: None,
            len: 0,
            crc32c: 0,
        }))
    }

    async fn map(&self, path: &str, len: u64) -> Result<Bytes> {
        let Some(cache) = &self.cache else {
            let bytes = self.get(path).await?;
            let actual = bytes.len() as u64;
            return if actual == len { Ok(bytes) } else { Err(super::wrong_length(path, len, actual)) };
        };
        cache.map(path, len, |file| Box::pin(self.fetch_into(cache, file, path, len))).await
    }

    fn local(&self) -> Option<LocalDir> {
        None
    }
}

/// Streams an object: one request if it stays short, a multipart upload otherwise.
struct Upload {
    store: Arc<dyn ObjectStore>,
    location: ObjectPath,
    path: String,
    gathered: BytesMut,
    parts: Option<Parts>,
    len: u64,
    crc32c: u32,
}

/// A multipart upload; dropped before it is complete, it is aborted in the background. What that cannot reach, the
/// bucket's lifecycle rule for unfinished uploads removes.
struct Parts {
    /// Taken once there is nothing left to abort.
    upload: Option<Box<dyn MultipartUpload>>,
    sending: JoinSet<object_store::Result<()>>,
}

impl Upload {
    async fn send_part(&mut self, part: Bytes) -> object_store::Result<()> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let upload = Some(self.store.put_multipart(&self.location).await?);
                self.parts.insert(Parts { upload, sending: JoinSet::new() })
            }
        };
        if parts.sending.len() >= IN_FLIGHT {
            parts.wait_one().await?;
        }
        parts.send(part);
        Ok(())
    }

    async fn complete(&mut self) -> object_store::Result<()> {
        let rest = std::mem::take(&mut self.gathered).freeze();
        let Some(parts) = &mut self.parts else {
            return self.store.put(&self.location, rest.into()).await.map(drop);
        };
        if !rest.is_empty() {
            parts.send(rest);
        }
        while !parts.sending.is_empty() {
            parts.wait_one().await?;
        }
        match parts.upload().complete().await {
            Ok(_) => {}
            // An upload that is gone: an earlier attempt completed it and its answer was lost, or somebody aborted it. The
            // name is ours alone, so the object tells.
            Err(gone @ object_store::Error::NotFound { .. }) => match self.store.head(&self.location).await {
                Ok(there) if there.size == self.len => {}
                Ok(_) | Err(object_store::Error::NotFound { .. }) => return Err(lost_upload(gone)),
                Err(e) => return Err(e),
            },
            Err(e) => return Err(e),
        }
        parts.upload = None;
        Ok(())
    }
}

/// As an error that may pass: `NotFound` would say that the object is missing, but what went missing is what was written.
fn lost_upload(gone: object_store::Error) -> object_store::Error {
    object_store::Error::Generic { store: "multipart upload", source: Box::new(gone) }
}

impl Parts {
    fn upload(&mut self) -> &mut dyn MultipartUpload {
        &mut **self.upload.as_mut().expect("taken when it is complete")
    }

    fn send(&mut self, part: Bytes) {
        let sent = self.upload().put_part(PutPayload::from_bytes(part));
        self.sending.spawn(sent);
    }

    async fn wait_one(&mut self) -> object_store::Result<()> {
        match self.sending.join_next().await {
            Some(Ok(sent)) => sent,
            Some(Err(lost)) => Err(object_store::Error::Generic { store: "multipart upload", source: Box::new(lost) }),
            None => Ok(()),
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.sending.abort_all();
        if let (Some(mut upload), Ok(runtime)) = (self.upload.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { upload.abort().await });
        }
    }
}

#[async_trait]
impl ObjectWriter for Upload {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes);
        self.len += bytes.len() as u64;
        self.gathered.extend_from_slice(&bytes);
        // One part is kept back: an object of exactly one part needs no multipart upload.
        while self.gathered.len() > PART {
            let part = self.gathered.split_to(PART).freeze();
            self.send_part(part).await.map_err(|e| lift("writing", &self.path, e))?;
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        self.complete().await.map_err(|e| lift("writing", &self.path, e))?;
        Ok(Written { len: self.len, crc32c: self.crc32c })
    }
}

#[cfg(test)]
mod tests;
