//! Compact codes: what traversal and selection measure distances with, in place
//! of the rows. A row of 4,096 bytes becomes one of 576; an insert at m = 16 reads
//! about 1,200 of them at random places, so that is most of its time
//! (docs/decisions/0006).
//!
//! Nothing is trained: the first row is encoded like the millionth. A row is
//! rotated ([`rotation`]), then each element is rounded on a scale of the row's
//! own. The scale is chosen so that the row's product with itself comes out
//! exactly (as in RaBitQ, Gao & Long, 2024), which makes products with other rows
//! unbiased.
//!
//! A row's code is `row_bytes` long: the elements, then, in the last 16 bytes, the
//! [`Tail`]. All kinds are compared alike: a whole number `h` is summed from a
//! query's bytes and a row's code, and the distance is
//! `query.base + tail.base - query.scale * tail.scale * (h - query.shift)`.

mod encoder;
mod int4;
mod int8;
mod query;
mod rotation;
mod space;
mod store;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use encoder::Encoder;
pub(crate) use int4::Int4;
pub(crate) use int8::Int8;
pub(crate) use query::CodeQuery;
pub(crate) use space::Coded;
pub(crate) use store::CodeStore;

use crate::distance::Kernel;
use crate::params::Metric;

/// What a graph keeps of each row to measure distances with while it walks; the
/// rows that come out are measured again, exactly, in the caller's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Codes {
    /// Nothing: every distance is taken from the caller's vectors.
    #[default]
    None,
    /// Eight bits per element.
    Int8,
    /// Four bits per element.
    Int4,
}

impl Codes {
    /// The kind that measured best for vectors of a dimension (decision 0006):
    /// 4 bits from 256 dimensions on, 8 bits below, none under 16, where a row is
    /// no larger than its code.
    pub fn auto(dim: u32, _metric: Metric) -> Self {
        match dim {
            0..16 => Codes::None,
            16..256 => Codes::Int8,
            256..=MAX_DIM => Codes::Int4,
            _ => Codes::None,
        }
    }

    /// Bytes of one row's code: whole cache lines; 0 for [`Codes::None`].
    pub fn row_bytes(self, dim: u32) -> usize {
        match self {
            Codes::None => 0,
            Codes::Int8 => row_bytes::<Int8>(dim as usize),
            Codes::Int4 => row_bytes::<Int4>(dim as usize),
        }
    }

    /// `none`, `int8` or `int4`.
    pub fn name(self) -> &'static str {
        match self {
            Codes::None => "none",
            Codes::Int8 => "int8",
            Codes::Int4 => "int4",
        }
    }

    /// The kind of a [`Codes::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codes| codes.name() == name)
    }

    /// All kinds.
    pub const ALL: [Codes; 3] = [Codes::None, Codes::Int8, Codes::Int4];

    /// The byte that stands for the kind in a stored graph.
    pub(crate) fn code(self) -> u8 {
        match self {
            Codes::None => 0,
            Codes::Int8 => 1,
            Codes::Int4 => 2,
        }
    }

    /// The kind that a stored byte stands for.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codes| codes.code() == code)
    }
}

/// The largest dimension that has codes: sums of products fit an i32 up to here.
pub(crate) const MAX_DIM: u32 = 1 << 16;

/// Bytes of a cache line. Rows of code begin on one, and elements fill whole ones.
const LINE: usize = 64;

/// What stands in the last bytes of a row's code, little-endian.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tail {
    /// Times the rounded elements, the row.
    pub(crate) scale: f32,
    /// What the row adds to every distance: its squared length under l2,
    /// otherwise 0.
    pub(crate) base: f32,
    /// Sum of the rounded elements, in the unit that [`Code::hold`] unpacks to.
    pub(crate) sum: i32,
}

/// Bytes of a [`Tail`]; the last four are zeros.
const TAIL_BYTES: usize = 16;

impl Tail {
    #[inline(always)]
    pub(crate) fn read(row: &[u8]) -> Self {
        let tail = row.last_chunk::<TAIL_BYTES>().expect("a code is at least a cache line");
        let four = |at: usize| [tail[at], tail[at + 1], tail[at + 2], tail[at + 3]];
        Self { scale: f32::from_le_bytes(four(0)), base: f32::from_le_bytes(four(4)), sum: i32::from_le_bytes(four(8)) }
    }

    #[inline(always)]
    pub(crate) fn write(self, row: &mut [u8]) {
        let tail = row.last_chunk_mut::<TAIL_BYTES>().expect("a code is at least a cache line");
        tail[..4].copy_from_slice(&self.scale.to_le_bytes());
        tail[4..8].copy_from_slice(&self.base.to_le_bytes());
        tail[8..12].copy_from_slice(&self.sum.to_le_bytes());
        tail[12..].fill(0);
    }
}

/// One kind of code: how a rotated row is rounded, packed, and compared.
pub(crate) trait Code: Copy + Default + Send + Sync + 'static {
    /// Bytes that the packed elements take, in whole lines: what a comparison
    /// reads. The tail may lie in the last of them, where only padding is.
    fn element_bytes(dim: usize) -> usize;

    /// Bytes of a query that rows are compared with, one per element and padding.
    fn query_bytes(dim: usize) -> usize;

    /// Bytes of the elements that are not padding.
    fn used_bytes(dim: usize) -> usize;

    /// Factor between a comparison's sum and its unit.
    const UNIT: i32;

    /// What to take off a comparison's sum, in its unit, given the sum of the
    /// query's bytes.
    fn shift(query_sum: i32) -> i32;

    /// Rounds and packs a rotated row, and returns its tail but for the base.
    /// `square` is the sum of its squares.
    fn encode(rotated: &[f32], square: f32, out: &mut [u8]) -> Tail;

    /// Unpacks a row to be compared with others, in place of a query.
    fn hold(row: &[u8], tail: Tail, dim: usize, query: &mut CodeQuery);

    /// The sum of products of a query with one row.
    ///
    /// # Safety
    /// `query` has as many bytes as the kind packs elements in `bytes`, and
    /// `bytes`, a multiple of 64, are readable at `row`.
    unsafe fn dot<K: Kernel>(k: K, query: &CodeQuery, row: *const u8, bytes: usize) -> i32;

    /// [`Code::dot`] with four rows.
    ///
    /// # Safety
    /// As [`Code::dot`].
    unsafe fn dot_four<K: Kernel>(k: K, query: &CodeQuery, rows: [*const u8; 4], bytes: usize) -> [i32; 4];
}

fn row_bytes<C: Code>(dim: usize) -> usize {
    (C::used_bytes(dim) + TAIL_BYTES).max(C::element_bytes(dim)).next_multiple_of(LINE)
}
