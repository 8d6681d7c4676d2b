//! A list of segments that grows under its readers: the id space of a live graph
//! or table, cut into runs, each allocated when its first id comes.
//!
//! Readers take no lock and pay two dependent loads, both of lines that stay in
//! cache. A segment never moves and lives as long as the list. The directory is
//! copied when it doubles; the outgrown ones are kept, since a reader may be in
//! one, and together weigh less than the current one.

use crate::sync::{AtomicPtr, Mutex, Ordering};
use std::ops::Range;
use std::ptr;

/// Where an id lies among segments that double from `FIRST` ids, both the first and
/// the second, up to `MOST`: a table of one row pays for a small segment, a large
/// one for few of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the segment.
    pub(crate) number: usize,
    /// Of the id in it.
    pub(crate) offset: usize,
}

/// The place of an id. `FIRST` and `MOST` are powers of two. In a large table
/// nearly every id takes the first branch: a shift and a mask.
#[inline(always)]
pub(crate) fn place<const FIRST: usize, const MOST: usize>(id: u32) -> Place {
    let id = id as usize;
    if id >= MOST {
        return Place { number: id / MOST + (MOST / FIRST).trailing_zeros() as usize, offset: id % MOST };
    }
    let number = (usize::BITS - (id / FIRST).leading_zeros()) as usize;
    let first = if number == 0 { 0 } else { FIRST << (number - 1) };
    Place { number, offset: id - first }
}

/// The ids of a segment.
pub(crate) fn span<const FIRST: usize, const MOST: usize>(number: usize) -> Range<usize> {
    let doublings = (MOST / FIRST).trailing_zeros() as usize;
    if number == 0 {
        0..FIRST
    } else if number <= doublings {
        FIRST << (number - 1)..FIRST << number
    } else {
        let first = (number - doublings) * MOST;
        first..first + MOST
    }
}

/// Segments by number, each absent until it is made.
pub(crate) struct Segments<T> {
    current: AtomicPtr<Directory<T>>,
    owned: Mutex<Owned<T>>,
}

struct Directory<T> {
    slots: Box<[AtomicPtr<T>]>,
}

/// Everything that was allocated, to be freed with the list.
struct Owned<T> {
    directories: Vec<*mut Directory<T>>,
    segments: Vec<*mut T>,
}

impl<T> Directory<T> {
    fn allocate(slots: usize) -> *mut Self {
        let slots = (0..slots).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Box::into_raw(Box::new(Self { slots }))
    }
}

impl<T> Segments<T> {
    pub(crate) fn new() -> Self {
        let first = Directory::allocate(0);
        Self {
            current: AtomicPtr::new(first),
            owned: Mutex::new(Owned { directories: vec![first], segments: Vec::new() }),
        }
    }

    /// The segment, if it was made.
    #[inline(always)]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        // ORDERING: Acquire pairs with the Release stores in `make`: the
        // directory, and the segment that a slot points to, are whole.
        let directory = self.current.load(Ordering::Acquire);
        // SAFETY: 1. `current` always points to a directory that `owned` keeps
        // until the list is dropped; 2. directories are only ever read, apart
        // from their atomic slots.
        let slot = unsafe { &(*directory).slots }.get(number)?;
        // ORDERING: as above.
        let segment = slot.load(Ordering::Acquire);
        // SAFETY: a slot holds null or a segment that `owned` keeps until the
        // list is dropped; segments are only lent shared.
        unsafe { segment.as_ref() }
    }

    /// The segment, made by `make` if it is not there yet. `make` runs at most
    /// once per number, under a lock that only growing takes.
    #[inline(always)]
    pub(crate) fn get_or_make(&self, number: usize, make: impl FnOnce() -> T) -> &T {
        match self.get(number) {
            Some(segment) => segment,
            None => self.make(number, make),
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&self, number: usize, make: impl FnOnce() -> T) -> &T {
        let mut owned = self.owned.lock();
        if let Some(segment) = self.get(number) {
            return segment;
        }
        let mut directory = *owned.directories.last().expect("one from the start");
        // SAFETY: the last directory is the current one, kept by `owned`.
        let slots = unsafe { &(*directory).slots };
        if number >= slots.len() {
            let larger = Directory::allocate((number + 1).next_power_of_two().max(8));
            // SAFETY: just allocated, and not shared yet.
            let larger_slots = unsafe { &(*larger).slots };
            for (new, old) in larger_slots.iter().zip(slots) {
                // ORDERING: Relaxed; slots change only under this lock, and the
                // Release store of `current` publishes the copies.
                new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            owned.directories.push(larger);
            // ORDERING: Release pairs with the Acquire in `get`.
            self.current.store(larger, Ordering::Release);
            directory = larger;
        }
        let segment = Box::into_raw(Box::new(make()));
        owned.segments.push(segment);
        // SAFETY: `directory` is the current one, kept by `owned`; `number` is
        // within it after the growth above.
        let slot = unsafe { &(&(*directory).slots)[number] };
        // ORDERING: Release pairs with the Acquire in `get`: whoever sees the
        // pointer sees the segment behind it.
        slot.store(segment, Ordering::Release);
        // SAFETY: just allocated, kept by `owned`, only lent shared.
        unsafe { &*segment }
    }
}

impl<T> Drop for Segments<T> {
    fn drop(&mut self) {
        let owned = self.owned.lock();
        for &segment in &owned.segments {
            // SAFETY: made by Box::into_raw in `make`, freed once: the list is
            // going, so no reader is left.
            drop(unsafe { Box::from_raw(segment) });
        }
        for &directory in &owned.directories {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(directory) });
        }
    }
}

// SAFETY: the raw pointers are to boxes that the list owns. Sharing the list lends
// `&T` to other threads and lets them make a `T`, which this one may drop.
unsafe impl<T: Send + Sync> Sync for Segments<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Segments<T> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_one_place_in_the_span_of_its_segment() {
        let mut expected = Place { number: 0, offset: 0 };
        for id in 0..10_000 {
            assert_eq!(place::<64, 1_024>(id), expected, "{id}");
            let span = span::<64, 1_024>(expected.number);
            assert_eq!(span.start + expected.offset, id as usize);
            expected.offset += 1;
            if expected.offset == span.len() {
                expected = Place { number: expected.number + 1, offset: 0 };
            }
        }
        assert_eq!(span::<64, 1_024>(5), 1_024..2_048);
        assert_eq!(place::<64, 1_024>(u32::MAX).offset, 1_023);
        // Of equal size from the start.
        assert_eq!(place::<4, 4>(9), Place { number: 2, offset: 1 });
        assert_eq!(span::<4, 4>(2), 8..12);
    }

    #[test]
    fn segments_stay_put_while_the_list_grows() {
        let list = Segments::new();
        let first: *const usize = list.get_or_make(0, || 0);
        for number in [5usize, 7, 8, 100, 3] {
            assert_eq!(list.get(number), None);
            assert_eq!(*list.get_or_make(number, || number), number);
        }
        assert!(ptr::eq(first, list.get(0).expect("made first")));
        assert_eq!(list.get(100), Some(&100));
        assert_eq!(list.get(101), None);
        assert_eq!(*list.get_or_make(100, || unreachable!("made already")), 100);
    }

    #[test]
    fn concurrent_makers_agree_on_one_segment() {
        let list = Segments::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let list = &list;
                scope.spawn(move || {
                    for number in 0..200usize {
                        let made = list.get_or_make(number, || (number, thread));
                        assert_eq!(made.0, number);
                    }
                });
            }
        });
        assert!((0..200).all(|n| list.get(n).is_some()));
    }
}
