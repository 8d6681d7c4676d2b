//! A memtable that takes no more rows: what a flush asks of it.
//!
//! `table` seals inside the publication section; `flush` waits until the graphs hold every row, then reads rows, graphs,
//! keys and marks in the order that a segment stores them.

use super::Memtable;
use super::columns::GraphSink;
use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId};
use crate::rows::RowSource;
use std::sync::atomic::Ordering;

impl Memtable {
    /// Ends the memtable's growth: no link comes after it. Called inside the publication section.
    pub(crate) fn seal(&self) {
        // ORDERING: Relaxed: the publication section's lock orders it against every link.
        self.sealed.store(true, Ordering::Relaxed);
        self.blocks.close();
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
            let array = block.keys.as_ref().expect("a keyed table's blocks have keys");
            let rows = 0..block.rows;
            keys.extend(rows.map(|row| (array.hash(row as usize), block.first + row)));
        }
        keys.sort_unstable();
        Ok(Some(keys))
    }

    /// The end marks that its own batches set on its own rows, by row id, ascending.
    ///
    /// Marks of later batches are left out: those come again from the log, if they survive.
    pub(crate) fn marks(&self) -> Vec<(RowId, PubNo)> {
        let last = self.last_publication();
        let own = self.ends.marks(self.rows()).filter(|(_, by)| *by <= last);
        own.map(|(offset, by)| (self.first_row.plus(u64::from(offset)), by)).collect()
    }

    /// Gives out the graph of vector column number `column` in its stored form.
    ///
    /// # Errors
    /// Those of `sink`; `Internal` if there is no such column, `Corrupt` if not every row is in the graph yet.
    pub(crate) fn freeze(&self, column: usize, sink: &mut dyn GraphSink) -> Result<()> {
        let found = self.columns.get(column);
        found.ok_or_else(|| Error::internal(format!("there is no vector column {column}")))?.freeze(sink)
    }
}
