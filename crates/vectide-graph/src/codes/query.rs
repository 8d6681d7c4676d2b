//! The fixed side of a comparison: a query, or a row whose neighbours are looked
//! at, in the form that codes are compared with.

use super::LINE;

/// Whole cache lines of bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// One signed byte per element, and three numbers (see the formula of `codes`).
/// A buffer, reused from query to query.
#[derive(Default)]
pub(crate) struct CodeQuery {
    lines: Vec<Line>,
    pub(crate) scale: f32,
    pub(crate) base: f32,
    pub(crate) shift: i32,
}

impl CodeQuery {
    /// The bytes, made `len` long; a multiple of 64.
    #[inline(always)]
    pub(crate) fn resize(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(len.is_multiple_of(LINE), "whole lines");
        self.lines.resize(len / LINE, Line([0; LINE]));
        // SAFETY: a Line is its 64 bytes and nothing else, so the lines are
        // `64 * lines.len()` initialised bytes in a row.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as in `resize`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE) }
    }
}
