//! The seam between real and modelled concurrency: every atomic, lock and spin
//! of this crate comes from here, so that `--cfg loom` swaps all of them at once.
//!
//! Statistics counters are the exception: they publish nothing and stay `std`.

#[cfg(not(loom))]
mod real {
    pub(crate) use parking_lot::Mutex;
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    /// Waits a moment for another thread to leave its critical section;
    /// `round` counts the waits so far. Critical sections are a few
    /// microseconds, unless their thread was descheduled.
    #[inline]
    pub(crate) fn pause(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(loom)]
mod model {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    /// loom's mutex with parking_lot's signature.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no thread panics while holding it")
        }
    }

    pub(crate) fn pause(_round: u32) {
        loom::thread::yield_now();
    }
}

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub(crate) use real::*;
