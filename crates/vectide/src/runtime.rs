//! Threads and randomness through one seam, so that nothing else starts a thread or draws a number on its own.
//!
//! Called by the index workers, the log and the builder. Invariant: a thread started here has a name.

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
    #[test]
    fn random_numbers_do_not_repeat() {
        let drawn: std::collections::HashSet<u64> = (0..1_000).map(|_| super::random_u64()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
