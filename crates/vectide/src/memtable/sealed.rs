//! A memtable that takes no more rows: what a flush asks of it.
//!
//! `table` seals inside the publication section; `flush` waits until the graphs hold every row, then reads rows, graphs,
//! keys and marks in the order that a segment stores them.

use super::Memtable;
use crate::error::Result;
use crate::ids::PubNo;
use crate::rows::RowSource;
use std::sync::atomic::Ordering;

impl Memtable {
    /// Ends the memtable's growth: no link comes after it. Called inside the publication section.
    pub(crate) fn seal(&self) {
        // ORDERING: Relaxed: the publication section's lock orders it against every link.
        self.sealed.store(true, Ordering::Relaxed);
    }

    /// Whether it was sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Relaxed)
    }

    /// Hash and offset of every row's key, ascending: versions of a key stand in offset order. `None` without a key.
    /// O(rows log rows), 16 bytes a row while it is held.
    pub(crate) fn sorted_keys(&self) -> Result<Option<Vec<(u64, u32)>>> {
        if self.schema.key().is_none() {
            return Ok(None);
        }
        let mut keys = Vec::with_capacity(self.rows() as usize);
        for block in self.blocks.overlapping(&(0..self.rows()))? {
            let array = block
                .keys
                .as_ref()
                .expect("a keyed table's blocks have keys");
            let rows = 0..block.rows;
            keys.extend(rows.map(|row| (array.hash(row as usize), block.first + row)));
        }
        keys.sort_unstable();
        Ok(Some(keys))
    }

    /// The end marks on its own rows, ascending by offset.
    pub(crate) fn marks(&self) -> Vec<(u32, PubNo)> {
        self.ends.marks(self.rows()).collect()
    }
}
