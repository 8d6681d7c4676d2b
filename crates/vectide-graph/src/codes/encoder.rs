//! From a row to its code, and from a query to what codes are compared with.

use super::query::CodeQuery;
use super::rotation::Rotation;
use super::{Code, Codes, Tail, int8};
use crate::distance::{Kernel, squared_length};
use crate::params::{Metric, Params};

/// The encoder of one graph: a function of its kind of code, its metric and its
/// dimension alone.
pub struct Encoder {
    codes: Codes,
    metric: Metric,
    dim: usize,
    rotation: Rotation,
}

/// A row or query, rotated. Its numbers are those of `rotated * unit`.
#[derive(Clone, Copy)]
pub(crate) struct Rotated<'a> {
    values: &'a [f32],
    /// Sum of the squares of `values`.
    square: f32,
    /// 1, but for rows whose squares leave the range of f32.
    unit: f32,
}

impl Encoder {
    /// `None` for [`Codes::None`].
    pub(crate) fn new(params: &Params) -> Option<Self> {
        let dim = params.dim as usize;
        let encoder = || Self { codes: params.codes, metric: params.metric, dim, rotation: Rotation::new(dim) };
        (params.codes != Codes::None).then(encoder)
    }

    pub(crate) fn codes(&self) -> Codes {
        self.codes
    }

    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a row's code.
    pub(crate) fn row_bytes(&self) -> usize {
        self.codes.row_bytes(self.dim as u32)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.rotation.heap_bytes()
    }

    /// Rotates `values`, which are prepared as queries are.
    #[inline(always)]
    pub(crate) fn rotate<'a, K: Kernel>(&self, k: K, values: &[f32], buffer: &'a mut Vec<f32>) -> Rotated<'a> {
        buffer.clear();
        buffer.extend_from_slice(values);
        let mut square = squared_length(k, buffer);
        let mut unit = 1.0;
        if !(1e-24..1e24).contains(&square) && square != 0.0 || square.is_nan() {
            // Too small or too large to be squared: bring the largest to 1.
            unit = buffer.iter().fold(0.0f32, |most, value| most.max(value.abs())).max(f32::MIN_POSITIVE);
            buffer.iter_mut().for_each(|value| *value /= unit);
            square = squared_length(k, buffer);
        }
        self.rotation.apply(buffer);
        Rotated { values: buffer, square, unit }
    }

    /// Writes a row's code.
    #[inline(always)]
    pub(crate) fn encode<C: Code>(&self, row: Rotated<'_>, out: &mut [u8]) {
        let tail = C::encode(row.values, row.square, out);
        let base = match self.metric {
            Metric::L2 => row.square * row.unit * row.unit,
            Metric::Cosine | Metric::Dot => 0.0,
        };
        Tail { scale: tail.scale * row.unit, base, ..tail }.write(out);
    }

    /// Brings a query into the form that codes are compared with.
    #[inline(always)]
    pub(crate) fn prepare<C: Code>(&self, row: Rotated<'_>, query: &mut CodeQuery) {
        let sum = int8::prepare(row.values, row.square, C::query_bytes(self.dim), query);
        query.shift = C::shift(sum);
        self.finish(query, row.unit, row.square * row.unit * row.unit);
    }

    /// Unpacks a row, to be compared with others in place of a query.
    #[inline(always)]
    pub(crate) fn hold<C: Code>(&self, row: &[u8], query: &mut CodeQuery) {
        let tail = Tail::read(row);
        C::hold(row, tail, self.dim, query);
        query.shift = C::shift(tail.sum);
        self.finish(query, 1.0, tail.base);
    }

    /// The numbers of a query that depend on the metric.
    #[inline(always)]
    fn finish(&self, query: &mut CodeQuery, unit: f32, square: f32) {
        let (base, factor) = match self.metric {
            Metric::L2 => (square, 2.0),
            Metric::Cosine | Metric::Dot => (1.0, 1.0),
        };
        query.base = base;
        query.scale *= factor * unit;
    }
}
