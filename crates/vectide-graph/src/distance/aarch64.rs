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
}
