//! Graphs with compact codes: they find what exact traversal finds, on data that
//! is unkind to codes, and while others write.

use crate::common::{self, Random, Rows};
use vectide_graph::{Codes, Compiled, Graph, Metric, Params, Query, Scratch, VectorTable, Vectors};

fn build(table: &VectorTable<f32>, params: Params) -> Graph {
    let graph = Graph::new(params).expect("valid settings");
    let mut scratch = Scratch::new();
    for id in 0..table.len() {
        f32::insert(&graph, table, id, &mut scratch).expect("a row");
    }
    assert_eq!(graph.unreachable(), [], "{:?}", params.codes);
    graph
}

/// The share of the true ten nearest that is found, distances counting, since
/// copies are as good as each other.
fn recall(graph: &Graph, table: &VectorTable<f32>, queries: &Rows, ef: usize) -> f64 {
    let mut scratch = Scratch::new();
    let mut found = 0;
    for n in 0..queries.len() {
        let query = Query::new(graph.params().metric, graph.params().dim, queries.row(n)).expect("a query");
        let truth = f32::scan_live(table, &query, 0..table.len(), &|_| true, 10, &mut scratch);
        let hits = f32::search_live((graph, table), &query, 10, ef, &|_| true, &mut scratch);
        assert_eq!(hits.len(), 10);
        assert!(hits.is_sorted(), "nearest first");
        let farthest = truth[9].distance;
        found += hits.iter().filter(|hit| hit.distance <= farthest).count();
    }
    found as f64 / (10 * queries.len()) as f64
}

/// Recall by codes is within 0.01 of recall by exact distances, at `ef` 64.
fn check(name: &str, rows: Rows, metric: Metric) {
    let dim = rows.dim as u32;
    let count = rows.len() - 200;
    let (rows, queries) = rows.split(count);
    let table = rows.table(metric);
    let params = Params::new(dim, metric);
    let exact = recall(&build(&table, params), &table, &queries, 64);
    for codes in [Codes::Int8, Codes::Int4] {
        let coded = recall(&build(&table, Params { codes, ..params }), &table, &queries, 64);
        println!("{name}, {dim}-d, {metric:?}: {exact:.4} exact, {coded:.4} by {}", codes.name());
        if codes == Codes::auto(dim, metric) {
            assert!(coded >= exact - 0.01, "{name}, {dim}-d, {metric:?}, {codes:?}: {coded} against {exact}");
        }
    }
}

/// Clustered rows of a dimension, changed one by one.
fn changed(dim: usize, change: impl Fn(usize, &mut [f32], &mut Random)) -> Rows {
    let mut rows = common::clustered(1_700, dim, 30, 12, 77);
    let mut random = Random(3);
    // The queries, at the end, are changed like the others.
    for (id, row) in rows.values.chunks_mut(dim).enumerate() {
        change(id, row, &mut random);
    }
    rows
}

const DIMS: [usize; 2] = [96, 256];

#[test]
fn near_duplicates() {
    for dim in DIMS {
        let originals = common::clustered(60, dim, 10, 8, 5);
        for metric in [Metric::L2, Metric::Cosine] {
            let rows = changed(dim, |id, row, random| {
                row.copy_from_slice(originals.row(id % 60));
                row.iter_mut().for_each(|v| *v += 2e-3 * random.normal());
            });
            check("near duplicates", rows, metric);
        }
    }
}

#[test]
fn a_far_outlier_that_came_first() {
    for dim in DIMS {
        let rows = changed(dim, |id, row, _| {
            if id == 0 {
                row.iter_mut().for_each(|v| *v = 1e4 * (*v + 1.0));
            }
        });
        check("an outlier", rows, Metric::L2);
    }
}

#[test]
fn norms_a_hundredfold_apart() {
    for dim in DIMS {
        for metric in [Metric::L2, Metric::Dot] {
            let rows = changed(dim, |_, row, random| {
                let scale = 10f32.powf(2.0 * random.unit() - 1.0);
                row.iter_mut().for_each(|v| *v *= scale);
            });
            check("different norms", rows, metric);
        }
    }
}

#[test]
fn constant_dimensions_and_a_common_offset() {
    for dim in DIMS {
        for metric in [Metric::L2, Metric::Cosine] {
            let rows = changed(dim, |_, row, _| row[..dim / 2].fill(3.0));
            check("constant dimensions", rows, metric);
            let rows = changed(dim, |_, row, _| row.iter_mut().for_each(|v| *v += 30.0));
            check("an offset", rows, metric);
        }
    }
}

#[test]
fn first_rows_unlike_the_later_ones() {
    for dim in DIMS {
        let rows = changed(dim, |id, row, _| {
            if id < 400 {
                row.iter_mut().for_each(|v| *v = 0.2 * *v + 8.0);
            }
        });
        check("other first rows", rows, Metric::L2);
    }
}

#[test]
fn sparse_rows() {
    for dim in DIMS {
        let rows = changed(dim, |_, row, random| {
            row.iter_mut().for_each(|v| {
                if random.unit() > 0.06 {
                    *v = 0.0;
                }
            });
            row[0] += 0.1;
        });
        check("sparse", rows, Metric::Cosine);
    }
}

#[test]
fn glove_by_every_kind() {
    let (rows, queries) = common::glove().split(5_000);
    let queries = Rows { dim: 100, values: queries.values[..200 * 100].to_vec() };
    let table = rows.table(Metric::Cosine);
    let params = Params::new(100, Metric::Cosine);
    let exact = recall(&build(&table, params), &table, &queries, 64);
    for codes in [Codes::Int8, Codes::Int4] {
        let coded = recall(&build(&table, Params { codes, ..params }), &table, &queries, 64);
        assert!(coded >= exact - 0.01, "{codes:?}: {coded} against {exact}");
    }
}

#[test]
fn rows_are_found_while_others_are_inserted() {
    let rows = common::clustered(3_000, 64, 40, 10, 21);
    let table = rows.table(Metric::Cosine);
    for codes in [Codes::Int8, Codes::Int4] {
        let params = Params { codes, ..Params::new(64, Metric::Cosine) };
        let graph = Graph::new(params).expect("valid settings");
        std::thread::scope(|scope| {
            for worker in 0..3u32 {
                let (graph, table) = (&graph, &table);
                scope.spawn(move || {
                    let mut scratch = Scratch::new();
                    for id in (worker..table.len()).step_by(3) {
                        f32::insert(graph, table, id, &mut scratch).expect("a row");
                    }
                });
            }
            for searcher in 0..2u64 {
                let (graph, table, rows) = (&graph, &table, &rows);
                scope.spawn(move || {
                    let mut scratch = Scratch::new();
                    let mut random = Random(searcher);
                    let (mut asked, mut missed) = (0, 0);
                    while graph.prefix() < table.len() {
                        let done = graph.prefix();
                        if done == 0 {
                            std::thread::yield_now();
                            continue;
                        }
                        // A row whose insert had returned is its own nearest.
                        let id = (random.next() % u64::from(done)) as u32;
                        let query = Query::new(Metric::Cosine, 64, rows.row(id as usize)).expect("a query");
                        let hits = f32::search_live((graph, table), &query, 5, 48, &|_| true, &mut scratch);
                        assert!(!hits.is_empty());
                        asked += 1;
                        missed += u32::from(!hits.iter().any(|hit| hit.id == id));
                    }
                    assert!(missed * 50 <= asked, "{missed} of {asked} rows were not found");
                });
            }
        });
        assert_eq!(graph.unreachable(), []);
        let queries = Rows { dim: 64, values: rows.values[..100 * 64].to_vec() };
        let found = recall(&graph, &table, &queries, 64);
        assert!(found >= 0.97, "{codes:?}: {found}");
    }
}

#[test]
fn filters_hold_with_codes() {
    let rows = common::clustered(2_000, 64, 20, 8, 4);
    let table = rows.table(Metric::L2);
    let graph = build(&table, Params { codes: Codes::Int4, ..Params::new(64, Metric::L2) });
    let mut scratch = Scratch::new();
    let query = Query::new(Metric::L2, 64, rows.row(7)).expect("a query");
    for every in [2u32, 50, 400] {
        let hits = f32::search_live((&graph, &table), &query, 5, 64, &|id| id % every == 0, &mut scratch);
        assert_eq!(hits.len(), 5);
        assert!(hits.iter().all(|hit| hit.id % every == 0));
    }
    let all = f32::search_live((&graph, &table), &query, 2_000, 64, &|_| true, &mut scratch);
    assert_eq!(all.len(), 2_000, "as many as are asked for");
}

#[test]
fn a_row_costs_what_its_parts_cost() {
    let count = 6_000;
    let mut random = Random(9);
    let values: Vec<f32> = (0..count * 16).map(|_| random.unit()).collect();
    let table = Rows { dim: 16, values }.table(Metric::Cosine);
    for codes in Codes::ALL {
        // Links alone decide: a wider code has a table of a smaller dimension stand in.
        let params = Params { codes, ef_construction: 10, ..Params::new(16, Metric::Cosine) };
        let graph = build(&table, params);
        let bytes = graph.memory_bytes() as f64 / count as f64 - codes.row_bytes(16) as f64;
        assert!(bytes <= 225.0, "{codes:?}: {bytes:.1} beside the code");
    }
    // At 1,024 dimensions and m = 16, code and links together.
    assert!(Codes::Int4.row_bytes(1_024) + 225 <= 820);
    assert!(Codes::Int8.row_bytes(1_024) + 225 <= 1_350);
}

#[test]
fn a_table_of_one_row_costs_little() {
    let table = Rows { dim: 1_024, values: vec![1.0; 1_024] }.table(Metric::Cosine);
    let graph = build(&table, Params { codes: Codes::Int4, ..Params::new(1_024, Metric::Cosine) });
    assert!(graph.memory_bytes() < 60 << 10, "{}", graph.memory_bytes());
    let graph = build(&table, Params::new(1_024, Metric::Cosine));
    assert!(graph.memory_bytes() < 20 << 10, "{}", graph.memory_bytes());
}

#[test]
fn dimensions_beyond_the_sums_are_refused() {
    let params = Params { codes: Codes::Int8, ..Params::new(65_537, Metric::L2) };
    let refused = Graph::new(params).err().expect("too large").to_string();
    assert_eq!(refused, "dim must be 1 to 65536 with codes, got 65537");
}
