//! Locks and atomics behind a seam, so that loom can take their place (`--cfg vectide_loom`).
//!
//! The watermark and the end marks use it, whose interleavings loom tries; everything else takes parking_lot and std
//! directly, and so do counters that only people read.

#[cfg(not(vectide_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(vectide_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(vectide_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(vectide_loom)]
pub(crate) use modelled::Mutex;

#[cfg(vectide_loom)]
mod modelled {
    /// loom's mutex with parking_lot's signature.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no holder panics")
        }
    }
}
