//! Distances between vectors: two slices and a metric come in, one f32 goes out.
//! Called from every traversal, selection and scan of the crate.
//!
//! The loops are written once, over the lanes of a [`Kernel`]; an architecture's
//! file says only how to load, subtract, multiply-add and sum its lanes. A kernel
//! is a token that exists only where the CPU has its instructions, and the
//! choice is made once around a whole search or insert ([`Isa::run`]), so that
//! kernels inline into it.
//!
//! **Tolerance.** Sums are taken in f32, in lanes: for `n` elements the error
//! against exact arithmetic stays within `(n + 2) * 2^-24 * sum(|terms|)` on
//! every kernel, which is the bound the property tests hold them to. A result is
//! never NaN: an overflow to infinity or NaN becomes `f32::MAX`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod element;
mod scalar;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::params::Metric;
pub use element::Element;

/// A level of vector instructions, chosen when the process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(aarch64::Neon),
}

impl Isa {
    /// Plain Rust: there on every machine, and the oracle of the others.
    pub const SCALAR: Isa = Isa(Level::Scalar);

    /// The best that this CPU has.
    pub fn detect() -> Isa {
        *Self::available().last().expect("scalar is always there")
    }

    /// Everything that this CPU has, the best last. Tests and benches force a
    /// lower level with one of these.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "nothing is added on other architectures")]
        let mut levels = vec![Isa::SCALAR];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            levels.extend(x86::Avx2::detect().map(|k| Isa(Level::Avx2(k))));
            levels.extend(x86::Avx512::detect().map(|k| Isa(Level::Avx512(k))));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        levels.extend(aarch64::Neon::detect().map(|k| Isa(Level::Neon(k))));
        levels
    }

    /// `scalar`, `neon`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon(_) => "neon",
        }
    }

    /// Runs a whole task with this level's kernel, compiled for its instructions.
    #[inline]
    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        match self.0 {
            Level::Scalar => task.run(scalar::Scalar),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(kernel) => kernel.run(task),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(kernel) => kernel.run(task),
            #[cfg(target_arch = "aarch64")]
            Level::Neon(kernel) => kernel.run(task),
        }
    }
}

/// Work that is compiled once per instruction level. `run` and what it calls on
/// the hot path must be `#[inline(always)]`: that is how they come to be compiled
/// for the level. Closures and iterator adapters are not, so none of them calls
/// into a kernel: it is loops there.
pub(crate) trait Task {
    type Output;
    fn run<K: Kernel>(self, kernel: K) -> Self::Output;
}

/// The lanes of one instruction level. Having one proves that the CPU has the
/// instructions, which is why its arithmetic is safe to call.
pub(crate) trait Kernel: Copy + Send + Sync + 'static {
    /// `WIDTH` f32 values.
    type Lanes: Copy;
    const WIDTH: usize;
    /// Sums that are kept apart per vector, 2 or 4: as many as there are
    /// registers for, since each waits for the multiplication before.
    const STREAMS: usize;

    fn zero(self) -> Self::Lanes;
    /// # Safety
    /// `WIDTH` values are readable at `at`, at any alignment.
    unsafe fn load(self, at: *const f32) -> Self::Lanes;
    /// # Safety
    /// `count < WIDTH` values are readable at `at`. The other lanes are zero.
    unsafe fn load_part(self, at: *const f32, count: usize) -> Self::Lanes;
    /// # Safety
    /// As [`Kernel::load`], for halves, which are widened.
    unsafe fn load_half(self, at: *const half::f16) -> Self::Lanes;
    /// # Safety
    /// As [`Kernel::load_part`], for halves, which are widened.
    unsafe fn load_half_part(self, at: *const half::f16, count: usize) -> Self::Lanes;
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a * b + sum`, fused where the instructions are.
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, sum: Self::Lanes) -> Self::Lanes;
    fn sum(self, lanes: Self::Lanes) -> f32;

    /// `BYTES` small integers.
    type Bytes: Copy;
    /// Sums of their products, in i32.
    type Sums: Copy;
    /// Divides 64, so that 64 bytes are a whole number of them.
    const BYTES: usize;

    fn no_sums(self) -> Self::Sums;
    /// # Safety
    /// `BYTES` bytes are readable at `at`, at any alignment.
    unsafe fn load_bytes(self, at: *const u8) -> Self::Bytes;
    /// Adds the products of unsigned bytes with signed ones; exact while the
    /// sums fit.
    fn dot_bytes(self, unsigned: Self::Bytes, signed: Self::Bytes, sums: Self::Sums) -> Self::Sums;
    /// Adds the products of the low halves of `packed` with `low`, and of the
    /// high halves with `high`; the halves are 0 to 15, the others signed.
    fn dot_nibbles(self, packed: Self::Bytes, low: Self::Bytes, high: Self::Bytes, sums: Self::Sums) -> Self::Sums;
    fn total(self, sums: Self::Sums) -> i32;
    /// Four times [`Kernel::total`], for less.
    fn totals(self, sums: [Self::Sums; 4]) -> [i32; 4];
    #[allow(dead_code, reason = "for codes of one bit")]
    /// Bits set in `a & b`, over the 64-bit words that both have.
    fn common_bits(self, a: &[u64], b: &[u64]) -> u32;
}

/// [`Kernel::common_bits`] by the CPU's count of one word.
#[allow(dead_code, reason = "for codes of one bit")]
#[inline(always)]
fn common_bits_by_word(a: &[u64], b: &[u64]) -> u32 {
    let mut count = 0;
    for (x, y) in a.iter().zip(b) {
        count += (x & y).count_ones();
    }
    count
}

/// One term of a sum over two vectors.
trait Term {
    fn step<K: Kernel>(k: K, a: K::Lanes, b: K::Lanes, sum: K::Lanes) -> K::Lanes;
}

struct Product;
impl Term for Product {
    #[inline(always)]
    fn step<K: Kernel>(k: K, a: K::Lanes, b: K::Lanes, sum: K::Lanes) -> K::Lanes {
        k.mul_add(a, b, sum)
    }
}

struct SquaredDifference;
impl Term for SquaredDifference {
    #[inline(always)]
    fn step<K: Kernel>(k: K, a: K::Lanes, b: K::Lanes, sum: K::Lanes) -> K::Lanes {
        let d = k.sub(a, b);
        k.mul_add(d, d, sum)
    }
}

/// The sum of `T` over the elements that both vectors have, in streams.
/// [`four`] adds in the same order: a distance does not depend, to the bit, on
/// which rows it was computed with.
#[inline(always)]
fn one<T: Term, K: Kernel, A: Element, B: Element>(k: K, a: &[A], b: &[B]) -> f32 {
    let len = a.len().min(b.len());
    let (a, b) = (a.as_ptr(), b.as_ptr());
    let mut sums = [k.zero(); 4];
    let mut at = 0;
    // SAFETY: 1. every full load reads WIDTH elements from `at`, or some
    // WIDTHs further, which the loop conditions keep within `len`; 2. the part load
    // reads the `len - at < WIDTH` elements that are left; 3. `len` is within
    // both slices.
    unsafe {
        while at + K::STREAMS * K::WIDTH <= len {
            #[allow(clippy::needless_range_loop, reason = "sums in step with offsets")]
            for stream in 0..K::STREAMS {
                let offset = at + stream * K::WIDTH;
                let (x, y) = (A::load(k, a.add(offset)), B::load(k, b.add(offset)));
                sums[stream] = T::step(k, x, y, sums[stream]);
            }
            at += K::STREAMS * K::WIDTH;
        }
        while at + K::WIDTH <= len {
            sums[0] = T::step(k, A::load(k, a.add(at)), B::load(k, b.add(at)), sums[0]);
            at += K::WIDTH;
        }
        if at < len {
            let x = A::load_part(k, a.add(at), len - at);
            let y = B::load_part(k, b.add(at), len - at);
            sums[1] = T::step(k, x, y, sums[1]);
        }
    }
    k.sum(joined(k, sums))
}

/// The sum of the streams that are in use.
#[inline(always)]
fn joined<K: Kernel>(k: K, sums: [K::Lanes; 4]) -> K::Lanes {
    let two = k.add(sums[0], sums[1]);
    if K::STREAMS == 2 { two } else { k.add(two, k.add(sums[2], sums[3])) }
}

/// [`one`] for four vectors at a time: `a` is loaded once, and four independent
/// streams keep more of the memory system busy than one does.
#[inline(always)]
fn four<T: Term, K: Kernel, A: Element, B: Element>(k: K, a: &[A], b: [&[B]; 4]) -> [f32; 4] {
    let len = b.iter().fold(a.len(), |len, row| len.min(row.len()));
    let a = a.as_ptr();
    let b = b.map(<[B]>::as_ptr);
    let mut sums = [[k.zero(); 4]; 4];
    let mut at = 0;
    // SAFETY: as in `one`; `len` is within all five slices.
    unsafe {
        while at + K::STREAMS * K::WIDTH <= len {
            #[allow(clippy::needless_range_loop, reason = "sums in step with offsets")]
            for stream in 0..K::STREAMS {
                let offset = at + stream * K::WIDTH;
                let x = A::load(k, a.add(offset));
                for row in 0..4 {
                    sums[row][stream] = T::step(k, x, B::load(k, b[row].add(offset)), sums[row][stream]);
                }
            }
            at += K::STREAMS * K::WIDTH;
        }
        while at + K::WIDTH <= len {
            let x = A::load(k, a.add(at));
            for row in 0..4 {
                sums[row][0] = T::step(k, x, B::load(k, b[row].add(at)), sums[row][0]);
            }
            at += K::WIDTH;
        }
        if at < len {
            let x = A::load_part(k, a.add(at), len - at);
            for row in 0..4 {
                let y = B::load_part(k, b[row].add(at), len - at);
                sums[row][1] = T::step(k, x, y, sums[row][1]);
            }
        }
    }
    let mut out = [0.0; 4];
    for row in 0..4 {
        out[row] = k.sum(joined(k, sums[row]));
    }
    out
}

/// NaN and infinities, which only overflow can bring, become the largest number.
#[inline(always)]
pub(crate) fn finite(distance: f32) -> f32 {
    distance.min(f32::MAX)
}

#[inline(always)]
fn from_dot(metric: Metric, dot: f32, scale: f32) -> f32 {
    match metric {
        Metric::Cosine => finite(1.0 - dot * scale).max(0.0),
        // A dot of +inf would come out as the nearest of all; -f32::MAX is
        // near enough, and its order against finite ones is the same.
        Metric::L2 | Metric::Dot => finite((1.0 - dot).max(f32::MIN)),
    }
}

/// The distance between `a` and `b`. `scale` is the product of the inverse norms
/// of the two, where they are not normalised already; only cosine looks at it.
#[inline(always)]
pub(crate) fn distance<K: Kernel, A: Element, B: Element>(k: K, metric: Metric, a: &[A], b: &[B], scale: f32) -> f32 {
    match metric {
        Metric::L2 => finite(one::<SquaredDifference, K, A, B>(k, a, b)),
        Metric::Cosine | Metric::Dot => from_dot(metric, one::<Product, K, A, B>(k, a, b), scale),
    }
}

/// [`distance`] from `a` to four vectors.
#[inline(always)]
pub(crate) fn distance_four<K: Kernel, A: Element, B: Element>(
    k: K,
    metric: Metric,
    a: &[A],
    b: [&[B]; 4],
    scale: [f32; 4],
) -> [f32; 4] {
    match metric {
        Metric::L2 => four::<SquaredDifference, K, A, B>(k, a, b).map(finite),
        Metric::Cosine | Metric::Dot => {
            let dots = four::<Product, K, A, B>(k, a, b);
            let mut out = [0.0; 4];
            for row in 0..4 {
                out[row] = from_dot(metric, dots[row], scale[row]);
            }
            out
        }
    }
}

/// The sum of a vector's squares.
#[inline(always)]
pub(crate) fn squared_length<K: Kernel, E: Element>(k: K, vector: &[E]) -> f32 {
    one::<Product, K, E, E>(k, vector, vector)
}

/// `1 / |v|`, or 0 for a zero vector, whose cosine distance to all is then 1.
#[inline(always)]
pub(crate) fn inverse_norm<K: Kernel, E: Element>(k: K, vector: &[E]) -> f32 {
    let squared = squared_length(k, vector);
    if squared.is_finite() && squared >= f32::MIN_POSITIVE {
        return 1.0 / squared.sqrt();
    }
    // Beyond f32's range when squared, though the elements are within it.
    let squared: f64 = vector.iter().map(|e| f64::from(e.to_f32()).powi(2)).sum();
    if squared == 0.0 { 0.0 } else { (1.0 / squared.sqrt()).min(f64::from(f32::MAX)) as f32 }
}

/// Asks for the cache line at `at`; a hint, valid for any address.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    x86::prefetch(at.cast());
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    aarch64::prefetch(at.cast());
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// Asks for the first `limit` cache lines of a vector.
#[inline(always)]
pub(crate) fn prefetch_slice<T>(values: &[T], limit: usize) {
    let at = values.as_ptr().cast::<u8>();
    let lines = size_of_val(values).div_ceil(64).min(limit);
    for line in 0..lines {
        prefetch(at.wrapping_add(64 * line));
    }
}
