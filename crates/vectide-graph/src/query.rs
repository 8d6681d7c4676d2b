//! A caller's query vector, checked once and brought into the form that the
//! kernels compare with: f32, and of unit length under cosine.

use crate::distance::{Element, Isa, Kernel, Task, inverse_norm};
use crate::error::GraphError;
use crate::params::Metric;

/// A checked query. Costs one copy of the vector; serves any number of searches.
#[derive(Debug, Clone)]
pub struct Query {
    metric: Metric,
    /// `[dim] f32`; divided by its norm under cosine.
    values: Vec<f32>,
}

impl Query {
    /// Checks `vector` and prepares it, for tables of f32 and of f16 alike.
    ///
    /// # Errors
    /// [`GraphError::Length`] unless it has `dim` elements,
    /// [`GraphError::NotFinite`] for NaN or an infinity,
    /// [`GraphError::ZeroVector`] for a zero vector under cosine.
    pub fn new(metric: Metric, dim: u32, vector: &[f32]) -> Result<Self, GraphError> {
        if vector.len() != dim as usize {
            return Err(GraphError::Length {
                what: "the query's dimension",
                expected: dim.into(),
                got: vector.len() as u64,
            });
        }
        if let Some(index) = vector.iter().position(|v| !v.is_finite()) {
            let value = vector[index].to_string();
            return Err(GraphError::NotFinite { index, value });
        }
        if metric == Metric::Cosine && vector.iter().all(|v| *v == 0.0) {
            return Err(GraphError::ZeroVector);
        }
        let mut values = Vec::new();
        Isa::detect().run(Prepare { metric, vector, values: &mut values });
        Ok(Self { metric, values })
    }

    /// The metric that it was prepared for.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Elements.
    pub fn dim(&self) -> u32 {
        self.values.len() as u32
    }

    /// `[dim] f32`, of unit length under cosine.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }
}

/// Writes `vector` into `values` as a query is compared.
struct Prepare<'a> {
    metric: Metric,
    vector: &'a [f32],
    values: &'a mut Vec<f32>,
}

impl Task for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, k: K) {
        let inv_norm = match self.metric {
            Metric::Cosine => inverse_norm(k, self.vector),
            Metric::L2 | Metric::Dot => 1.0,
        };
        prepare_row(self.vector, inv_norm, self.values);
    }
}

/// Writes a row as a query is compared: widened, and scaled by `inv_norm`
/// (1 unless the metric is cosine).
#[inline(always)]
pub(crate) fn prepare_row<E: Element>(row: &[E], inv_norm: f32, values: &mut Vec<f32>) {
    values.clear();
    values.extend(row.iter().map(|v| v.to_f32() * inv_norm));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_queries_are_refused_with_their_reason() {
        let refuse = |metric, vector: &[f32]| Query::new(metric, 3, vector).expect_err("bad").to_string();
        assert_eq!(refuse(Metric::L2, &[1.0; 2]), "expected 3 elements (the query's dimension), got 2");
        assert_eq!(refuse(Metric::Dot, &[0.0, f32::NAN, 0.0]), "element 1 is NaN, not a finite number");
        assert_eq!(refuse(Metric::Cosine, &[0.0, -0.0, 0.0]), "a zero vector has no cosine distance");
        assert!(Query::new(Metric::L2, 3, &[0.0; 3]).is_ok());
    }

    #[test]
    fn a_cosine_query_has_unit_length_whatever_its_scale() {
        for scale in [1e-30f32, 1.0, 1e30] {
            let query = Query::new(Metric::Cosine, 2, &[3.0 * scale, 4.0 * scale]).expect("fine");
            assert!((query.values()[0] - 0.6).abs() < 1e-6, "{scale}: {:?}", query.values());
            assert!((query.values()[1] - 0.8).abs() < 1e-6, "{scale}: {:?}", query.values());
        }
    }
}
