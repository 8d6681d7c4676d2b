//! Medians and percentiles of what was measured.

/// The middle of some figures; of an even number, the lower of the two in the middle. 0 without any.
pub(crate) fn median(figures: &[f64]) -> f64 {
    percentile(figures, 50.0)
}

/// The percentile of the nearest rank; 0 without any figure.
pub(crate) fn percentile(figures: &[f64], percentile: f64) -> f64 {
    if figures.is_empty() {
        return 0.0;
    }
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (percentile / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// `figure` with three significant digits at most behind the point.
pub(crate) fn rounded(figure: f64) -> f64 {
    let digits = if figure.abs() >= 100.0 { 1.0 } else { 1e4 };
    (figure * digits).round() / digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let figures: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((median(&figures), percentile(&figures, 99.0), percentile(&figures, 100.0)), (50.0, 99.0, 100.0));
        assert_eq!((median(&[]), median(&[3.0]), median(&[1.0, 2.0, 9.0])), (0.0, 3.0, 2.0));
        assert_eq!((rounded(12_345.678), rounded(0.123_456)), (12_345.7, 0.1235));
    }
}
