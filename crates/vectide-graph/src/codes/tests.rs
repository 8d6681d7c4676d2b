//! Codes against exact arithmetic, and every kernel against the scalar one.

use super::*;
use crate::distance::{Isa, Task};
use crate::hit::Key;
use crate::params::{Params, mix};
use crate::search::sealed::View;
use crate::space::Space;
use proptest::prelude::*;

const METRICS: [Metric; 3] = [Metric::L2, Metric::Cosine, Metric::Dot];

/// Rows of codes without a graph around them.
struct Rows {
    encoder: Encoder,
    codes: Vec<u8>,
}

impl View for Rows {
    fn entry_point(&self) -> Option<u32> {
        None
    }
    fn level(&self, _: u32) -> u8 {
        0
    }
    fn read_links(&self, _: u8, _: u32, _: &mut Vec<u32>) {}
    fn prefetch_links(&self, _: u32) {}
    fn end(&self) -> u32 {
        0
    }
    fn is_node(&self, _: u32) -> bool {
        true
    }
    fn encoder(&self) -> Option<&Encoder> {
        Some(&self.encoder)
    }
    fn code(&self, id: u32) -> Option<&[u8]> {
        self.codes.chunks(self.encoder.row_bytes()).nth(id as usize)
    }
}

/// Encodes rows, then measures from the first to the others, as a query and as a
/// row: five distances each, the last four together.
struct Measure<'a> {
    params: Params,
    rows: &'a [Vec<f32>],
}

impl Task for Measure<'_> {
    type Output = (Vec<u8>, [Vec<f32>; 2]);

    #[inline(always)]
    fn run<K: Kernel>(self, k: K) -> Self::Output {
        match self.params.codes {
            Codes::Int8 => self.by::<K, Int8>(k),
            Codes::Int4 => self.by::<K, Int4>(k),
            Codes::None => unreachable!("only kinds with codes"),
        }
    }
}

impl Measure<'_> {
    #[inline(always)]
    fn by<K: Kernel, C: Code>(self, k: K) -> (Vec<u8>, [Vec<f32>; 2]) {
        let encoder = Encoder::new(&self.params).expect("codes");
        let row_bytes = encoder.row_bytes();
        let mut rows = Rows { encoder, codes: vec![0xA5; row_bytes * self.rows.len()] };
        let mut buffer = Vec::new();
        for (row, code) in self.rows.iter().zip(rows.codes.chunks_mut(row_bytes)) {
            let rotated = rows.encoder.rotate(k, row, &mut buffer);
            rows.encoder.encode::<C>(rotated, code);
        }
        let space = Coded::<K, C, Rows>::new(k, &rows, &rows.encoder);
        let row = |id| space.row(id).expect("encoded");
        let (mut query, mut held) = (CodeQuery::default(), CodeQuery::default());
        rows.encoder.prepare::<C>(rows.encoder.rotate(k, &self.rows[0], &mut buffer), &mut query);
        rows.encoder.hold::<C>(row(0), &mut held);
        let mut out = [Vec::new(), Vec::new()];
        for (side, out) in [&query, &held].into_iter().zip(&mut out) {
            for id in 0..5 {
                out.push(space.distance(side, row(id)));
            }
            out.extend(space.distance_four(side, [row(1), row(2), row(3), row(4)]));
        }
        (rows.codes, out)
    }
}

fn vector(dim: usize, seed: u64) -> Vec<f32> {
    let unit = |n: u64| (mix(seed ^ mix(n)) >> 40) as f32 / (1u64 << 24) as f32;
    (0..dim as u64).map(|i| (0..6).map(|j| unit(8 * i + j)).sum::<f32>() - 3.0).collect()
}

fn normalised(mut row: Vec<f32>) -> Vec<f32> {
    let norm = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32;
    row.iter_mut().for_each(|v| *v /= norm.max(f32::MIN_POSITIVE));
    row
}

fn exact(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let pairs = a.iter().zip(b).map(|(x, y)| (f64::from(*x), f64::from(*y)));
    match metric {
        Metric::L2 => pairs.map(|(x, y)| (x - y) * (x - y)).sum(),
        Metric::Cosine | Metric::Dot => 1.0 - pairs.map(|(x, y)| x * y).sum::<f64>(),
    }
}

/// Checks one dimension: kernels agree, and distances are near the exact ones.
fn check(dim: usize, seed: u64) {
    for metric in METRICS {
        let rows: Vec<Vec<f32>> = (0..5)
            .map(|n| vector(dim, seed.wrapping_add(n)))
            .map(|row| if metric == Metric::Cosine { normalised(row) } else { row })
            .collect();
        let length = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        for codes in [Codes::Int8, Codes::Int4] {
            let params = Params { codes, ..Params::new(dim as u32, metric) };
            let (bytes, oracle) = Isa::SCALAR.run(Measure { params, rows: &rows });
            for isa in Isa::available() {
                let (found, distances) = isa.run(Measure { params, rows: &rows });
                let name = isa.name();
                // Lengths are summed in another order, which may move a rounding.
                let moved = found.iter().zip(&bytes).filter(|(a, b)| a != b).count();
                assert!(moved <= 16 * 5 + bytes.len() / 64, "{name} {codes:?} {dim}: {moved} bytes differ");
                for (side, oracle) in distances.iter().zip(&oracle) {
                    assert_eq!(side[1..5], side[5..9], "{name}: the same alone as among four");
                    for (n, (got, oracle)) in side.iter().zip(oracle).enumerate() {
                        let row = &rows[if n < 5 { n } else { n - 4 }];
                        let size = length(&rows[0]) * length(row);
                        let slack = if bytes == found { 1e-6 } else { 2e-3 };
                        assert!(f64::from((got - oracle).abs()) <= slack * (1.0 + size), "{name}: {got} {oracle}");
                        // Rounding errors add up like a random walk.
                        let per_element = if codes == Codes::Int8 { 0.05 } else { 0.7 };
                        // With itself, a row's rounding errors do not cancel out.
                        let itself = if n == 0 { 0.02 } else { 1e-5 };
                        let allowed = per_element * size / (dim as f64).sqrt() + itself * size;
                        let off = (f64::from(*got) - exact(metric, &rows[0], row)).abs();
                        let factor = if metric == Metric::L2 { 2.0 } else { 1.0 };
                        assert!(
                            off <= factor * allowed,
                            "{name} {codes:?} {metric:?} {dim}, row {n}: {off} > {allowed}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_kernel_measures_every_small_dimension() {
    for dim in 1..=if cfg!(miri) { 20 } else { 200 } {
        check(dim, dim as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 48 }))]
    #[test]
    fn every_kernel_measures_dimensions_up_to_4100(dim in 1usize..=4_100, seed: u64) {
        check(if cfg!(miri) { dim % 100 + 1 } else { dim }, seed);
    }
}

#[test]
fn rows_of_any_size_and_shape_have_finite_distances() {
    let shapes: [fn(usize) -> f32; 5] =
        [|_| 0.0, |_| 1.0, |i| if i == 7 { 1.0 } else { 0.0 }, |i| i as f32, |i| if i % 2 == 0 { 1.0 } else { -1.0 }];
    for dim in [20usize, 100, 128, 300] {
        for scale in [1e-38f32, 1e-20, 1.0, 1e15, 1e36] {
            let rows: Vec<Vec<f32>> = shapes.iter().map(|shape| (0..dim).map(|i| shape(i) * scale).collect()).collect();
            for codes in [Codes::Int8, Codes::Int4] {
                for metric in METRICS {
                    let params = Params { codes, ..Params::new(dim as u32, metric) };
                    for isa in Isa::available() {
                        let (_, [by_query, by_row]) = isa.run(Measure { params, rows: &rows });
                        assert!(by_query.iter().chain(&by_row).all(|d| d.is_finite()), "{codes:?} {metric:?} {scale}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_take_whole_lines() {
    for (codes, dim, bytes) in [
        (Codes::None, 1_024, 0),
        (Codes::Int8, 1, 64),
        (Codes::Int8, 48, 64),
        (Codes::Int8, 49, 128),
        (Codes::Int8, 100, 128),
        (Codes::Int8, 1_024, 1_088),
        (Codes::Int4, 100, 128),
        (Codes::Int4, 384, 256),
        (Codes::Int4, 1_024, 576),
        (Codes::Int4, 1_025, 640),
    ] {
        assert_eq!(codes.row_bytes(dim), bytes, "{codes:?}, {dim}");
    }
}

#[test]
fn kinds_have_names_and_bytes_of_their_own() {
    for codes in Codes::ALL {
        assert_eq!(Codes::from_name(codes.name()), Some(codes));
        assert_eq!(Codes::from_code(codes.code()), Some(codes));
    }
    assert_eq!(Codes::from_code(200), None);
    assert_eq!(Codes::from_name("pq"), None);
    assert_eq!(Codes::auto(8, Metric::L2), Codes::None);
    assert_eq!(Codes::auto(100, Metric::L2), Codes::Int8);
    assert_eq!(Codes::auto(1_024, Metric::Cosine), Codes::Int4);
    assert_eq!(Codes::auto(1 << 17, Metric::Cosine), Codes::None);
}

#[test]
fn order_by_code_is_nearly_order_by_distance() {
    let rows: Vec<Vec<f32>> = (0..5).map(|n| vector(512, n)).collect();
    // From the row itself to ever farther ones.
    let mixed = |part: f32| rows[0].iter().zip(&rows[1]).map(|(a, b)| a + part * (b - a)).collect::<Vec<f32>>();
    let rows = [0.0, 0.2, 0.4, 0.6, 1.0].map(mixed);
    for codes in [Codes::Int8, Codes::Int4] {
        let params = Params { codes, ..Params::new(512, Metric::L2) };
        let (_, [distances, _]) = Isa::detect().run(Measure { params, rows: &rows });
        let keys: Vec<Key> = distances[..5].iter().zip(0..).map(|(d, id)| Key::new(*d, id)).collect();
        assert!(keys.is_sorted(), "{codes:?}: {distances:?}");
    }
}
