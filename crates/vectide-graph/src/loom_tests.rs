//! The publication protocols under loom, which tries every interleaving and every
//! value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vectide-graph --release --lib loom`
//!
//! Segments are tiny here (see `links`), so that growth is part of what
//! is tried. The canary at the end breaks one ordering and expects to be caught.

use crate::entry::Entry;
use crate::graph::Graph;
use crate::links::{Link, LinkSegment, NONE, read_links};
use crate::params::{Metric, Params};
use crate::progress::Progress;
use crate::query::Query;
use crate::scratch::Scratch;
use crate::search::search;
use crate::sync::{AtomicU32, Ordering};
use crate::vectors::{VectorBlock, VectorTable, Vectors};
use loom::sync::Arc;
use loom::thread;

/// Runs a model; preemptions are bounded, or the larger ones take hours. Three
/// per execution find every protocol error that the canaries stand for.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 50_000;
    builder.check(body);
}

fn params() -> Params {
    Params { m: 2, ef_construction: 4, ..Params::new(1, Metric::L2) }
}

fn link(id: u32) -> Link {
    Link::new(id, id as f32)
}

fn row(values: &[f32]) -> VectorBlock<f32> {
    VectorBlock::copied(values.to_vec(), 1, Metric::L2, None).expect("whole rows")
}

/// A node's links, then the entry word: as `insert` publishes the first node.
fn publish_entry(promote: fn(&Entry)) {
    let entry = Arc::new(Entry::new());
    let links = Arc::new(AtomicU32::new(NONE));
    let writer = {
        let (entry, links) = (Arc::clone(&entry), Arc::clone(&links));
        thread::spawn(move || {
            links.store(5, Ordering::Relaxed);
            promote(&entry);
        })
    };
    if entry.load().id == Some(0) {
        assert_eq!(links.load(Ordering::Relaxed), 5, "an entry point whose links are not there");
    }
    writer.join().expect("no panic");
}

#[test]
fn a_seen_entry_point_has_its_links() {
    model(|| publish_entry(|entry| entry.promote(None, 0)));
}

#[test]
#[should_panic(expected = "whose links are not there")]
fn canary_an_entry_point_published_without_release_is_caught() {
    model(|| publish_entry(|entry| entry.promote_wrongly(0)));
}

#[test]
fn the_length_counts_every_node_added_at_once() {
    model(|| {
        let entry = Arc::new(Entry::new());
        let other = Arc::clone(&entry);
        let adder = thread::spawn(move || other.promote(None, 1));
        entry.add();
        adder.join().expect("no panic");
        let now = entry.load();
        assert_eq!((now.len, now.id), (2, Some(1)));
    });
}

/// Prunes a row of 10, 11, 12 so that 12 moves and 13 takes its old slot, while
/// `read` reads it.
fn read_beside_pruning(read: fn(&[AtomicU32], &mut Vec<u32>)) {
    let segment = Arc::new(LinkSegment::new(&params(), 0, 4));
    for id in [10, 11, 12] {
        segment.lock(0, 1).push(link(id));
    }
    let reader = {
        let segment = Arc::clone(&segment);
        thread::spawn(move || {
            let mut seen = Vec::new();
            read(segment.slots(0, 1).expect("level 0"), &mut seen);
            assert!(seen.contains(&11) && seen.contains(&12), "a kept link was missed: {seen:?}");
            assert!(seen.iter().all(|id| (10..=13).contains(id)), "{seen:?}");
        })
    };
    let row = segment.lock(0, 1);
    row.retain(&[false, true, true]);
    row.push(link(13));
    drop(row);
    reader.join().expect("a reader that misses nothing");
    let mut seen = Vec::new();
    read(segment.slots(0, 1).expect("level 0"), &mut seen);
    seen.sort_unstable();
    assert_eq!(seen, [11, 12, 13]);
}

#[test]
fn a_link_that_stays_is_never_missed_while_its_row_is_pruned() {
    model(|| read_beside_pruning(|slots, out| read_links(slots, out)));
}

#[test]
#[should_panic(expected = "a kept link was missed")]
fn canary_reading_a_row_upwards_is_caught() {
    model(|| {
        read_beside_pruning(|slots, out| {
            // ORDERING: the right one, in the wrong direction.
            let ids = slots.iter().map(|slot| slot.load(Ordering::Acquire));
            out.extend(ids.filter(|id| *id != NONE));
        });
    });
}

#[test]
fn two_writers_of_one_row_lose_no_link() {
    model(|| {
        let segment = Arc::new(LinkSegment::new(&params(), 0, 4));
        let other = Arc::clone(&segment);
        let writer = thread::spawn(move || other.lock(0, 2).push(link(20)));
        segment.lock(0, 2).push(link(21));
        writer.join().expect("no panic");
        let mut seen = Vec::new();
        read_links(segment.slots(0, 2).expect("level 0"), &mut seen);
        seen.sort_unstable();
        assert_eq!(seen, [20, 21]);
    });
}

/// The last id of one word of flags and the first of the next finish at once.
fn finish_at_once(finish: fn(&Progress, u32)) {
    let progress = Arc::new(Progress::new());
    for id in 0..65 {
        assert!(progress.claim(id, || ()));
    }
    for id in 0..63 {
        progress.finish(id, true);
    }
    let other = Arc::clone(&progress);
    let finisher = thread::spawn(move || finish(&other, 64));
    finish(&progress, 63);
    finisher.join().expect("no panic");
    assert_eq!(progress.prefix(), 65, "the watermark stopped short");
}

#[test]
fn the_watermark_passes_rows_that_finish_at_once() {
    model(|| finish_at_once(|progress, id| progress.finish(id, true)));
}

#[test]
#[should_panic(expected = "the watermark stopped short")]
fn canary_a_watermark_without_its_fence_is_caught() {
    model(|| finish_at_once(Progress::finish_wrongly));
}

#[test]
fn rows_below_the_watermark_are_linked() {
    model(|| {
        let progress = Arc::new(Progress::new());
        let other = Arc::clone(&progress);
        let finisher = thread::spawn(move || {
            assert!(other.claim(0, || ()));
            other.finish(0, true);
        });
        if progress.prefix() == 1 {
            assert!(progress.is_linked(0));
        }
        finisher.join().expect("no panic");
    });
}

#[test]
fn a_row_is_read_whole_or_not_at_all() {
    model(|| {
        let table = Arc::new(VectorTable::new(1, Metric::L2).expect("a dimension"));
        let other = Arc::clone(&table);
        let appender = thread::spawn(move || {
            // The third row is in a new segment of pointers.
            other.append(row(&[1.0, 2.0, 3.0])).expect("room");
        });
        let len = table.len();
        for id in 0..3u32 {
            let got = table.get(id).map(<[f32]>::to_vec);
            assert!(got.is_none() || got == Some(vec![id as f32 + 1.0]));
            assert!(id >= len || got.is_some(), "a row below the length is not there");
        }
        appender.join().expect("no panic");
    });
}

/// A graph of one node, and rows for two more.
fn small_graph() -> (Arc<Graph>, Arc<VectorTable<f32>>) {
    let table = VectorTable::new(1, Metric::L2).expect("a dimension");
    table.append(row(&[0.0, 1.0, 2.0])).expect("room");
    let graph = Graph::new(params()).expect("valid settings");
    graph.insert(&table, 0, &mut Scratch::new()).expect("a row");
    (Arc::new(graph), Arc::new(table))
}

#[test]
fn a_search_beside_an_insert_finds_what_was_there() {
    model(|| {
        let (graph, table) = small_graph();
        let query = Query::new(Metric::L2, 1, &[1.0]).expect("a query");
        let searcher = {
            let (graph, table, query) = (Arc::clone(&graph), Arc::clone(&table), query.clone());
            thread::spawn(move || {
                let mut scratch = Scratch::new();
                let hits = search(&*graph, &*table, &query, 2, 2, &|_| true, &mut scratch);
                assert!(hits.iter().any(|hit| hit.id == 0), "{hits:?}");
                assert!(hits.iter().all(|hit| hit.id <= 1), "{hits:?}");
            })
        };
        graph.insert(&*table, 1, &mut Scratch::new()).expect("a row");
        searcher.join().expect("no empty search");
        let hits = search(&*graph, &*table, &query, 2, 2, &|_| true, &mut Scratch::new());
        assert_eq!(hits.iter().map(|hit| hit.id).collect::<Vec<_>>(), [1, 0]);
    });
}

#[test]
fn two_inserts_at_once_leave_everything_reachable() {
    model(|| {
        let (graph, table) = small_graph();
        let inserter = {
            let (graph, table) = (Arc::clone(&graph), Arc::clone(&table));
            thread::spawn(move || {
                graph.insert(&*table, 1, &mut Scratch::new()).expect("a row");
            })
        };
        graph.insert(&*table, 2, &mut Scratch::new()).expect("a row");
        inserter.join().expect("no panic");
        assert_eq!((graph.len(), graph.prefix()), (3, 3));
        assert_eq!(graph.unreachable(), []);
    });
}

#[test]
fn the_first_two_inserts_at_once_agree_on_an_entry_point() {
    model(|| {
        let table = VectorTable::new(1, Metric::L2).expect("a dimension");
        table.append(row(&[0.0, 1.0])).expect("room");
        let table = Arc::new(table);
        let graph = Arc::new(Graph::new(params()).expect("valid settings"));
        let inserter = {
            let (graph, table) = (Arc::clone(&graph), Arc::clone(&table));
            thread::spawn(move || {
                graph.insert(&*table, 0, &mut Scratch::new()).expect("a row");
            })
        };
        graph.insert(&*table, 1, &mut Scratch::new()).expect("a row");
        inserter.join().expect("no panic");
        assert_eq!(graph.len(), 2);
        assert_eq!(graph.unreachable(), []);
    });
}
