//! Entry point of the fuzzer: any bytes as a stored graph. Nothing may panic, run
//! on, or read outside of the sections; hits lead to rows.

use crate::freeze::{FrozenHeader, HEADER_BYTES, Section};
use crate::hit::Hit;
use crate::mapped::{GraphSections, MappedGraph};
use crate::params::{Metric, mix};
use crate::query::Query;
use crate::scratch::Scratch;
use crate::search::search;
use crate::vectors::{ChunkedVectors, Nulls};

/// Rows, dimensions and links that a fuzzed graph has at most: damage needs no
/// more, and opening stays fast.
const MOST_ROWS: u32 = 512;
const MOST_DIM: u32 = 160;
const MOST_M: u16 = 12;

/// Opens `bytes` as a graph, twice: as they are, which is mostly refused, and with
/// a header brought into range and sections of the right length, so that what is
/// in them is met by a search. Searches whatever opens.
///
/// # Panics
/// If a search breaks its promise.
pub fn mapped(bytes: &[u8]) {
    let (header, rest) = bytes.split_at(bytes.len().min(HEADER_BYTES));
    let thirds = rest.len() / 3;
    if let Ok(header) = FrozenHeader::from_bytes(header) {
        let part = |n: usize| rest[n * thirds..(n + 1) * thirds].to_vec();
        let sections = GraphSections::new(part(0), part(1), part(2), Vec::new());
        let _ = MappedGraph::open(header, sections).map(|graph| graph.verify());
    }
    if let Ok(header) = FrozenHeader::from_bytes(&in_range(header)) {
        let section = |section: Section| {
            let len = section.len(&header) as usize;
            rest.iter().copied().chain(std::iter::repeat_n(0, len)).cycle().take(len).collect::<Vec<u8>>()
        };
        let sections = GraphSections::new(
            section(Section::BaseLinks),
            section(Section::Levels),
            section(Section::UpperStarts),
            section(Section::UpperLinks),
        );
        let graph = MappedGraph::open(header, sections.with_codes(section(Section::Codes)));
        walk(&graph.expect("the sections have the lengths that the header says"));
    }
}

/// A header like `bytes` that describes a small graph.
fn in_range(bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..bytes.len()].copy_from_slice(bytes);
    header[..8].copy_from_slice(b"vtgraph\0");
    header[8..10].copy_from_slice(&1u16.to_le_bytes());
    header[10] %= 3;
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    let (m, dim, rows) = (u16_at(12) % (MOST_M - 1) + 2, u32_at(16) % MOST_DIM + 1, u32_at(32) % MOST_ROWS + 1);
    let (nodes, entry, upper_rows) = (u32_at(36) % rows + 1, u32_at(40) % rows, u32_at(44) % MOST_ROWS);
    header[12..14].copy_from_slice(&m.to_le_bytes());
    for (at, value) in [(16, dim), (20, 10), (32, rows), (36, nodes), (40, entry), (44, upper_rows)] {
        header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    header[48] %= crate::codes::Codes::ALL.len() as u8;
    header
}

fn walk(graph: &MappedGraph) {
    let _ = graph.verify();
    let header = *graph.header();
    let (dim, metric, rows) = (header.params.dim, header.params.metric, header.rows);
    let value = |n: u64| (mix(n) >> 40) as f32 / 1e6 - 8.0;
    let values: Vec<f32> = (0..u64::from(rows) * u64::from(dim)).map(value).collect();
    let vectors = ChunkedVectors::new(
        dim,
        64,
        values.chunks(64 * dim as usize).map(<[f32]>::to_vec).collect(),
        Nulls::ids(vec![1]),
    );
    let mut vectors = vectors.expect("whole chunks");
    if metric == Metric::Cosine {
        let norms = (0..rows).flat_map(|_| 1f32.to_le_bytes()).collect::<Vec<u8>>();
        vectors = vectors.with_inv_norms(norms).expect("one per row");
    }
    let query: Vec<f32> = (0..u64::from(dim)).map(|n| value(n ^ 77)).collect();
    let query = Query::new(metric, dim, &query).expect("finite and not zero");
    let mut scratch = Scratch::new();
    for (k, ef) in [(1, 1), (10, 40), (rows as usize, 8)] {
        let hits: Vec<Hit> = search(graph, &vectors, &query, k, ef, &|id| id % 5 != 3, &mut scratch);
        assert!(hits.len() <= k && hits.is_sorted());
        assert!(hits.iter().all(|hit| hit.id < rows && hit.id % 5 != 3 && hit.id != 1 && !hit.distance.is_nan()));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_walked_or_refused() {
        mapped(&[]);
        mapped(&[0; 64]);
        for seed in 0..if cfg!(miri) { 3 } else { 400u64 } {
            let len = mix(seed) % 4_000;
            // Small numbers, which make links that lead somewhere, among any bytes.
            let byte = |n: u64| if mix(seed ^ n).is_multiple_of(3) { 0 } else { mix(seed << 20 | n) as u8 };
            mapped(&(0..len).map(byte).collect::<Vec<u8>>());
        }
    }
}
