//! Filters and dead rows inside the traversal.

use crate::common::{self, exact, insert, search};
use std::cell::RefCell;
use std::collections::HashSet;
use vectide_graph::{Graph, Metric, Params, Query, Scratch, VectorTable, Vectors, exact_of};

fn build(rows: &common::Rows) -> (VectorTable<f32>, Graph) {
    let table = rows.table(Metric::L2);
    let graph = Graph::new(Params::new(rows.dim as u32, Metric::L2)).expect("valid settings");
    let mut scratch = Scratch::new();
    for id in 0..table.len() {
        insert(&graph, &table, id, &mut scratch).expect("a row");
    }
    (table, graph)
}

#[test]
fn ten_live_rows_come_back_when_the_nearest_hundred_are_dead() {
    let rows = common::clustered(1_000, 32, 10, 6, 21);
    let (table, graph) = build(&rows);
    let mut scratch = Scratch::new();
    for n in (0..1_000).step_by(50) {
        let query = Query::new(Metric::L2, 32, rows.row(n)).expect("a query");
        let nearest = exact(&table, &query, 0..1_000, &|_| true, 100, &mut scratch);
        let dead: HashSet<u32> = nearest.iter().map(|hit| hit.id).collect();
        let live = |id: u32| !dead.contains(&id);
        let hits = search(&graph, &table, &query, 10, 10, &live, &mut scratch);
        assert_eq!(hits.len(), 10);
        assert!(hits.iter().all(|hit| live(hit.id)));
        let truth = exact(&table, &query, 0..1_000, &live, 10, &mut scratch);
        let found = hits.iter().filter(|hit| truth.contains(hit)).count();
        assert!(found >= 5, "{found} of the 10 nearest live rows");
    }
}

#[test]
fn a_filter_of_any_selectivity_fills_k() {
    let rows = common::clustered(4_000, 16, 40, 4, 22);
    let (table, graph) = build(&rows);
    let mut scratch = Scratch::new();
    for every in [2u32, 10, 100, 1_000] {
        let matches = |id: u32| id.is_multiple_of(every);
        let expected = 10.min(4_000 / every as usize);
        let query = Query::new(Metric::L2, 16, rows.row(7)).expect("a query");
        let hits = search(&graph, &table, &query, 10, 10, &matches, &mut scratch);
        assert_eq!(hits.len(), expected, "every {every}th");
        assert!(hits.iter().all(|hit| matches(hit.id)));
        let ids = (0..4_000).rev().filter(|id| id % every == 0);
        let truth = exact_of(&table, &query, ids, &|_| true, 10, &mut scratch);
        assert_eq!(truth, exact(&table, &query, 0..4_000, &matches, 10, &mut scratch));
        if expected < 10 {
            assert_eq!(hits, truth, "all matches are hits, in order");
        }
    }
}

#[test]
fn a_filter_that_nothing_passes_ends_with_no_hits() {
    let rows = common::clustered(500, 16, 10, 4, 23);
    let (table, graph) = build(&rows);
    let query = Query::new(Metric::L2, 16, rows.row(0)).expect("a query");
    let asked = RefCell::new(Vec::new());
    let refuse = |id: u32| {
        asked.borrow_mut().push(id);
        false
    };
    let mut scratch = Scratch::new();
    assert_eq!(search(&graph, &table, &query, 5, 5, &refuse, &mut scratch), []);
    let mut asked = asked.into_inner();
    asked.sort_unstable();
    assert_eq!(asked, (0..500).collect::<Vec<u32>>(), "each node once");
    assert_eq!(search(&graph, &table, &query, 0, 5, &|_| true, &mut scratch), [], "k = 0");
}

#[test]
fn exact_scans_keep_the_nearest_of_any_range() {
    let rows = common::clustered(300, 7, 10, 3, 24);
    let table = rows.table(Metric::L2);
    let mut scratch = Scratch::new();
    let query = Query::new(Metric::L2, 7, &[0.1; 7]).expect("a query");
    let all = exact(&table, &query, 0..table.len(), &|_| true, 300, &mut scratch);
    assert_eq!(all.len(), 300);
    assert!(all.is_sorted());
    for (from, to) in [(0, 1), (3, 200), (299, 300), (150, 150), (290, 900)] {
        let within = |id: u32| (from..to).contains(&id);
        let expected: Vec<_> = all.iter().filter(|hit| within(hit.id)).take(7).copied().collect();
        assert_eq!(exact(&table, &query, from..to, &|_| true, 7, &mut scratch), expected);
    }
}
