//! Frozen graphs: what goes out comes back, and damage is met with an error or a
//! poorer answer, never with a panic.

use crate::common::{self, insert, search, search_stored};
use proptest::prelude::*;
use std::sync::OnceLock;
use vectide_graph::{
    ChunkedVectors, Codes, FrozenHeader, Graph, GraphError, GraphSections, MappedGraph, Metric, Nulls, Params, Query,
    Scratch, Section, VectorBlock, VectorTable, Vectors,
};

/// A stored graph as bytes.
#[derive(Clone)]
struct Stored {
    header: FrozenHeader,
    sections: Vec<Vec<u8>>,
}

impl Stored {
    fn of(graph: &Graph, table: &VectorTable<f32>) -> Self {
        let frozen = graph.freeze(table).expect("settled");
        let header = frozen.header();
        let sections = Section::ALL.map(|section| {
            let bytes: Vec<u8> = frozen.chunks(section).flatten().collect();
            assert_eq!(bytes.len() as u64, section.len(&header), "{section:?}");
            bytes
        });
        Self { header, sections: sections.into() }
    }

    fn open(&self) -> Result<MappedGraph, GraphError> {
        let [base, levels, starts, upper] = [0, 1, 2, 3].map(|n| self.sections[n].clone());
        let sections = GraphSections::new(base, levels, starts, upper);
        // Files from before there were codes have no such section.
        let sections = match self.header.params.codes {
            Codes::None => sections,
            _ => sections.with_codes(self.sections[5].clone()),
        };
        MappedGraph::open(self.header, sections)
    }
}

fn build(rows: usize, metric: Metric, valid: &dyn Fn(usize) -> bool) -> (VectorTable<f32>, Graph) {
    build_with(Codes::None, rows, metric, valid)
}

fn build_with(codes: Codes, rows: usize, metric: Metric, valid: &dyn Fn(usize) -> bool) -> (VectorTable<f32>, Graph) {
    let values = common::clustered(rows, 12, 20, 4, 41).values;
    let table = VectorTable::new(12, metric).expect("a dimension");
    let block = VectorBlock::borrowed(values, 12, metric, Some(valid)).expect("whole rows");
    table.append(block).expect("room");
    let params = Params { m: 4, seed: 3, ef_construction: 40, codes, ..Params::new(12, metric) };
    let graph = Graph::new(params).expect("valid settings");
    let mut scratch = Scratch::new();
    for id in 0..table.len() {
        insert(&graph, &table, id, &mut scratch).expect("a row");
    }
    (table, graph)
}

fn chunked(table: &VectorTable<f32>, inv_norms: Option<&[u8]>) -> ChunkedVectors<f32> {
    let mut nulls = Vec::new();
    let mut values = Vec::new();
    for id in 0..table.len() {
        match table.get(id) {
            Some(row) => values.extend_from_slice(row),
            None => {
                nulls.push(id);
                values.extend([0.0; 12]);
            }
        }
    }
    let chunks: Vec<Vec<f32>> = values.chunks(256 * 12).map(<[f32]>::to_vec).collect();
    let vectors = ChunkedVectors::new(12, 256, chunks, Nulls::ids(nulls)).expect("lengths fit");
    match inv_norms {
        Some(norms) => vectors.with_inv_norms(norms.to_vec()).expect("lengths fit"),
        None => vectors,
    }
}

#[test]
fn a_mapped_graph_answers_like_the_live_one() {
    let metrics = [Metric::L2, Metric::Cosine, Metric::Dot];
    for (metric, codes) in metrics.into_iter().flat_map(|metric| Codes::ALL.map(|codes| (metric, codes))) {
        let valid = |row: usize| row % 13 != 5 && !(1_024..2_048).contains(&row);
        let (table, graph) = build_with(codes, 3_000, metric, &valid);
        let stored = Stored::of(&graph, &table);
        let mapped = stored.open().expect("intact");
        mapped.verify().expect("intact");
        assert_eq!(FrozenHeader::from_bytes(&stored.header.to_bytes()), Ok(stored.header));
        let norms = (metric == Metric::Cosine).then_some(&stored.sections[4][..]);
        let vectors = chunked(&table, norms);
        let mut scratch = Scratch::new();
        for id in (0..3_000).step_by(31).filter(|&id| valid(id)) {
            let row = table.get(id as u32).expect("a valid row");
            let query = Query::new(metric, 12, row).expect("a query");
            let live = search(&graph, &table, &query, 10, 40, &|id| id % 3 != 0, &mut scratch);
            let cold = search_stored(&mapped, &vectors, &query, 10, 40, &|id| id % 3 != 0, &mut scratch);
            assert_eq!(live, cold, "{metric:?}, {codes:?}, row {id}");
        }
        assert_eq!(mapped.bad_links(), 0);
        assert_eq!(mapped.unreachable(), []);
    }
}

#[test]
fn graphs_without_a_node_or_with_one_survive_the_way() {
    for rows in [0, 1, 5] {
        let (table, graph) = build(rows, Metric::L2, &|row| row == 0);
        let stored = Stored::of(&graph, &table);
        let mapped = stored.open().expect("intact");
        mapped.verify().expect("intact");
        let query = Query::new(Metric::L2, 12, &[0.0; 12]).expect("a query");
        let vectors = chunked(&table, None);
        let hits = search_stored(&mapped, &vectors, &query, 10, 10, &|_| true, &mut Scratch::new());
        assert_eq!(hits.len(), rows.min(1));
    }
}

#[test]
fn a_graph_is_frozen_only_once_every_row_is_in_it() {
    let table = common::clustered(10, 12, 2, 2, 1).table(Metric::L2);
    let graph = Graph::new(Params::new(12, Metric::L2)).expect("valid settings");
    let mut scratch = Scratch::new();
    for id in (0..10).filter(|&id| id != 4) {
        insert(&graph, &table, id, &mut scratch).expect("a row");
    }
    let refused = graph.freeze(&table).err();
    assert_eq!(refused, Some(GraphError::NotSettled { settled: 4, rows: 10 }));
    insert(&graph, &table, 4, &mut scratch).expect("a row");
    assert!(graph.freeze(&table).is_ok());
}

#[test]
fn verify_names_what_is_damaged() {
    let (table, graph) = build(600, Metric::L2, &|row| row != 9);
    let stored = Stored::of(&graph, &table);
    let damage = |section: usize, at: usize, bytes: &[u8]| {
        let mut damaged = stored.clone();
        damaged.sections[section][at..at + bytes.len()].copy_from_slice(bytes);
        let mapped = damaged.open().expect("lengths are intact");
        mapped.verify().expect_err("damaged").to_string()
    };
    let stride = 8 * 4;
    let link_of_7 = |to: u32| damage(0, 7 * stride, &to.to_le_bytes());
    assert_eq!(link_of_7(600), "graph section base links: row 7, level 0: a link to 600");
    assert_eq!(link_of_7(7), "graph section base links: row 7, level 0: a link to 7");
    assert_eq!(link_of_7(9), "graph section base links: row 7, level 0: a link to 9");
    assert_eq!(link_of_7(u32::MAX), "graph section base links: row 7, level 0: a link after the end of the row");
    assert_eq!(
        damage(0, 9 * stride, &1u32.to_le_bytes()),
        "graph section base links: row 9, level 0: 1 links, but no vector"
    );
    assert!(damage(1, 20, &[0x40]).contains("levels: row 20 has level 0x40"));
    assert!(damage(2, 4, &[0xFF; 4]).contains("upper starts: run 1"));
    let mut short = stored.clone();
    short.sections[0].pop();
    let refused = short.open().err().expect("too short").to_string();
    assert_eq!(refused, "graph section base links: 19199 bytes, expected 19200");
}

#[test]
fn a_header_that_contradicts_itself_is_refused() {
    let (table, graph) = build(50, Metric::L2, &|_| true);
    let good = Stored::of(&graph, &table).header;
    for (at, byte, what) in [
        (0, b'x', "magic"),
        (8, 2, "version 2, this reads 1"),
        (10, 7, "metric 7 at byte 10"),
        (12, 1, "m must be 2 to 128, got 1"),
        (32, 49, "50 nodes in 49 rows"),
        (40, 200, "with entry point 200"),
        (48, 99, "codes 99 at byte 48"),
    ] {
        let mut bytes = good.to_bytes();
        bytes[at] = byte;
        let refused = FrozenHeader::from_bytes(&bytes).expect_err("damaged").to_string();
        assert!(refused.contains(what), "{refused}");
    }
    assert!(FrozenHeader::from_bytes(&good.to_bytes()[..63]).is_err());
}

/// A small stored graph of every kind, built once.
fn samples() -> &'static [(Stored, ChunkedVectors<f32>)] {
    static SAMPLES: OnceLock<Vec<(Stored, ChunkedVectors<f32>)>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let sample = |codes| {
            let (table, graph) = build_with(codes, 400, Metric::Dot, &|row| row % 50 != 3);
            (Stored::of(&graph, &table), chunked(&table, None))
        };
        Codes::ALL.map(sample).into()
    })
}

proptest! {
    #[test]
    fn no_damage_makes_a_search_panic(
        which in 0..Codes::ALL.len(),
        changes in prop::collection::vec((0usize..6, any::<prop::sample::Index>(), any::<u8>()), 1..40),
        header in prop::collection::vec((0usize..64, any::<u8>()), 0..2),
        cut in prop::option::of((0usize..6, any::<prop::sample::Index>())),
    ) {
        let (stored, vectors) = &samples()[which];
        let mut stored = stored.clone();
        for (section, at, byte) in changes {
            let section = &mut stored.sections[section];
            if !section.is_empty() {
                let at = at.index(section.len());
                section[at] = byte;
            }
        }
        if let Some((section, at)) = cut {
            let len = at.index(stored.sections[section].len().max(1));
            stored.sections[section].truncate(len);
        }
        let mut bytes = stored.header.to_bytes();
        for (at, byte) in header {
            bytes[at] = byte;
        }
        let opened = FrozenHeader::from_bytes(&bytes).and_then(|header| {
            Stored { header, ..stored }.open()
        });
        if let Ok(mapped) = opened {
            let _ = mapped.verify();
            let params = mapped.header().params;
            if params.dim == 12 {
                let query = Query::new(params.metric, 12, &[0.3; 12]).expect("a query");
                let hits = search_stored(&mapped, vectors, &query, 10, 40, &|_| true, &mut Scratch::new());
                prop_assert!(hits.len() <= 10 && hits.is_sorted());
                prop_assert!(hits.iter().all(|hit| vectors.get(hit.id).is_some()));
            }
        }
    }
}
