//! Calls that fail for now go in, bounded second attempts come out.
//!
//! `open_uri` puts it around remote stores. Reads, listings, deletes and whole puts are simply made again; a put-if-absent
//! whose outcome is unknown is settled by reading what is there. Invariant: `Exists` is never answered about an object
//! that an earlier attempt of the same call wrote.

use super::rng::SplitMix;
use super::{LocalDir, ObjectMeta, ObjectWriter, PutOutcome, Store, StoreStats};
use crate::error::{Error, ErrorKind, Result};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How often and how patiently a store call is made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryOptions {
    /// Attempts in all, the first included; 1 means no retry.
    pub max_attempts: u32,
    /// The wait before the second attempt is drawn from zero to this; it doubles from attempt to attempt.
    pub base_delay_ms: u64,
    /// No wait is longer than this.
    pub max_delay_ms: u64,
    /// No attempt begins later than this after the first did. What one attempt takes is bounded by the store's own
    /// time-outs.
    pub deadline_ms: u64,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { max_attempts: 8, base_delay_ms: 50, max_delay_ms: 5_000, deadline_ms: 120_000 }
    }
}

impl RetryOptions {
    /// Refuses settings that make no sense; repairs nothing.
    pub fn validate(&self) -> Result<()> {
        if self.max_attempts == 0 || self.max_attempts > 100 {
            return Err(Error::invalid(format!("retry.max_attempts is {}: use 1 to 100", self.max_attempts)));
        }
        if self.base_delay_ms > self.max_delay_ms {
            return Err(Error::invalid(format!(
                "retry.base_delay_ms ({}) is above retry.max_delay_ms ({})",
                self.base_delay_ms, self.max_delay_ms
            )));
        }
        if self.deadline_ms < self.max_delay_ms {
            return Err(Error::invalid(format!(
                "retry.deadline_ms ({}) is below retry.max_delay_ms ({})",
                self.deadline_ms, self.max_delay_ms
            )));
        }
        Ok(())
    }
}

/// A store whose `Unavailable` calls are made again. Needs a Tokio runtime with its timer enabled.
#[derive(Clone, Debug)]
pub struct RetryStore {
    inner: Arc<dyn Store>,
    options: RetryOptions,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    jitter: Mutex<SplitMix>,
    retries: AtomicU64,
}

impl RetryStore {
    /// Retries around `inner`; `seed` decides the jitter. `Invalid` if the options do not validate.
    pub fn new(inner: Arc<dyn Store>, options: RetryOptions, seed: u64) -> Result<Self> {
        options.validate()?;
        let state = State { jitter: Mutex::new(SplitMix::new(seed)), retries: AtomicU64::new(0) };
        Ok(Self { inner, options, state: Arc::new(state) })
    }

    async fn again<'a, T>(&self, call: impl Fn() -> BoxFuture<'a, Result<T>> + Send) -> Result<T> {
        let mut attempts = self.attempts();
        loop {
            match call().await {
                Err(e) if is_transient(&e) => attempts.pause(e).await?,
                other => return other,
            }
        }
    }

    fn attempts(&self) -> Attempts<'_> {
        let deadline = Instant::now() + Duration::from_millis(self.options.deadline_ms);
        Attempts { store: self, made: 1, deadline }
    }
}

/// The attempts of one call.
struct Attempts<'a> {
    store: &'a RetryStore,
    /// Those made, the one under way included.
    made: u32,
    /// No attempt begins later.
    deadline: Instant,
}

impl Attempts<'_> {
    /// Waits before the next attempt, or gives `error` back if there is none left ("full jitter" as in Brooker,
    /// "Exponential backoff and jitter", 2015).
    async fn pause(&mut self, error: Error) -> Result<()> {
        let RetryOptions { max_attempts, base_delay_ms, max_delay_ms, deadline_ms } = self.store.options;
        if self.made >= max_attempts {
            return Err(error.context(format!("gave up after {} attempts", self.made)));
        }
        let ceiling = base_delay_ms.saturating_mul(1 << (self.made - 1).min(32)).min(max_delay_ms);
        let delay = Duration::from_micros(self.store.state.jitter.lock().below(ceiling.saturating_mul(1000) + 1));
        if Instant::now() + delay > self.deadline {
            return Err(error.context(format!("gave up after {} attempts within {deadline_ms} ms", self.made)));
        }
        // ORDERING: Relaxed: a count for display.
        self.store.state.retries.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(attempt = self.made, ?delay, %error, "a store call is made again");
        tokio::time::sleep(delay).await;
        self.made += 1;
        Ok(())
    }
}

/// Whether the same call may succeed later. Credentials that were refused stay refused.
fn is_transient(error: &Error) -> bool {
    use object_store::Error as E;
    let source = std::error::Error::source(error).and_then(|s| s.downcast_ref::<E>());
    error.kind() == ErrorKind::Unavailable
        && !matches!(source, Some(E::PermissionDenied { .. } | E::Unauthenticated { .. }))
}

#[async_trait]
impl Store for RetryStore {
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.again(|| self.inner.put(path, bytes.clone())).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        let mut attempts = self.attempts();
        loop {
            match self.inner.put_if_absent(path, bytes.clone()).await {
                // Somebody's object is there: ours, if an earlier attempt got through although it looked failed.
                Ok(PutOutcome::Exists) if attempts.made > 1 => {
                    return match self.get(path).await {
                        Ok(there) if there == bytes => Ok(PutOutcome::Created),
                        // Removed since: whoever asks further finds that out.
                        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
                        _ => Ok(PutOutcome::Exists),
                    };
                }
                Err(e) if is_transient(&e) => attempts.pause(e).await?,
                other => return other,
            }
        }
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.again(|| self.inner.get(path)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.again(|| self.inner.list(prefix)).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.again(|| self.inner.delete(path)).await
    }

    /// Only the start is retried here; the parts of a multipart upload are retried by the client below.
    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>> {
        self.again(|| self.inner.create(path)).await
    }

    async fn map(&self, path: &str, len: u64) -> Result<Bytes> {
        self.again(|| self.inner.map(path, len)).await
    }

    fn local(&self) -> Option<LocalDir> {
        self.inner.local()
    }

    fn stats(&self) -> StoreStats {
        // ORDERING: Relaxed: a count for display.
        StoreStats { retries: self.state.retries.load(Ordering::Relaxed), ..self.inner.stats() }
    }
}

#[cfg(test)]
mod tests;
