//! A run of rows on its way into a [`VectorTable`](super::VectorTable): checked,
//! and its norms computed, in the writer's own thread before it takes any lock.

use crate::distance::{Element, Isa, Kernel, Task, inverse_norm};
use crate::error::GraphError;
use crate::params::Metric;
use crate::shared::Shared;

/// `[rows, dim]` elements, row-major, with their norms, ready to be appended.
pub struct VectorBlock<E: Element> {
    pub(super) values: Shared<E>,
    pub(super) dim: usize,
    pub(super) metric: Metric,
    pub(super) rows: u32,
    /// One per row under cosine, otherwise empty.
    pub(super) inv_norms: Vec<f32>,
    /// One bit per row, set where the row is null; empty if none is.
    nulls: Vec<u64>,
    pub(super) copied: bool,
}

impl<E: Element> VectorBlock<E> {
    /// Rows that stay where they are: the table points into `owner`'s memory and
    /// keeps `owner` for its life. For batches of some hundred rows and more,
    /// since every block costs an allocation.
    ///
    /// `valid` says which rows are not null; `None` stands for all. The elements
    /// of a null row are not looked at. Cost: one pass over the rows under
    /// cosine, otherwise none.
    ///
    /// # Errors
    /// [`GraphError::Length`] unless `owner` holds a whole number of rows;
    /// [`GraphError::Full`] from `u32::MAX` rows on.
    pub fn borrowed(
        owner: impl AsRef<[E]> + Send + Sync + 'static,
        dim: u32,
        metric: Metric,
        valid: Option<&dyn Fn(usize) -> bool>,
    ) -> Result<Self, GraphError> {
        Self::new(Shared::new(owner), dim, metric, valid, false)
    }

    /// Rows that the table copies into its own arena on append, one after the
    /// other: a one-row write then costs a row and its bookkeeping, nothing else.
    ///
    /// # Errors
    /// As [`VectorBlock::borrowed`].
    pub fn copied(
        owner: impl AsRef<[E]> + Send + Sync + 'static,
        dim: u32,
        metric: Metric,
        valid: Option<&dyn Fn(usize) -> bool>,
    ) -> Result<Self, GraphError> {
        Self::new(Shared::new(owner), dim, metric, valid, true)
    }

    fn new(
        values: Shared<E>,
        dim: u32,
        metric: Metric,
        valid: Option<&dyn Fn(usize) -> bool>,
        copied: bool,
    ) -> Result<Self, GraphError> {
        let width = dim as usize;
        if width == 0 || values.len() % width != 0 {
            return Err(GraphError::Length {
                what: "a whole number of rows",
                expected: (values.len() / width.max(1) * width) as u64,
                got: values.len() as u64,
            });
        }
        let rows = u32::try_from(values.len() / width).map_err(|_| GraphError::Full)?;
        let mut nulls = Vec::new();
        if let Some(valid) = valid {
            for row in (0..rows as usize).filter(|&row| !valid(row)) {
                nulls.resize((rows as usize).div_ceil(64), 0);
                nulls[row / 64] |= 1u64 << (row % 64);
            }
        }
        let mut block = Self { values, dim: width, metric, rows, inv_norms: Vec::new(), nulls, copied };
        if metric == Metric::Cosine {
            block.inv_norms = Isa::detect().run(InverseNorms(&block));
        }
        Ok(block)
    }

    /// Rows in the block, null ones included.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    #[inline]
    pub(super) fn is_null(&self, row: usize) -> bool {
        self.nulls.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    #[inline]
    pub(super) fn row(&self, row: usize) -> &[E] {
        &self.values[row * self.dim..][..self.dim]
    }
}

/// The inverse norm of every row; 0 for null rows.
struct InverseNorms<'a, E: Element>(&'a VectorBlock<E>);

impl<E: Element> Task for InverseNorms<'_, E> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<K: Kernel>(self, k: K) -> Vec<f32> {
        let block = self.0;
        let mut norms = Vec::with_capacity(block.rows as usize);
        for row in 0..block.rows as usize {
            norms.push(if block.is_null(row) { 0.0 } else { inverse_norm(k, block.row(row)) });
        }
        norms
    }
}
