//! A segment's vectors: row files in chunks of equal size, mapped or in memory.
//! Opening checks lengths and computes nothing per row.

use super::{VectorRow, Vectors};
use crate::distance::Element;
use crate::error::GraphError;
use crate::shared::Shared;

/// Which rows of a [`ChunkedVectors`] are null.
#[derive(Default)]
pub struct Nulls(NullRows);

#[derive(Default)]
enum NullRows {
    #[default]
    None,
    /// One bit per row, least significant first, set where the row is valid:
    /// Arrow's validity bitmap.
    Validity(Shared<u8>),
    /// Ascending row ids.
    Ids(Vec<u32>),
}

impl Nulls {
    /// No row is null.
    pub fn none() -> Self {
        Self::default()
    }

    /// An Arrow validity bitmap: bit `id % 8` of byte `id / 8` is set where the
    /// row is valid.
    pub fn validity(bitmap: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(NullRows::Validity(Shared::new(bitmap)))
    }

    /// The ids of the null rows, in any order; better than a bitmap where they
    /// are few. A look-up costs a binary search.
    pub fn ids(mut ids: Vec<u32>) -> Self {
        ids.sort_unstable();
        Self(if ids.is_empty() { NullRows::None } else { NullRows::Ids(ids) })
    }

    #[inline(always)]
    fn contains(&self, id: u32) -> bool {
        match &self.0 {
            NullRows::None => false,
            NullRows::Validity(bits) => bits.get(id as usize / 8).is_none_or(|byte| byte >> (id % 8) & 1 == 0),
            NullRows::Ids(ids) => ids.binary_search(&id).is_ok(),
        }
    }
}

/// `[len, dim]` vectors in chunks of `chunk_rows` rows; the last may be shorter.
pub struct ChunkedVectors<E> {
    dim: usize,
    len: u32,
    chunk_shift: u32,
    chunks: Vec<Shared<E>>,
    nulls: Nulls,
    /// `[len] f32`, little-endian, under cosine.
    inv_norms: Option<Shared<u8>>,
}

impl<E: Element> ChunkedVectors<E> {
    /// Puts chunks together, for metrics other than cosine; under cosine,
    /// [`ChunkedVectors::with_inv_norms`] follows.
    ///
    /// # Errors
    /// [`GraphError::Setting`] unless `chunk_rows` is a power of two and `dim`
    /// at least 1; [`GraphError::Length`] for a chunk or bitmap of the wrong
    /// length, [`GraphError::Full`] for too many rows.
    pub fn new<O: AsRef<[E]> + Send + Sync + 'static>(
        dim: u32,
        chunk_rows: u32,
        chunks: Vec<O>,
        nulls: Nulls,
    ) -> Result<Self, GraphError> {
        if dim == 0 {
            return Err(GraphError::Setting { name: "dim", expected: "at least 1", got: 0 });
        }
        if !chunk_rows.is_power_of_two() {
            let (name, expected) = ("chunk_rows", "a power of two");
            return Err(GraphError::Setting { name, expected, got: chunk_rows.into() });
        }
        let width = dim as usize;
        let full = width * chunk_rows as usize;
        let chunks: Vec<Shared<E>> = chunks.into_iter().map(Shared::new).collect();
        let mut rows = 0;
        for (number, chunk) in chunks.iter().enumerate() {
            let last = number + 1 == chunks.len();
            if last && (chunk.len() > full || chunk.len() % width != 0) {
                let whole = chunk.len().min(full) / width * width;
                return Err(length("the last chunk of vectors", whole, chunk.len()));
            }
            if !last && chunk.len() != full {
                return Err(length("a chunk of vectors", full, chunk.len()));
            }
            rows += chunk.len() / width;
        }
        let len = u32::try_from(rows).map_err(|_| GraphError::Full)?;
        if let NullRows::Validity(bits) = &nulls.0
            && bits.len() < rows.div_ceil(8)
        {
            return Err(length("the validity bitmap, in bytes", rows.div_ceil(8), bits.len()));
        }
        let chunk_shift = chunk_rows.trailing_zeros();
        Ok(Self { dim: width, len, chunk_shift, chunks, nulls, inv_norms: None })
    }

    /// Adds the inverse norms, `[len] f32`, little-endian, as a frozen graph
    /// holds them.
    ///
    /// # Errors
    /// [`GraphError::Length`] unless there is one per row.
    pub fn with_inv_norms(mut self, inv_norms: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, GraphError> {
        let inv_norms = Shared::new(inv_norms);
        if inv_norms.len() != 4 * self.len as usize {
            return Err(length("the inverse norms, in bytes", 4 * self.len as usize, inv_norms.len()));
        }
        self.inv_norms = Some(inv_norms);
        Ok(self)
    }
}

fn length(what: &'static str, expected: usize, got: usize) -> GraphError {
    GraphError::Length { what, expected: expected as u64, got: got as u64 }
}

impl<E: Element> Vectors for ChunkedVectors<E> {
    type Elem = E;

    fn dim(&self) -> usize {
        self.dim
    }

    fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    fn row(&self, id: u32) -> Option<VectorRow<'_, E>> {
        if self.nulls.contains(id) {
            return None;
        }
        let chunk = self.chunks.get((id >> self.chunk_shift) as usize)?;
        let row = (id & ((1 << self.chunk_shift) - 1)) as usize;
        let values = chunk.get(row * self.dim..(row + 1) * self.dim)?;
        let inv_norm = match &self.inv_norms {
            Some(norms) => {
                let at = 4 * id as usize;
                f32::from_le_bytes(norms.get(at..at + 4)?.try_into().ok()?)
            }
            None => 1.0,
        };
        Some(VectorRow { values, inv_norm })
    }
}
