//! Threads, tasks that end with their owner, and randomness through one seam, so that nothing else starts a thread or draws
//! a number on its own.
//!
//! Called by the index workers, the log and the builder. Invariant: a thread started here has a name.

use crate::error::{Error, Result};
use futures::FutureExt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

/// Starts a named thread.
pub(crate) fn spawn_thread(name: String, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    std::thread::Builder::new().name(name).spawn(work)
}

/// Blocks the calling thread for so long. For what stands in for slow storage; nothing else waits like this.
pub(crate) fn block_for(time: std::time::Duration) {
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    std::thread::sleep(time);
}

/// A store call in a task of its own: it goes on while its owner does other things, and several take several threads.
/// Dropped, it is given up at its next await, as a plain future would be.
#[derive(Debug)]
pub(crate) struct Task<T>(tokio::task::JoinHandle<Result<T>>);

impl<T: Send + 'static> Task<T> {
    /// Starts `work` on the current Tokio runtime.
    pub(crate) fn start(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = |e| Error::internal("a task of the engine was cut short").with_source(e);
        self.0.poll_unpin(cx).map(|ended| ended.unwrap_or_else(|e| Err(lost(e))))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// 64 random bits from the operating system's seed of the standard hasher: for names that must not meet, not for secrets.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    let state = RandomState::new();
    let mut hasher = state.build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn a_task_ends_with_its_owner() {
        let (ends, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let work = super::Task::start(async move {
            let _ends = ends;
            std::future::pending::<crate::Result<()>>().await
        });
        tokio::task::yield_now().await;
        drop(work);
        assert!(ended.recv().await.is_none(), "what it held is gone");
        assert_eq!(super::Task::start(async { Ok(7) }).await.expect("done"), 7);
    }

    #[test]
    fn random_numbers_do_not_repeat() {
        let drawn: std::collections::HashSet<u64> = (0..1_000).map(|_| super::random_u64()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
