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

/// Sixteen f32, 64 bytes: AVX-512 F, BW, VL, DQ, VNNI and VPOPCNTDQ, which came
/// together with Ice Lake and Zen 4. Older AVX-512 CPUs lower their clock for it,
/// and take [`Avx2`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vpopcntdq")
            && Avx2::detect().is_some())
        .then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vpopcntdq,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt"
        )]
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
    const STREAMS: usize = 4;

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

    type Bytes = __m512i;
    type Sums = __m512i;
    const BYTES: usize = 64;

    #[inline(always)]
    fn no_sums(self) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, at: *const u8) -> __m512i {
        // SAFETY: as in `load`: 64 bytes.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    fn dot_bytes(self, unsigned: __m512i, signed: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_dpbusd_epi32(sums, unsigned, signed) }
    }

    #[inline(always)]
    fn dot_nibbles(self, packed: __m512i, low: __m512i, high: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let sums = _mm512_dpbusd_epi32(sums, _mm512_and_si512(packed, mask), low);
            _mm512_dpbusd_epi32(sums, _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask), high)
        }
    }

    #[inline(always)]
    fn total(self, sums: __m512i) -> i32 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_reduce_add_epi32(sums) }
    }

    #[inline(always)]
    fn totals(self, [a, b, c, d]: [__m512i; 4]) -> [i32; 4] {
        // SAFETY: 1. the token proves the features; 2. 128 bits are four i32.
        unsafe {
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            let half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
            let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            std::mem::transmute::<__m128i, [i32; 4]>(quarter)
        }
    }

    #[inline(always)]
    fn common_bits(self, a: &[u64], b: &[u64]) -> u32 {
        let words = a.len().min(b.len());
        let (fulls, rest) = (words / 8, words % 8);
        // SAFETY: 1. the token proves the features; 2. each full load is of 8
        // words within both slices, the masked one of the rest.
        unsafe {
            let mut counts = _mm512_setzero_si512();
            for at in 0..fulls {
                let x = _mm512_loadu_si512(a.as_ptr().add(8 * at).cast());
                let y = _mm512_loadu_si512(b.as_ptr().add(8 * at).cast());
                counts = _mm512_add_epi64(counts, _mm512_popcnt_epi64(_mm512_and_si512(x, y)));
            }
            if rest > 0 {
                let mask = low_bits(rest) as u8;
                let x = _mm512_maskz_loadu_epi64(mask, a.as_ptr().add(8 * fulls).cast());
                let y = _mm512_maskz_loadu_epi64(mask, b.as_ptr().add(8 * fulls).cast());
                counts = _mm512_add_epi64(counts, _mm512_popcnt_epi64(_mm512_and_si512(x, y)));
            }
            _mm512_reduce_add_epi64(counts) as u32
        }
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
    const STREAMS: usize = 2;

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

    type Bytes = __m256i;
    type Sums = __m256i;
    const BYTES: usize = 32;

    #[inline(always)]
    fn no_sums(self) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, at: *const u8) -> __m256i {
        // SAFETY: as in `load`: 32 bytes.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    #[inline(always)]
    fn dot_bytes(self, unsigned: __m256i, signed: __m256i, sums: __m256i) -> __m256i {
        // Widened first: the byte products of AVX2 saturate at 16 bits.
        // SAFETY: the token proves the features.
        unsafe {
            let low = _mm256_madd_epi16(
                _mm256_cvtepu8_epi16(_mm256_castsi256_si128(unsigned)),
                _mm256_cvtepi8_epi16(_mm256_castsi256_si128(signed)),
            );
            let high = _mm256_madd_epi16(
                _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(unsigned)),
                _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(signed)),
            );
            _mm256_add_epi32(sums, _mm256_add_epi32(low, high))
        }
    }

    #[inline(always)]
    fn dot_nibbles(self, packed: __m256i, low: __m256i, high: __m256i, sums: __m256i) -> __m256i {
        // Two pairs of products are at most 4 * 15 * 128 in size: they fit 16 bits.
        // SAFETY: the token proves the features.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let from_low = _mm256_maddubs_epi16(_mm256_and_si256(packed, mask), low);
            let from_high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask), high);
            let pairs = _mm256_add_epi16(from_low, from_high);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn total(self, sums: __m256i) -> i32 {
        self.totals([sums; 4])[0]
    }

    #[inline(always)]
    fn totals(self, [a, b, c, d]: [__m256i; 4]) -> [i32; 4] {
        // SAFETY: 1. the token proves the features; 2. 128 bits are four i32.
        unsafe {
            let all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
            let quarter = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            std::mem::transmute::<__m128i, [i32; 4]>(quarter)
        }
    }

    #[inline(always)]
    fn common_bits(self, a: &[u64], b: &[u64]) -> u32 {
        super::common_bits_by_word(a, b)
    }
}
