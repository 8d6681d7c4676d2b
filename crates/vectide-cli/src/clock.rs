//! The one place where the command reads the clock: for rates, latencies and pacing, never for a decision about data.

use std::time::Instant;

/// Now, on the monotonic clock.
#[allow(clippy::disallowed_methods, reason = "this is the seam")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
