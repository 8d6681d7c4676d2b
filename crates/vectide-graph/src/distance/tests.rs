//! Every kernel against f64 arithmetic, within the tolerance that `distance`
//! documents.

use super::*;
use half::f16;
use proptest::prelude::*;

const METRICS: [Metric; 3] = [Metric::L2, Metric::Cosine, Metric::Dot];

/// Random numbers of one seed, about normal, with a few large ones.
fn vector(dim: usize, seed: u64) -> Vec<f32> {
    let draw = |i: usize| crate::params::mix(seed ^ crate::params::mix(i as u64));
    (0..dim)
        .map(|i| {
            let unit = (draw(i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            if draw(i) % 97 == 0 { unit * 50.0 } else { unit }
        })
        .collect()
}

fn halves(vector: &[f32]) -> Vec<f16> {
    vector.iter().map(|v| f16::from_f32(*v)).collect()
}

/// One distance and four, by one kernel.
struct Measure<'a, A, B> {
    metric: Metric,
    a: &'a [A],
    b: [&'a [B]; 4],
    scale: f32,
}

impl<A: Element, B: Element> Task for Measure<'_, A, B> {
    type Output = (f32, [f32; 4]);

    #[inline(always)]
    fn run<K: Kernel>(self, k: K) -> Self::Output {
        let one = distance(k, self.metric, self.a, self.b[0], self.scale);
        (one, distance_four(k, self.metric, self.a, self.b, [self.scale; 4]))
    }
}

/// The distance in f64, and how far off a kernel may be.
fn oracle<A: Element, B: Element>(metric: Metric, a: &[A], b: &[B], scale: f32) -> (f64, f64) {
    let pairs = a.iter().zip(b).map(|(x, y)| (f64::from(x.to_f32()), f64::from(y.to_f32())));
    let terms: Vec<f64> = match metric {
        Metric::L2 => pairs.map(|(x, y)| (x - y) * (x - y)).collect(),
        Metric::Cosine | Metric::Dot => pairs.map(|(x, y)| x * y).collect(),
    };
    let sum: f64 = terms.iter().sum();
    let magnitude: f64 = terms.iter().map(|t| t.abs()).sum();
    let ulp = f64::from(f32::EPSILON) / 2.0;
    let slack = (terms.len() + 2) as f64 * ulp * magnitude;
    match metric {
        Metric::L2 => (sum, slack),
        Metric::Dot => (1.0 - sum, slack + ulp * (1.0 + sum.abs())),
        Metric::Cosine => {
            let scaled = sum * f64::from(scale);
            let slack = slack * f64::from(scale) + 2.0 * ulp * (1.0 + scaled.abs());
            ((1.0 - scaled).max(0.0), slack)
        }
    }
}

fn check<A: Element, B: Element>(a: &[A], b: [&[B]; 4]) {
    for metric in METRICS {
        let scale = 0.37 / a.len() as f32;
        for isa in Isa::available() {
            let (one, four) = isa.run(Measure { metric, a, b, scale });
            assert_eq!(one.to_bits(), four[0].to_bits(), "the same alone as among four");
            let measured = std::iter::once((one, b[0])).chain(four.into_iter().zip(b));
            for (got, row) in measured {
                let (expected, slack) = oracle(metric, a, row, scale);
                let off = (f64::from(got) - expected).abs();
                assert!(
                    off <= slack,
                    "{} {metric:?} over {} elements: {got} is {off} off {expected}, allowed {slack}",
                    isa.name(),
                    a.len()
                );
            }
        }
    }
}

fn check_all(dim: usize, seed: u64) {
    let a = vector(dim, seed);
    let rows: Vec<Vec<f32>> = (1..5).map(|n| vector(dim, seed + n)).collect();
    let half_rows: Vec<Vec<f16>> = rows.iter().map(|row| halves(row)).collect();
    let b: [&[f32]; 4] = std::array::from_fn(|n| &rows[n][..]);
    let half_b: [&[f16]; 4] = std::array::from_fn(|n| &half_rows[n][..]);
    check(&a, b);
    check(&a, half_b);
    check(&halves(&a), half_b);
}

#[test]
fn every_kernel_agrees_with_f64_on_every_small_dimension() {
    let most = if cfg!(miri) { 40 } else { 300 };
    for dim in 1..=most {
        check_all(dim, dim as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]
    #[test]
    fn every_kernel_agrees_with_f64_up_to_4100(dim in 1usize..=4_100, seed: u64) {
        check_all(if cfg!(miri) { dim % 100 + 1 } else { dim }, seed >> 8);
    }
}

#[test]
fn rows_are_read_at_any_offset() {
    let values = vector(80, 3);
    let half_values = halves(&values);
    for start in 0..17 {
        let row = &values[start..start + 37];
        check(row, [&values[20..57], row, &values[1..38], &values[40..77]]);
        let row = &half_values[start..start + 37];
        check(row, [&half_values[20..57], row, &half_values[1..38], &half_values[40..77]]);
    }
}

#[test]
fn an_overflow_is_the_largest_distance_never_nan() {
    let huge = vec![1e30f32; 40];
    let tiny: Vec<f32> = huge.iter().map(|v| -v).collect();
    for isa in Isa::available() {
        for metric in METRICS {
            for b in [&huge, &tiny] {
                let rows = [&b[..]; 4];
                let (one, four) = isa.run(Measure { metric, a: &huge[..], b: rows, scale: 1.0 });
                assert!(one.is_finite() && four.iter().all(|d| d.is_finite()), "{metric:?}");
            }
        }
    }
}

struct InverseNorm<'a>(&'a [f32]);

impl Task for InverseNorm<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<K: Kernel>(self, k: K) -> f32 {
        inverse_norm(k, self.0)
    }
}

#[test]
fn norms_hold_over_all_of_f32s_range() {
    for scale in [1e-38f32, 1e-25, 1.0, 1e25, 1e37] {
        let row: Vec<f32> = vector(50, 9).iter().map(|v| v * scale).collect();
        let exact = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        for isa in Isa::available() {
            let got = f64::from(isa.run(InverseNorm(&row)));
            assert!((got * exact - 1.0).abs() < 1e-5, "{} at {scale}: {got}", isa.name());
        }
    }
    assert_eq!(Isa::SCALAR.run(InverseNorm(&[0.0; 9])), 0.0);
}
