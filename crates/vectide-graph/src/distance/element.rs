//! What a vector may consist of: f32 or f16. Sealed: the kernels know both.

use super::Kernel;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
}

/// A number that vectors consist of, `f32` or [`half::f16`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The value, widened; exact for finite ones.
    fn to_f32(self) -> f32;

    #[doc(hidden)]
    #[allow(private_bounds, private_interfaces, reason = "sealed")]
    /// # Safety
    /// `K::WIDTH` elements are readable at `at`.
    unsafe fn load<K: Kernel>(kernel: K, at: *const Self) -> K::Lanes;

    #[doc(hidden)]
    #[allow(private_bounds, private_interfaces, reason = "sealed")]
    /// # Safety
    /// `count < K::WIDTH` elements are readable at `at`.
    unsafe fn load_part<K: Kernel>(kernel: K, at: *const Self, count: usize) -> K::Lanes;
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    #[allow(private_bounds, private_interfaces, reason = "sealed")]
    unsafe fn load<K: Kernel>(kernel: K, at: *const Self) -> K::Lanes {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { kernel.load(at) }
    }

    #[inline(always)]
    #[allow(private_bounds, private_interfaces, reason = "sealed")]
    unsafe fn load_part<K: Kernel>(kernel: K, at: *const Self, count: usize) -> K::Lanes {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { kernel.load_part(at, count) }
    }
}

impl Element for half::f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        super::scalar::widen(self)
    }

    #[inline(always)]
    #[allow(private_bounds, private_interfaces, reason = "sealed")]
    unsafe fn load<K: Kernel>(kernel: K, at: *const Self) -> K::Lanes {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { kernel.load_half(at) }
    }

    #[inline(always)]
    #[allow(private_bounds, private_interfaces, reason = "sealed")]
    unsafe fn load_part<K: Kernel>(kernel: K, at: *const Self, count: usize) -> K::Lanes {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { kernel.load_half_part(at, count) }
    }
}
