//! Recall, reachability and memory, on real and on adverse data.

use crate::common::{self, Random, Rows, exact, insert, search};
use vectide_graph::{
    Compiled, Graph, Isa, Metric, Params, Query, Scratch, VectorBlock, VectorTable, Vectors, pairwise,
};

/// A graph over all rows of a table, built by one thread.
fn build<E: Compiled>(table: &VectorTable<E>, params: Params) -> Graph {
    let graph = Graph::new(params).expect("valid settings");
    let mut scratch = Scratch::new();
    for id in 0..table.len() {
        insert(&graph, table, id, &mut scratch).expect("a row");
    }
    graph
}

fn build_in_parallel<E: Compiled>(table: &VectorTable<E>, params: Params, threads: u32) -> Graph {
    let graph = Graph::new(params).expect("valid settings");
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let graph = &graph;
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                for id in (thread..table.len()).step_by(threads as usize) {
                    insert(graph, table, id, &mut scratch).expect("a row");
                }
            });
        }
    });
    graph
}

fn recall_at_10<E: Compiled>(graph: &Graph, table: &VectorTable<E>, queries: &Rows, ef: usize) -> f64 {
    let metric = graph.params().metric;
    let mut scratch = Scratch::new();
    let mut found = 0;
    for n in 0..queries.len() {
        let query = Query::new(metric, graph.params().dim, queries.row(n)).expect("a query");
        let truth = exact(table, &query, 0..table.len(), &|_| true, 10, &mut scratch);
        let hits = search(graph, table, &query, 10, ef, &|_| true, &mut scratch);
        assert!(hits.is_sorted(), "nearest first");
        found += hits.iter().filter(|hit| truth.contains(hit)).count();
        assert!(hits.iter().all(|hit| pairwise(table, &query, hit.id, &mut scratch) == Some(hit.distance)));
    }
    found as f64 / (10 * queries.len()) as f64
}

#[test]
fn recall_on_glove_is_above_its_floor() {
    let (rows, rest) = common::glove().split(24_800);
    for metric in [Metric::Cosine, Metric::L2] {
        let table = rows.table(metric);
        let graph = build_in_parallel(&table, Params::new(100, metric), 2);
        let recall = recall_at_10(&graph, &table, &rest, 100);
        assert!(recall >= 0.97, "{metric:?}: {recall}");
        assert_eq!(graph.len(), 24_800);
        assert_eq!(graph.prefix(), 24_800);
    }
}

#[test]
fn all_raw_glove_rows_stay_reachable_under_l2_with_four_workers() {
    let table = common::glove().table(Metric::L2);
    let graph = build_in_parallel(&table, Params::new(100, Metric::L2), 4);
    assert_eq!(graph.unreachable(), []);
    let report = Compiled::repair(&graph, &table, &mut Scratch::new());
    assert_eq!((report.nodes, report.unreachable, report.linked), (25_000, 0, 0));
}

#[test]
fn all_clustered_rows_stay_reachable_with_four_workers() {
    let rows = common::clustered(20_000, 32, 50, 6, 11);
    let table = rows.table(Metric::L2);
    let graph = build_in_parallel(&table, Params::new(32, Metric::L2), 4);
    assert_eq!(graph.unreachable(), []);
}

#[test]
fn dot_products_of_very_different_norms_are_found() {
    let mut rows = common::clustered(4_100, 48, 40, 8, 3);
    let mut random = Random(5);
    for row in rows.values.chunks_mut(48) {
        let scale = 10f32.powf(2.0 * random.unit() - 1.0);
        row.iter_mut().for_each(|v| *v *= scale);
    }
    let (rows, queries) = rows.split(4_000);
    let table = rows.table(Metric::Dot);
    let graph = build(&table, Params::new(48, Metric::Dot));
    assert_eq!(graph.unreachable(), []);
    let recall = recall_at_10(&graph, &table, &queries, 128);
    assert!(recall >= 0.9, "{recall}");
}

#[test]
fn half_precision_rows_are_found_like_full_ones() {
    let (rows, queries) = common::glove().split(5_000);
    let halves: Vec<half::f16> = rows.values.iter().map(|v| half::f16::from_f32(*v)).collect();
    let table = VectorTable::new(100, Metric::Cosine).expect("a dimension");
    let block = VectorBlock::borrowed(halves, 100, Metric::Cosine, None).expect("whole rows");
    table.append(block).expect("room");
    let graph = build(&table, Params::new(100, Metric::Cosine));
    let queries = Rows { dim: 100, values: queries.values[..200 * 100].to_vec() };
    let recall = recall_at_10(&graph, &table, &queries, 100);
    assert!(recall >= 0.97, "{recall}");
}

#[test]
fn every_instruction_level_builds_a_graph_of_the_same_quality() {
    let (rows, queries) = common::glove().split(3_000);
    let queries = Rows { dim: 100, values: queries.values[..100 * 100].to_vec() };
    let table = rows.table(Metric::Cosine);
    for isa in Isa::available() {
        let graph = Graph::new(Params::new(100, Metric::Cosine)).expect("valid settings");
        let mut scratch = Scratch::with_isa(isa);
        for id in 0..table.len() {
            insert(&graph, &table, id, &mut scratch).expect("a row");
        }
        let recall = recall_at_10(&graph, &table, &queries, 64);
        assert!(recall >= 0.97, "{}: {recall}", isa.name());
    }
}

#[test]
fn near_copies_and_far_rows_are_all_found() {
    let mut random = Random(1);
    let centre: Vec<f32> = (0..32).map(|_| random.normal()).collect();
    let mut values = Vec::new();
    for n in 0..80 {
        let spread = if n < 60 { 1e-4 } else { 3.0 };
        values.extend(centre.iter().map(|c| c + spread * random.normal()));
    }
    for metric in [Metric::L2, Metric::Cosine] {
        let rows = Rows { dim: 32, values: values.clone() };
        let table = rows.table(metric);
        let graph = build(&table, Params { m: 48, ..Params::new(32, metric) });
        let query = Query::new(metric, 32, &centre).expect("a query");
        let hits = search(&graph, &table, &query, 80, 160, &|_| true, &mut Scratch::new());
        let mut ids: Vec<u32> = hits.iter().map(|hit| hit.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..80).collect::<Vec<u32>>(), "{metric:?}");
    }
}

#[test]
fn thousands_of_identical_vectors_are_all_reachable_and_found() {
    let rows = Rows { dim: 8, values: vec![0.5; 8 * 5_000] };
    for m in [2, 16] {
        let table = rows.table(Metric::Cosine);
        let params = Params { m, ..Params::new(8, Metric::Cosine) };
        let graph = build_in_parallel(&table, params, 2);
        assert_eq!(graph.unreachable(), [], "m = {m}");
        let query = Query::new(Metric::Cosine, 8, &[0.5; 8]).expect("a query");
        let hits = search(&graph, &table, &query, 5_000, 5_000, &|_| true, &mut Scratch::new());
        assert_eq!(hits.len(), 5_000, "m = {m}");
    }
}

#[test]
fn ef_as_large_as_the_graph_finds_exactly_the_nearest() {
    let (rows, queries) = common::clustered(1_550, 24, 30, 4, 9).split(1_500);
    for metric in [Metric::L2, Metric::Dot] {
        let table = rows.table(metric);
        let graph = build(&table, Params { m: 4, ..Params::new(24, metric) });
        let recall = recall_at_10(&graph, &table, &queries, 1_500);
        assert_eq!(recall, 1.0, "{metric:?}");
    }
}

#[test]
fn distances_are_those_of_the_metric_in_the_rows_own_scale() {
    let table = Rows { dim: 2, values: vec![3.0, 4.0, 0.0, 2.0] }.table(Metric::Cosine);
    let query = Query::new(Metric::Cosine, 2, &[0.0, 10.0]).expect("a query");
    let mut scratch = Scratch::new();
    let near = |got: Option<f32>, expected: f32| (got.expect("a row") - expected).abs() < 1e-6;
    assert!(near(pairwise(&table, &query, 0, &mut scratch), 0.2));
    assert!(near(pairwise(&table, &query, 1, &mut scratch), 0.0));
    assert_eq!(pairwise(&table, &query, 2, &mut scratch), None);
    let table = Rows { dim: 2, values: vec![3.0, 4.0] }.table(Metric::L2);
    let query = Query::new(Metric::L2, 2, &[0.0, 0.0]).expect("a query");
    assert_eq!(pairwise(&table, &query, 0, &mut scratch), Some(25.0));
    let table = Rows { dim: 2, values: vec![3.0, 4.0] }.table(Metric::Dot);
    let query = Query::new(Metric::Dot, 2, &[1.0, 2.0]).expect("a query");
    assert_eq!(pairwise(&table, &query, 0, &mut scratch), Some(-10.0));
}

#[test]
fn a_build_replays_bit_for_bit() {
    let table = common::clustered(3_000, 16, 20, 4, 2).table(Metric::L2);
    let params = Params { seed: 42, ..Params::new(16, Metric::L2) };
    let bytes = |graph: &Graph| {
        let frozen = graph.freeze(&table).expect("settled");
        frozen.chunks(vectide_graph::Section::BaseLinks).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&build(&table, params)), bytes(&build(&table, params)));
}

#[test]
fn rows_may_come_in_any_order_and_null_rows_only_move_the_prefix() {
    let values = common::clustered(3_000, 16, 20, 4, 8).values;
    let table = VectorTable::new(16, Metric::L2).expect("a dimension");
    let valid = |row: usize| !row.is_multiple_of(10) && !(1_000..2_100).contains(&row);
    let block = VectorBlock::borrowed(values, 16, Metric::L2, Some(&valid)).expect("whole rows");
    table.append(block).expect("room");
    let graph = Graph::new(Params::new(16, Metric::L2)).expect("valid settings");
    let mut scratch = Scratch::new();
    for id in (1..3_000).rev() {
        let added = insert(&graph, &table, id, &mut scratch).expect("a row");
        assert_eq!(added, valid(id as usize));
        assert!(!insert(&graph, &table, id, &mut scratch).expect("a row"), "inserted before");
    }
    assert_eq!(graph.prefix(), 0);
    insert(&graph, &table, 0, &mut scratch).expect("a row");
    assert_eq!(graph.prefix(), 3_000);
    assert_eq!(graph.len() as usize, (0..3_000).filter(|&row| valid(row)).count());
    assert!(graph.contains(2_999) && !graph.contains(1_500));
    assert_eq!(graph.unreachable(), []);
    assert_eq!(graph.level_histogram().iter().sum::<u32>(), graph.len());
    let query = Query::new(Metric::L2, 16, &[0.0; 16]).expect("a query");
    let hits = search(&graph, &table, &query, 3_000, 3_000, &|_| true, &mut scratch);
    assert_eq!(hits.len() as u32, graph.len());
}

#[test]
fn an_empty_graph_finds_nothing_and_bad_inserts_are_refused() {
    let table = VectorTable::<f32>::new(4, Metric::L2).expect("a dimension");
    let graph = Graph::new(Params::new(4, Metric::L2)).expect("valid settings");
    let mut scratch = Scratch::new();
    let query = Query::new(Metric::L2, 4, &[0.0; 4]).expect("a query");
    assert_eq!(search(&graph, &table, &query, 10, 64, &|_| true, &mut scratch), []);
    assert_eq!(exact(&table, &query, 0..10, &|_| true, 10, &mut scratch), []);
    assert_eq!((graph.len(), graph.entry(), graph.is_empty()), (0, None, true));
    let missing = insert(&graph, &table, 0, &mut scratch).expect_err("no such row");
    assert_eq!(missing.to_string(), "row 0 is not among the 0 rows of the vectors");
    let other = VectorTable::<f32>::new(5, Metric::L2).expect("a dimension");
    assert!(insert(&graph, &other, 0, &mut scratch).is_err());
    assert!(graph.freeze(&table).is_ok(), "an empty graph can be written");
}

#[test]
fn a_row_costs_at_most_230_bytes_beyond_itself() {
    for count in [10_000usize, 25_000] {
        let rows = common::clustered(count, 8, 50, 4, 4);
        let table = VectorTable::new(8, Metric::Cosine).expect("a dimension");
        for row in rows.values.chunks(8) {
            let block = VectorBlock::copied(row.to_vec(), 8, Metric::Cosine, None);
            table.append(block.expect("a row")).expect("room");
        }
        let params = Params { ef_construction: 20, ..Params::new(8, Metric::Cosine) };
        let graph = build_in_parallel(&table, params, 2);
        let graph_bytes = graph.memory_bytes() as f64 / count as f64;
        let table_bytes = table.memory_bytes().bookkeeping as f64 / count as f64;
        assert!(
            graph_bytes + table_bytes <= 230.0,
            "{count} rows: {graph_bytes:.1} in the graph, {table_bytes:.1} in the table"
        );
    }
    let tiny = Graph::new(Params::new(8, Metric::L2)).expect("valid settings");
    assert!(tiny.memory_bytes() < 1_024, "nothing is preallocated");
}
