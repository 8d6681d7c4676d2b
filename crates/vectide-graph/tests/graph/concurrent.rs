//! Searches beside inserts.

use crate::common::{self, exact, insert, search};
use std::sync::atomic::{AtomicU32, Ordering};
use vectide_graph::{Graph, Metric, Params, Query, Scratch, VectorBlock, VectorTable, Vectors};

#[test]
fn no_search_beside_inserts_is_empty_or_misses_what_was_inserted() {
    let rows = common::clustered(6_000, 24, 30, 6, 31);
    let table = VectorTable::new(24, Metric::L2).expect("a dimension");
    let graph = Graph::new(Params::new(24, Metric::L2)).expect("valid settings");
    let appended = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for worker in 0..2u32 {
            let (graph, table, appended) = (&graph, &table, &appended);
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                for id in (worker..6_000).step_by(2) {
                    while id >= appended.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    insert(graph, table, id, &mut scratch).expect("a row");
                }
            });
        }
        let (graph, table) = (&graph, &table);
        let rows = &rows;
        scope.spawn(move || {
            let mut scratch = Scratch::new();
            while graph.prefix() < 6_000 {
                let prefix = graph.prefix();
                if prefix == 0 {
                    continue;
                }
                let id = prefix - 1;
                let query = Query::new(Metric::L2, 24, rows.row(id as usize)).expect("a query");
                let hits = search(graph, table, &query, 1, 64, &|_| true, &mut scratch);
                assert_eq!(hits.len(), 1);
                let odd = search(graph, table, &query, 1, 8, &|id| id % 2 == 1, &mut scratch);
                assert_eq!(odd.len(), usize::from(graph.contains(1) || !odd.is_empty()));
            }
        });
        for block in rows.values.chunks(100 * 24) {
            let block = VectorBlock::copied(block.to_vec(), 24, Metric::L2, None);
            table.append(block.expect("whole rows")).expect("room");
            appended.store(table.len(), Ordering::Release);
        }
    });
    assert_eq!((graph.len(), graph.prefix()), (6_000, 6_000));
    assert_eq!(graph.unreachable(), []);
}

#[test]
fn graph_and_tail_together_hold_every_row_at_any_time() {
    let rows = common::clustered(3_000, 16, 30, 4, 32);
    let table = rows.table(Metric::L2);
    let graph = Graph::new(Params::new(16, Metric::L2)).expect("valid settings");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut scratch = Scratch::new();
            for id in 0..table.len() {
                insert(&graph, &table, id, &mut scratch).expect("a row");
            }
        });
        let mut scratch = Scratch::new();
        let mut missed = 0;
        for n in 0..300 {
            let id = n * 10;
            let query = Query::new(Metric::L2, 16, rows.row(id)).expect("a query");
            let tail = graph.prefix()..table.len();
            let mut hits = exact(&table, &query, tail, &|_| true, 1, &mut scratch);
            hits.extend(search(&graph, &table, &query, 1, 64, &|_| true, &mut scratch));
            missed += usize::from(hits.iter().min().map(|hit| hit.id as usize) != Some(id));
        }
        assert!(missed <= 3, "{missed} of 300 rows were not their own nearest");
    });
}

#[test]
fn levels_above_the_entry_point_raised_at_once_keep_the_graph_whole() {
    // With m = 2, half of the nodes rise above level 0: the entry point moves often.
    for seed in 0..20 {
        let table = common::clustered(300, 8, 5, 3, seed).table(Metric::L2);
        let params = Params { m: 2, seed, ef_construction: 16, ..Params::new(8, Metric::L2) };
        let graph = Graph::new(params).expect("valid settings");
        std::thread::scope(|scope| {
            for worker in 0..4u32 {
                let (graph, table) = (&graph, &table);
                scope.spawn(move || {
                    let mut scratch = Scratch::new();
                    for id in (worker..300).step_by(4) {
                        insert(graph, table, id, &mut scratch).expect("a row");
                    }
                });
            }
        });
        assert_eq!(graph.len(), 300);
        assert_eq!(graph.unreachable(), []);
        let frozen = graph.freeze(&table).expect("settled");
        assert_eq!(frozen.header().nodes, 300);
    }
}
