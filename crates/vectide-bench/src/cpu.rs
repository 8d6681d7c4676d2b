//! Processor time, which a machine's other work does not lengthen as much as real time.

use rustix::time::{ClockId, clock_gettime};

/// Seconds of processor time that all threads of this process have used.
pub(crate) fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
