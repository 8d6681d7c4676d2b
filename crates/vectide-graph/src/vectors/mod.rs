//! Where vectors come from: a trait over row ids, a table that grows while it is
//! read, and a segment's chunks. The graph stores no vector; it asks these.

mod block;
mod chunked;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

pub use block::VectorBlock;
pub use chunked::{ChunkedVectors, Nulls};
pub use table::{VectorTable, VectorTableBytes};

use crate::distance::Element;

/// One row's vector.
#[derive(Debug, Clone, Copy)]
pub struct VectorRow<'a, E> {
    /// `[dim]`, as it was written.
    pub values: &'a [E],
    /// `1 / |values|` under cosine (0 for a zero vector), 1 otherwise.
    pub inv_norm: f32,
}

impl<E> Default for VectorRow<'_, E> {
    fn default() -> Self {
        Self { values: &[], inv_norm: 1.0 }
    }
}

/// Row vectors by id, owned elsewhere. A row never changes once it can be read.
pub trait Vectors: Send + Sync {
    /// f32 or f16.
    type Elem: Element;

    /// Elements per vector.
    fn dim(&self) -> usize;

    /// Rows that can be read: ids below this one, null rows included.
    fn len(&self) -> u32;

    /// Whether there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The vector and its inverse norm; `None` for a null vector and for an id
    /// that is not there. Two or three loads; takes no lock.
    fn row(&self, id: u32) -> Option<VectorRow<'_, Self::Elem>>;

    /// The vector; `None` for a null vector and for an id that is not there.
    fn get(&self, id: u32) -> Option<&[Self::Elem]> {
        self.row(id).map(|row| row.values)
    }

    /// `1 / |v|` under cosine (0 for a zero, null or absent vector), otherwise 1.
    fn inv_norm(&self, id: u32) -> f32 {
        self.row(id).map_or(0.0, |row| row.inv_norm)
    }
}
