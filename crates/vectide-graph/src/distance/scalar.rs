//! Lanes as a plain array: the fallback of every machine, what miri and loom
//! run, and the oracle that the other kernels are compared with. The compiler
//! turns the loops into whatever its baseline has.

use super::Kernel;

/// Eight f32 in an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scalar;

const WIDTH: usize = 8;
const BYTES: usize = 16;

impl Kernel for Scalar {
    type Lanes = [f32; WIDTH];
    const WIDTH: usize = WIDTH;
    const STREAMS: usize = 2;

    #[inline(always)]
    fn zero(self) -> Self::Lanes {
        [0.0; WIDTH]
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> Self::Lanes {
        // SAFETY: WIDTH values are readable, says the caller; an array needs no
        // more alignment than its element, which slices of f32 have.
        unsafe { at.cast::<[f32; WIDTH]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> Self::Lanes {
        let mut lanes = [0.0; WIDTH];
        for (i, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: `i < count`, which is readable, says the caller.
            *lane = unsafe { at.add(i).read() };
        }
        lanes
    }

    #[inline(always)]
    unsafe fn load_half(self, at: *const half::f16) -> Self::Lanes {
        // SAFETY: as in `load`.
        let halves = unsafe { at.cast::<[half::f16; WIDTH]>().read_unaligned() };
        halves.map(widen)
    }

    #[inline(always)]
    unsafe fn load_half_part(self, at: *const half::f16, count: usize) -> Self::Lanes {
        let mut lanes = [0.0; WIDTH];
        for (i, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: `i < count`, which is readable, says the caller.
            *lane = widen(unsafe { at.add(i).read() });
        }
        lanes
    }

    #[inline(always)]
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, sum: Self::Lanes) -> Self::Lanes {
        // Not f32::mul_add: without FMA instructions that is a library call.
        std::array::from_fn(|i| a[i] * b[i] + sum[i])
    }

    #[inline(always)]
    fn sum(self, lanes: Self::Lanes) -> f32 {
        let pairs: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
        (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
    }

    type Bytes = [u8; BYTES];
    type Sums = [i32; BYTES];
    const BYTES: usize = BYTES;

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        [0; BYTES]
    }

    #[inline(always)]
    unsafe fn load_bytes(self, at: *const u8) -> Self::Bytes {
        // SAFETY: BYTES bytes are readable, says the caller.
        unsafe { at.cast::<[u8; BYTES]>().read_unaligned() }
    }

    #[inline(always)]
    fn dot_bytes(self, unsigned: Self::Bytes, signed: Self::Bytes, sums: Self::Sums) -> Self::Sums {
        std::array::from_fn(|i| sums[i] + i32::from(unsigned[i]) * i32::from(signed[i] as i8))
    }

    #[inline(always)]
    fn dot_nibbles(self, packed: Self::Bytes, low: Self::Bytes, high: Self::Bytes, sums: Self::Sums) -> Self::Sums {
        let sums = self.dot_bytes(packed.map(|byte| byte & 15), low, sums);
        self.dot_bytes(packed.map(|byte| byte >> 4), high, sums)
    }

    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        sums.into_iter().sum()
    }

    #[inline(always)]
    fn totals(self, sums: [Self::Sums; 4]) -> [i32; 4] {
        sums.map(|sums| self.total(sums))
    }

    #[inline(always)]
    fn common_bits(self, a: &[u64], b: &[u64]) -> u32 {
        super::common_bits_by_word(a, b)
    }
}

/// A half as f32, without branches: its exponent and mantissa, shifted to f32's
/// places, lack only f32's larger exponent bias, which a multiplication by
/// 2^112 makes up, exactly, subnormal halves included. Infinities and NaN come
/// out as large finite numbers; no table holds any.
#[inline(always)]
pub(super) fn widen(half: half::f16) -> f32 {
    let bits = u32::from(half.to_bits());
    let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits((112 + 127) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::widen;

    #[test]
    fn every_finite_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let half = half::f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(widen(half).to_bits(), half.to_f32().to_bits(), "{bits:#06x}");
            }
        }
    }
}
