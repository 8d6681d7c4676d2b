//! A node with its distance, and the one integer that orders such pairs.
//!
//! Distances are NaN-free by the time they come here (see `distance`), so
//! (distance, id) is a total order: ties resolve the same way on every run.

use std::cmp::Ordering;

/// A row that a search found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Distance to the query in the query's metric; never NaN.
    pub distance: f32,
    /// The row.
    pub id: u32,
}

impl Eq for Hit {}

impl Ord for Hit {
    /// Nearest first, then lowest id.
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A [`Hit`] as one integer of the same order: distance above, id below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    #[inline(always)]
    pub(crate) fn new(distance: f32, id: u32) -> Self {
        // Floats order like sign-magnitude integers: flip the magnitude of the
        // negative ones, and put them below the positive ones.
        let bits = distance.to_bits();
        let ordered = bits ^ ((((bits as i32) >> 31) as u32) | 0x8000_0000);
        Self(u64::from(ordered) << 32 | u64::from(id))
    }

    #[inline(always)]
    pub(crate) fn id(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn distance(self) -> f32 {
        let ordered = (self.0 >> 32) as u32;
        f32::from_bits(ordered ^ (((!ordered as i32 >> 31) as u32) | 0x8000_0000))
    }

    #[inline(always)]
    pub(crate) fn hit(self) -> Hit {
        Hit { distance: self.distance(), id: self.id() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_order_and_return_what_went_in(
            a in (-1e30f32..1e30, any::<u32>()),
            b in (-1e30f32..1e30, any::<u32>()),
        ) {
            let hit = |p: (f32, u32)| Hit { distance: p.0, id: p.1 };
            let (ka, kb) = (Key::new(a.0, a.1), Key::new(b.0, b.1));
            prop_assert_eq!(ka.hit(), hit(a));
            prop_assert_eq!(ka.cmp(&kb), hit(a).cmp(&hit(b)));
        }
    }

    #[test]
    fn equal_distances_order_by_id() {
        assert!(Key::new(0.5, 3) < Key::new(0.5, 4));
        assert!(Key::new(-0.5, 9) < Key::new(0.0, 0));
    }
}
