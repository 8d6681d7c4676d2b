//! A link's distance in 16 bits: pruning compares a link's distance with exact
//! ones, and a relative error of 2^-9 (2^-8 where distances are signed) moves no
//! choice that matters. Half the bytes of an f32, and all of its range, which
//! IEEE halves lack: squared distances soon pass 65,504.

/// Unsigned: f32 without its sign and its low 15 bits (8 bits of exponent, 8 of
/// mantissa). Signed: bfloat16. Rounded to nearest, ties away from zero.
#[inline(always)]
pub(crate) fn encode(distance: f32, signed: bool) -> u16 {
    if signed {
        (distance.to_bits().saturating_add(1 << 15) >> 16) as u16
    } else {
        // Distances by code can come out a little below zero.
        (distance.max(0.0).to_bits().saturating_add(1 << 14) >> 15) as u16
    }
}

/// The distance that [`encode`] rounded to.
#[inline(always)]
pub(crate) fn decode(bits: u16, signed: bool) -> f32 {
    f32::from_bits(if signed { u32::from(bits) << 16 } else { u32::from(bits) << 15 })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_link_distance_keeps_its_magnitude(distance in 0f32..1e38, small in 0f32..1.0) {
            for d in [distance, small] {
                prop_assert!((decode(encode(d, false), false) - d).abs() <= d / 512.0);
                prop_assert!((decode(encode(d, true), true) - d).abs() <= d / 256.0);
                prop_assert!((decode(encode(-d, true), true) + d).abs() <= d / 256.0);
            }
        }
    }

    #[test]
    fn the_extremes_are_kept() {
        for signed in [false, true] {
            assert_eq!(decode(encode(0.0, signed), signed), 0.0);
            assert!(decode(encode(f32::MAX, signed), signed) >= f32::MAX);
        }
    }
}
