//! A slice and whoever owns it: memory of a table, of an Arrow buffer or of a
//! mapped file, read for as long as this value lives, whatever the owner's type.

use std::ops::Deref;
use std::sync::Arc;

/// A `[T]` that an owner of any type keeps alive. Cloning shares it.
pub(crate) struct Shared<T> {
    at: *const T,
    len: usize,
    owner: Arc<dyn Send + Sync>,
}

impl<T: Sync> Shared<T> {
    /// Takes the owner, and its slice once.
    pub(crate) fn new<O: AsRef<[T]> + Send + Sync + 'static>(owner: O) -> Self {
        let owner = Arc::new(owner);
        let slice: &[T] = (*owner).as_ref();
        Self { at: slice.as_ptr(), len: slice.len(), owner }
    }

    /// Bytes that sharing costs beside the slice itself: the owner's value and
    /// its two counts.
    pub(crate) fn owner_bytes(&self) -> usize {
        size_of_val(&*self.owner) + 2 * size_of::<usize>()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, len: self.len, owner: Arc::clone(&self.owner) }
    }
}

impl<T> Deref for Shared<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: 1. `at` and `len` came from the owner's slice, borrowed from
        // behind the Arc, where the owner stays put; 2. the owner lives as long
        // as `self`, and nobody else can reach it to mutate or move it: `owner`
        // is private and only ever cloned and dropped; 3. shared memory behind
        // an owner (a mapping, an Arrow buffer) is immutable by that owner's
        // contract, which is what its safe `AsRef` asserts.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

// SAFETY: the slice is only read, so sending or sharing it needs `T: Sync`; the
// owner is Send and Sync by its type.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_inline_owner_may_be_moved_in_and_outlived_by_its_clone() {
        struct Inline([u32; 3]);
        impl AsRef<[u32]> for Inline {
            fn as_ref(&self) -> &[u32] {
                &self.0
            }
        }
        let first = Shared::new(Inline([1, 2, 3]));
        let second = first.clone();
        let moved = Box::new(first);
        assert_eq!(&**moved, [1, 2, 3]);
        drop(moved);
        assert_eq!(&*second, [1, 2, 3]);
    }
}
