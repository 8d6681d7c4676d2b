//! A segment's keys: hashes in ascending order with their rows' offsets, behind a filter.
//!
//! In: `keys.arrow`, mapped. Out: the offsets of the rows whose key has a given hash, newest first; the caller confirms
//! the key itself. Versions of one key stand in offset order. Costs a filter block and, if that passes, a few cache
//! lines; nothing is read at open.

use super::filter;
use super::format::{ArrowFile, FILTER, HASHES, OFFSETS};
use crate::error::Result;
use arrow::buffer::ScalarBuffer;
use std::ops::Range;

/// `keys.arrow`.
#[derive(Debug)]
pub(super) struct KeyList {
    pub(super) file: ArrowFile,
    /// `[rows] u64`, little-endian, ascending.
    hashes: ScalarBuffer<u8>,
    /// `[rows] u32`, little-endian.
    offsets: ScalarBuffer<u8>,
    filter: ScalarBuffer<u8>,
}

impl KeyList {
    /// Checks the sections' lengths.
    pub(super) fn open(file: ArrowFile, rows: u32) -> Result<Self> {
        let rows = rows as usize;
        let mut sections = file.sections()?;
        let hashes = sections.take_exact(HASHES, rows * 8)?;
        let offsets = sections.take_exact(OFFSETS, rows * 4)?;
        let filter = sections.take(FILTER)?;
        if !filter::is_length_for(filter.len(), rows as u64) {
            return Err(file.corrupt(format!("a filter of {} bytes for {rows} keys", filter.len())));
        }
        Ok(Self { file, hashes, offsets, filter })
    }

    /// Entries: one per row.
    pub(super) fn len(&self) -> usize {
        self.hashes.len() / 8
    }

    /// The hash of entry `at`.
    #[inline]
    pub(super) fn hash(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.hashes[at * 8..at * 8 + 8].try_into().expect("eight bytes"))
    }

    /// The row of entry `at`: unchecked, as the file says.
    #[inline]
    pub(super) fn offset(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.offsets[at * 4..at * 4 + 4].try_into().expect("four bytes"))
    }

    /// Whether the filter lets the hash through.
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        filter::may_contain(&self.filter, hash)
    }

    /// The rows whose key has this hash, newest first.
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let from = if self.may_contain(hash) { self.lower_bound(hash) } else { self.len() };
        let same = (from..self.len()).take_while(move |&at| self.hash(at) == hash).count();
        (from..from + same).rev().map(|at| self.offset(at))
    }

    /// The first entry whose hash is not below `hash`. Hashes are spread evenly, so it is guessed from the value, guessed
    /// again from what was found there, and then closed in on: the pages touched lie close together.
    fn lower_bound(&self, hash: u64) -> usize {
        let n = self.len();
        if n == 0 {
            return 0;
        }
        let scaled = |value: u64| ((u128::from(value) * n as u128) >> 64) as usize;
        let mut guess = scaled(hash);
        let found = self.hash(guess);
        guess = if found < hash {
            (guess + scaled(hash - found)).min(n - 1)
        } else {
            guess.saturating_sub(scaled(found - hash))
        };
        let Range { start: mut low, end: mut high } = self.bracket(hash, guess);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.hash(middle) < hash { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Bounds of the answer, by growing steps away from a guess.
    fn bracket(&self, hash: u64, guess: usize) -> Range<usize> {
        let n = self.len();
        let mut step = 8;
        if self.hash(guess) < hash {
            let mut low = guess + 1;
            loop {
                let probe = low + step;
                if probe >= n {
                    return low..n;
                }
                if self.hash(probe) >= hash {
                    return low..probe;
                }
                low = probe + 1;
                step *= 2;
            }
        }
        let mut high = guess;
        loop {
            let Some(probe) = high.checked_sub(step) else {
                return 0..high;
            };
            if self.hash(probe) < hash {
                return probe + 1..high;
            }
            high = probe;
            step *= 2;
        }
    }
}
