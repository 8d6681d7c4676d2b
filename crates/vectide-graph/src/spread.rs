//! Mean and deviation of a few numbers: how far codes are off, and by how much
//! candidates differ at all.

/// Sums over the numbers that were added.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spread {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Spread {
    #[inline(always)]
    pub(crate) fn add(&mut self, value: f32) {
        let value = f64::from(value);
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// 0 of nothing.
    #[inline(always)]
    pub(crate) fn mean(&self) -> f32 {
        (self.sum / self.count.max(1.0)) as f32
    }

    /// The standard deviation; 0 of nothing.
    #[inline(always)]
    pub(crate) fn deviation(&self) -> f32 {
        let count = self.count.max(1.0);
        let mean = self.sum / count;
        (self.squares / count - mean * mean).max(0.0).sqrt() as f32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_numbers() {
        let mut spread = Spread::default();
        assert_eq!((spread.mean(), spread.deviation()), (0.0, 0.0));
        for value in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            spread.add(value);
        }
        assert_eq!((spread.mean(), spread.deviation()), (5.0, 2.0));
    }
}
