use super::state::cost;
use super::*;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

const WORDS: usize = 34;

fn row(node: u32, version: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|at| node.wrapping_mul(31) ^ version << 20 ^ at).collect()
}

fn read(space: &Space, node: u32, version: u32) -> Vec<u32> {
    let mut out = Vec::new();
    space.read(node, version, &mut out, |out| out.extend(row(node, version)));
    out
}

#[test]
fn a_row_is_given_out_for_its_own_version_only_and_two_versions_are_kept() {
    let cache = NodeCache::new(1 << 20);
    let space = cache.space();
    assert_eq!(read(&space, 7, 1), row(7, 1));
    space.publish(2, &[7], &row(7, 2));
    assert_eq!((read(&space, 7, 1), read(&space, 7, 2)), (row(7, 1), row(7, 2)));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.loads, stats.rows), (2, 1, 2));
    space.publish(3, &[7], &row(7, 3));
    assert_eq!(read(&space, 7, 1), row(7, 1), "a reader older than what is kept goes past the cache");
    assert_eq!((read(&space, 7, 2), read(&space, 7, 3)), (row(7, 2), row(7, 3)));
    let stats = cache.stats();
    assert_eq!((stats.past, stats.rows, stats.published), (1, 2, 2));
}

#[test]
fn no_lock_is_held_while_a_row_is_loaded() {
    let cache = NodeCache::new(1 << 20);
    let space = cache.space();
    space.publish(2, &[7], &row(7, 2));
    space.publish(3, &[7], &row(7, 3));
    // Once because it is missing, once because it is older than what is kept: each takes every lock that there is.
    for (node, version) in [(8, 1), (7, 1)] {
        let mut out = Vec::new();
        space.read(node, version, &mut out, |out| {
            assert!(cache.stats().rows >= 2);
            out.extend(row(node, version));
        });
        assert_eq!(out, row(node, version));
    }
}

#[test]
fn bytes_stay_within_the_capacity_and_are_counted_to_the_last() {
    for capacity in [10_000, 100_000, 1 << 20] {
        let cache = NodeCache::new(capacity);
        let space = cache.space();
        for node in 0..20_000 {
            assert_eq!(read(&space, node, 0), row(node, 0));
        }
        let stats = cache.stats();
        assert!(stats.bytes <= capacity && stats.bytes > capacity * 8 / 10, "{stats:?}");
        assert_eq!(stats.bytes, stats.rows * cost(WORDS));
        assert_eq!(stats.evictions, 20_000 - stats.rows);
    }
}

#[test]
fn rows_that_are_read_again_outlive_those_that_are_not() {
    let cache = NodeCache::new(200 * cost(WORDS));
    let space = cache.space();
    for round in 0..2_000u32 {
        read(&space, round % 20, 0);
        read(&space, 1_000 + round, 0);
    }
    let before = cache.stats().loads;
    (0..20).for_each(|node| drop(read(&space, node, 0)));
    assert!(cache.stats().loads - before <= 4, "rows in use were evicted by a scan");
}

#[test]
fn a_row_that_many_miss_at_once_is_loaded_once() {
    let cache = NodeCache::new(1 << 20);
    let space = Arc::new(cache.space());
    let (loads, barrier) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(8)));
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let (space, loads, barrier) = (Arc::clone(&space), Arc::clone(&loads), Arc::clone(&barrier));
            let work = move || {
                for node in 0..50 {
                    barrier.wait();
                    let mut out = Vec::new();
                    space.read(node, 5, &mut out, |out| {
                        loads.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        out.extend(row(node, 5));
                    });
                    assert_eq!(out, row(node, 5));
                }
            };
            crate::runtime::spawn_thread(format!("reader {n}"), work).expect("a thread")
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(loads.load(Ordering::SeqCst), 50);
}

#[test]
fn readers_of_every_version_read_their_own_rows_while_commits_publish_and_rows_are_evicted() {
    let cache = NodeCache::new(100 * cost(WORDS));
    let space = Arc::new(cache.space());
    let current = Arc::new(AtomicU32::new(0));
    // Version v rewrites the nodes that v divides.
    let written =
        |node: u32, version: u32| (0..=version).rev().find(|v| *v == 0 || node.is_multiple_of(*v)).unwrap_or(0);
    let readers: Vec<_> = (0..3u32)
        .map(|n| {
            let (space, current) = (Arc::clone(&space), Arc::clone(&current));
            let work = move || {
                let mut at = n;
                while current.load(Ordering::Acquire) < 60 {
                    let version = current.load(Ordering::Acquire).saturating_sub(at % 4);
                    let node = at.wrapping_mul(2_654_435_761) % 300;
                    let version = written(node, version);
                    assert_eq!(read(&space, node, version), row(node, version));
                    at += 1;
                }
            };
            crate::runtime::spawn_thread(format!("reader {n}"), work).expect("a thread")
        })
        .collect();
    for version in 1..=60 {
        let nodes: Vec<u32> = (0..300u32).filter(|node| node.is_multiple_of(version)).collect();
        let rows: Vec<u32> = nodes.iter().flat_map(|&node| row(node, version)).collect();
        space.publish(version, &nodes, &rows);
        current.store(version, Ordering::Release);
    }
    readers.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let stats = cache.stats();
    assert!(stats.bytes <= 100 * cost(WORDS) && stats.evictions > 0);
}

#[test]
fn a_space_takes_its_rows_with_it() {
    let cache = NodeCache::new(1 << 20);
    let (one, other) = (cache.space(), cache.space());
    read(&one, 1, 0);
    read(&other, 1, 0);
    other.publish(1, &[1], &row(1, 1));
    assert_eq!(other.forget([1, 2].into_iter()), 1);
    read(&other, 3, 0);
    assert_eq!(other.forget_all(), 1);
    assert_eq!(cache.stats().invalidated, 2);
    drop(one);
    assert_eq!((cache.stats().rows, cache.stats().bytes), (0, 0));
}
