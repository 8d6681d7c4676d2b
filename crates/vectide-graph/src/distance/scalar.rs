//! Lanes as a plain array: the fallback of every machine, what miri and loom
//! run, and the oracle that the other kernels are compared with. The compiler
//! turns the loops into whatever its baseline has.

use super::Kernel;

/// Eight f32 in an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scalar;

const WIDTH: usize = 8;

impl Kernel for Scalar {
    type Lanes = [f32; WIDTH];
    const WIDTH: usize = WIDTH;

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
