//! NEON lanes, for every 64-bit Arm.

use super::{Kernel, Task};
use std::arch::aarch64::*;

/// Asks for a cache line.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: a prefetch of any address, mapped or not, has no effect that a
    // program can see; it touches no memory, stack or flag.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Four f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "neon")]
        fn with_features<T: Task>(kernel: Neon, task: T) -> T::Output {
            task.run(kernel)
        }
        // SAFETY: `detect` found the feature before it made the token.
        unsafe { with_features(self, task) }
    }
}

impl Kernel for Neon {
    type Lanes = float32x4_t;
    const WIDTH: usize = 4;
    const STREAMS: usize = 4;

    #[inline(always)]
    fn zero(self) -> float32x4_t {
        // SAFETY: the token proves the feature (so below, wherever no pointer is
        // read).
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> float32x4_t {
        // SAFETY: 1. the token proves the feature; 2. 4 values are readable, says
        // the caller; 3. the load needs an f32's alignment, which slices have.
        unsafe { vld1q_f32(at) }
    }

    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> float32x4_t {
        let mut values = [0.0f32; 4];
        // SAFETY: `count < 4` values are readable, says the caller, and fit.
        unsafe {
            std::ptr::copy_nonoverlapping(at, values.as_mut_ptr(), count);
            vld1q_f32(values.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn load_half(self, at: *const half::f16) -> float32x4_t {
        // The conversion of the scalar kernel, on four at once: see `widen` there.
        // SAFETY: as in `load`: 4 halves are 8 bytes.
        unsafe {
            let bits = vmovl_u16(vld1_u16(at.cast()));
            let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7FFF)));
            let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
            let bias = vdupq_n_f32(f32::from_bits((112 + 127) << 23));
            let widened = vmulq_f32(vreinterpretq_f32_u32(magnitude), bias);
            vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(widened), sign))
        }
    }

    #[inline(always)]
    unsafe fn load_half_part(self, at: *const half::f16, count: usize) -> float32x4_t {
        let mut halves = [half::f16::ZERO; 4];
        // SAFETY: `count < 4` halves are readable, says the caller, and fit.
        unsafe {
            std::ptr::copy_nonoverlapping(at, halves.as_mut_ptr(), count);
            self.load_half(halves.as_ptr())
        }
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, sum: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vfmaq_f32(sum, a, b) }
    }

    #[inline(always)]
    fn sum(self, lanes: float32x4_t) -> f32 {
        // SAFETY: the token proves the feature.
        unsafe { vaddvq_f32(lanes) }
    }

    type Bytes = uint8x16_t;
    type Sums = int32x4_t;
    const BYTES: usize = 16;

    #[inline(always)]
    fn no_sums(self) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vdupq_n_s32(0) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, at: *const u8) -> uint8x16_t {
        // SAFETY: 1. the token proves the feature; 2. 16 bytes are readable, says
        // the caller; 3. bytes need no alignment.
        unsafe { vld1q_u8(at) }
    }

    #[inline(always)]
    fn dot_bytes(self, unsigned: uint8x16_t, signed: uint8x16_t, sums: int32x4_t) -> int32x4_t {
        // Widened to 16 bits, in which every product has room in 32.
        // SAFETY: the token proves the feature.
        unsafe {
            let signed = vreinterpretq_s8_u8(signed);
            let a = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(unsigned)));
            let b = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(unsigned)));
            let (x, y) = (vmovl_s8(vget_low_s8(signed)), vmovl_s8(vget_high_s8(signed)));
            let sums = vmlal_s16(sums, vget_low_s16(a), vget_low_s16(x));
            let sums = vmlal_s16(sums, vget_high_s16(a), vget_high_s16(x));
            let sums = vmlal_s16(sums, vget_low_s16(b), vget_low_s16(y));
            vmlal_s16(sums, vget_high_s16(b), vget_high_s16(y))
        }
    }

    #[inline(always)]
    fn dot_nibbles(self, packed: uint8x16_t, low: uint8x16_t, high: uint8x16_t, sums: int32x4_t) -> int32x4_t {
        // Four products are at most 4 * 15 * 128 in size: they fit 16 bits.
        // SAFETY: the token proves the feature.
        unsafe {
            let a = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
            let b = vreinterpretq_s8_u8(vshrq_n_u8::<4>(packed));
            let (x, y) = (vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high));
            let products = vmull_s8(vget_low_s8(a), vget_low_s8(x));
            let products = vmlal_s8(products, vget_high_s8(a), vget_high_s8(x));
            let products = vmlal_s8(products, vget_low_s8(b), vget_low_s8(y));
            let products = vmlal_s8(products, vget_high_s8(b), vget_high_s8(y));
            vpadalq_s16(sums, products)
        }
    }

    #[inline(always)]
    fn total(self, sums: int32x4_t) -> i32 {
        // SAFETY: the token proves the feature.
        unsafe { vaddvq_s32(sums) }
    }

    #[inline(always)]
    fn totals(self, sums: [int32x4_t; 4]) -> [i32; 4] {
        sums.map(|sums| self.total(sums))
    }

    #[inline(always)]
    fn common_bits(self, a: &[u64], b: &[u64]) -> u32 {
        super::common_bits_by_word(a, b)
    }
}
