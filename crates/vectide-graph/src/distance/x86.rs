//! AVX-512 and AVX2 lanes.
//!
//! A token can only be made by its `detect`. The intrinsics are called outside
//! of a function with their target features, and become single instructions when
//! everything inlines into `run`, which has them.

use super::{Kernel, Task};
use std::arch::x86_64::*;

/// Asks for a cache line.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: 1. SSE is part of x86-64; 2. a prefetch of any address, mapped or
    // not, has no effect that a program can see.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// Sixteen f32: AVX-512 F, BW, VL and DQ, as every AVX-512 server CPU has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && Avx2::detect().is_some())
        .then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
        fn with_features<T: Task>(kernel: Avx512, task: T) -> T::Output {
            task.run(kernel)
        }
        // SAFETY: `detect` found every one of the features before it made the
        // token.
        unsafe { with_features(self, task) }
    }
}

impl Kernel for Avx512 {
    type Lanes = __m512;
    const WIDTH: usize = 16;

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: the token proves the features (so below, wherever no pointer
        // is read).
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m512 {
        // SAFETY: 1. the token proves the features; 2. 16 values are readable,
        // says the caller; 3. the load needs no alignment.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> __m512 {
        // SAFETY: as in `load`; masked-out lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(low_bits(count), at) }
    }

    #[inline(always)]
    unsafe fn load_half(self, at: *const half::f16) -> __m512 {
        // SAFETY: as in `load`: 16 halves are 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_half_part(self, at: *const half::f16, count: usize) -> __m512 {
        // SAFETY: as in `load_part`.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(low_bits(count), at.cast())) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, sum: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_fmadd_ps(a, b, sum) }
    }

    #[inline(always)]
    fn sum(self, lanes: __m512) -> f32 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_reduce_add_ps(lanes) }
    }
}

/// A mask of the `count < 16` lowest lanes.
#[inline(always)]
fn low_bits(count: usize) -> u16 {
    ((1u32 << count) - 1) as u16
}

/// Eight f32: AVX2, FMA, F16C and the bit manipulations of x86-64-v3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt"))
        .then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
        fn with_features<T: Task>(kernel: Avx2, task: T) -> T::Output {
            task.run(kernel)
        }
        // SAFETY: `detect` found every one of the features before it made the
        // token.
        unsafe { with_features(self, task) }
    }
}

impl Kernel for Avx2 {
    type Lanes = __m256;
    const WIDTH: usize = 8;

    #[inline(always)]
    fn zero(self) -> __m256 {
        // SAFETY: the token proves the features (so below, wherever no pointer
        // is read).
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m256 {
        // SAFETY: 1. the token proves the features; 2. 8 values are readable,
        // says the caller; 3. the load needs no alignment.
        unsafe { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> __m256 {
        // Eight ones and eight zeros: a window into it is a mask.
        const MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        debug_assert!(count < 8);
        // SAFETY: 1. the token proves the features; 2. `8 - count` is within
        // 1..=8, so the window of 8 is within the 16 masks; 3. masked-out lanes
        // are not read, and the others are readable, says the caller.
        unsafe {
            let mask = _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast());
            _mm256_maskload_ps(at, mask)
        }
    }

    #[inline(always)]
    unsafe fn load_half(self, at: *const half::f16) -> __m256 {
        // SAFETY: as in `load`: 8 halves are 16 bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_half_part(self, at: *const half::f16, count: usize) -> __m256 {
        let mut halves = [half::f16::ZERO; 8];
        // SAFETY: 1. the token proves the features; 2. `count < 8` halves are
        // readable, says the caller, and fit the array.
        unsafe {
            std::ptr::copy_nonoverlapping(at, halves.as_mut_ptr(), count);
            _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()))
        }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves the features.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves the features.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, sum: __m256) -> __m256 {
        // SAFETY: the token proves the features.
        unsafe { _mm256_fmadd_ps(a, b, sum) }
    }

    #[inline(always)]
    fn sum(self, lanes: __m256) -> f32 {
        // SAFETY: the token proves the features.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
            _mm_cvtss_f32(one)
        }
    }
}
