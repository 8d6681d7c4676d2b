//! Store calls go through, counts come out.
//!
//! `open_uri` puts [`Metered`] directly above a backend and below the retries, so that every request counts; `stats()`
//! of the table reads the sums. Invariant: counting costs a few relaxed atomics and never changes an outcome.

use super::{LocalDir, ObjectMeta, ObjectWriter, PutOutcome, Store, Written};
use crate::error::Result;
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one kind of call amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpStats {
    /// Calls begun.
    pub requests: u64,
    /// Calls that ended in an error, `NotFound` not counted.
    pub errors: u64,
    /// Bytes of payload that successful calls carried, either way.
    pub bytes: u64,
}

/// Calls so far, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// `put`.
    pub put: OpStats,
    /// `put_if_absent`, whichever way it went.
    pub put_if_absent: OpStats,
    /// `get`.
    pub get: OpStats,
    /// `list`; bytes stay 0.
    pub list: OpStats,
    /// `delete`; bytes stay 0.
    pub delete: OpStats,
    /// `create`: counted when the object is finished.
    pub create: OpStats,
    /// `map`; bytes are those mapped, fetched or not.
    pub map: OpStats,
    /// Calls that were made again after an error.
    pub retries: u64,
}

#[derive(Debug, Default)]
struct Counter {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    // ORDERING: Relaxed throughout: independent counts for display, which publish nothing.
    fn count<T>(&self, result: &Result<T>, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(_) => self.bytes.fetch_add(bytes, Ordering::Relaxed),
            Err(e) if e.kind() == crate::ErrorKind::NotFound => 0,
            Err(_) => self.errors.fetch_add(1, Ordering::Relaxed),
        };
    }

    fn read(&self) -> OpStats {
        // ORDERING: Relaxed, as in `count`.
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        OpStats { requests: get(&self.requests), errors: get(&self.errors), bytes: get(&self.bytes) }
    }
}

#[derive(Debug, Default)]
struct Counters {
    put: Counter,
    put_if_absent: Counter,
    get: Counter,
    list: Counter,
    delete: Counter,
    create: Counter,
    map: Counter,
}

/// A store whose calls are counted.
#[derive(Clone, Debug)]
pub struct Metered {
    inner: Arc<dyn Store>,
    counters: Arc<Counters>,
}

impl Metered {
    /// Counts the calls that reach `inner` from now on.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, counters: Arc::default() }
    }
}

#[async_trait]
impl Store for Metered {
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let len = bytes.len() as u64;
        let result = self.inner.put(path, bytes).await;
        self.counters.put.count(&result, len);
        result
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let len = bytes.len() as u64;
        let result = self.inner.put_if_absent(path, bytes).await;
        self.counters.put_if_absent.count(&result, len);
        result
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        let result = self.inner.get(path).await;
        self.counters.get.count(&result, result.as_ref().map_or(0, |b| b.len() as u64));
        result
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let result = self.inner.list(prefix).await;
        self.counters.list.count(&result, 0);
        result
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let result = self.inner.delete(path).await;
        self.counters.delete.count(&result, 0);
        result
    }

    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>> {
        let result = self.inner.create(path).await;
        match result {
            Ok(inner) => Ok(Box::new(MeteredWriter { inner, counters: self.counters.clone() })),
            Err(e) => {
                let result = Err(e);
                self.counters.create.count(&result, 0);
                result
            }
        }
    }

    async fn map(&self, path: &str, len: u64) -> Result<Bytes> {
        let result = self.inner.map(path, len).await;
        self.counters.map.count(&result, len);
        result
    }

    fn local(&self) -> Option<LocalDir> {
        self.inner.local()
    }

    fn stats(&self) -> StoreStats {
        let c = &self.counters;
        StoreStats {
            put: c.put.read(),
            put_if_absent: c.put_if_absent.read(),
            get: c.get.read(),
            list: c.list.read(),
            delete: c.delete.read(),
            create: c.create.read(),
            map: c.map.read(),
            retries: 0,
        }
    }
}

struct MeteredWriter {
    inner: Box<dyn ObjectWriter>,
    counters: Arc<Counters>,
}

#[async_trait]
impl ObjectWriter for MeteredWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let result = self.inner.write(bytes).await;
        if result.is_err() {
            self.counters.create.count(&result, 0);
        }
        result
    }

    async fn finish(self: Box<Self>) -> Result<Written> {
        let Self { inner, counters } = *self;
        let result = inner.finish().await;
        counters.create.count(&result, result.as_ref().map_or(0, |w| w.len));
        result
    }
}
