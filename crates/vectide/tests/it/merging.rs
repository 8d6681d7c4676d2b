//! Segments become one base: nothing that a reader can see changes by it, and it is as good as a graph built at once.

use crate::recall::{batch as rows_of, create, glove, recall};
use crate::support::*;
use std::time::Duration;
use vectide::{Invalidation, MergeOptions, Metric, Options, Table, TableStats, Vectide, keys};

/// Merges of a few rows at full speed.
fn eager() -> MergeOptions {
    MergeOptions { step_rows: 60, core_pct: 100, ..MergeOptions::default() }
}

fn options() -> Options {
    Options { memtable_rows: 700, tail_rows: 64, merge: eager(), ..Options::default() }
}

/// Waits until `is_it` holds of the table's figures; with what they are, if that never comes.
async fn until(table: &Table, is_it: impl Fn(&TableStats) -> bool) {
    for _ in 0..60_000 {
        if is_it(&table.stats()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it never came: {:#?}", table.stats());
}

/// Waits until there is nothing to merge any more.
async fn merged(table: &Table) {
    let is_idle = |s: &TableStats| s.sealed.count == 0 && s.merge.backlog_segments == 0 && s.merge.backlog_ms == 0;
    until(table, is_idle).await;
}

/// Row `id` in its `version`th state; different vectors, apart from any other.
fn row(id: i64, version: u64) -> (i64, String, [f32; DIM]) {
    let mut rng = Rng(id as u64 * 1_000 + version);
    (id, version.to_string(), std::array::from_fn(|_| rng.unit() * 100.0))
}

async fn put(table: &Table, ids: impl Iterator<Item = i64>, version: u64) {
    let rows: Vec<_> = ids.map(|id| row(id, version)).collect();
    let borrowed: Vec<_> = rows.iter().map(|(id, state, vector)| (*id, state.as_str(), *vector)).collect();
    table.upsert(batch(&borrowed)).await.expect("writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_rows_and_snapshots_stay_what_they_are_while_segments_are_merged() {
    let (_db, table) = table_with(options()).await;
    let mut snapshots = Vec::new();
    for round in 0..8i64 {
        put(&table, round * 500..round * 500 + 600, round as u64).await;
        table.delete((0..40).map(|n| round * 500 + n * 7).collect::<Vec<i64>>()).await.expect("deletes");
        table.flush().await.expect("flushes");
        let snapshot = table.snapshot();
        let query = [50.0, 40.0, 30.0, 20.0 + round as f32];
        let hits = snapshot.search(&query).k(20).ef_search(20).await.expect("searches");
        snapshots.push((snapshot.clone(), query, snapshot.count().await.expect("counts"), hits));
    }
    let expected = table.count().await.expect("counts");
    let all = all_rows(&table).await;
    assert_eq!(all.len() as u64, expected);
    while table.stats().merge.backlog_segments > 0 {
        assert_eq!(table.count().await.expect("counts"), expected);
        let hits = table.search(&[10.0; DIM]).k(50).ef_search(20).await.expect("searches");
        let mut keys = ids(&hits);
        keys.sort_unstable();
        assert!(keys.len() == 50 && keys.windows(2).all(|pair| pair[0] < pair[1]), "each key once: {keys:?}");
    }
    merged(&table).await;
    let stats = table.stats();
    assert!(stats.base.segments == stats.segments.count && stats.base.segments >= 8, "{:?}", stats.base);
    assert!(stats.merge.nodes_dirty < stats.merge.nodes_touched && stats.merge.nodes_dirty > 0, "{:?}", stats.merge);
    assert_eq!(all_rows(&table).await, all);
    for (snapshot, query, count, before) in snapshots {
        assert_eq!(snapshot.count().await.expect("counts"), count);
        let after = snapshot.search(&query).k(20).ef_search(20).await.expect("searches");
        assert_eq!(ids(&after), ids(&before));
    }
    let report = table.verify().await.expect("sound");
    assert!(report.base_nodes >= expected && stats.base.bad_links == 0);
    let asked = [50.0, 10.0, 70.0, 30.0];
    let found = table.search(&asked).k(10).ef_search(64).await.expect("searches");
    let truth = table.search(&asked).k(10).exact(true).await.expect("scans");
    assert_eq!(ids(&found), ids(&truth));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_is_there_again_after_a_reopen_and_a_merge_goes_on_where_it_was() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("utf-8");
    let slow = Options { merge: MergeOptions { core_pct: 2, step_rows: 20, ..eager() }, ..options() };
    let db = Vectide::open(path, slow).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    for round in 0..3 {
        put(&table, round * 1_000..(round + 1) * 1_000, 0).await;
        table.flush().await.expect("flushes");
    }
    until(&table, |s| s.base.version >= 2).await;
    db.close().await.expect("closes");
    let before = table.stats().base;
    drop((table, db));

    let db = Vectide::open(path, options()).await.expect("opens");
    let table = db.open_table("t").await.expect("opens");
    assert_eq!(table.stats().base.id, before.id);
    assert!(table.stats().base.version >= before.version);
    merged(&table).await;
    let stats = table.stats();
    assert!(stats.merge.rows < 2_001, "{:?}: rows that were in were merged again", stats.merge);
    table.verify().await.expect("sound");
    let hits = table.search(&row(1_234, 0).2).k(3).ef_search(20).await.expect("searches");
    assert_eq!(ids(&hits)[0], 1_234);
    db.close().await.expect("closes");
    drop((table, db));

    let db = Vectide::open(path, options()).await.expect("opens");
    let table = db.open_table("t").await.expect("opens");
    merged(&table).await;
    assert_eq!((table.stats().merge.steps, table.stats().base.version), (0, stats.base.version));
    assert_eq!(table.count().await.expect("counts"), 3_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_in_another_process_follows_the_base_and_keeps_its_cache() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("utf-8");
    let db = Vectide::open(path, options()).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    let beside = Vectide::open_read_only(path, Options { refresh_interval_ms: 0, ..Options::default() });
    let beside = beside.await.expect("opens beside");
    let reader = beside.open_table("t").await.expect("opens");
    for round in 0..5 {
        put(&table, round * 700..(round + 1) * 700, 0).await;
        table.flush().await.expect("flushes");
        for n in 0..20 {
            let hits = reader.search(&row(n * 31 % (round * 700 + 1), 0).2).k(5).ef_search(16).await.expect("searches");
            assert_eq!(hits.num_rows(), 5);
        }
    }
    merged(&table).await;
    reader.refresh().await.expect("refreshes");
    let (ours, theirs) = (table.stats(), reader.stats());
    assert_eq!((theirs.base.version, theirs.base.nodes), (ours.base.version, 3_500));
    for n in 0..50 {
        let query = row(n * 61, 0).2;
        let (ours, theirs) = (table.search(&query).k(5).ef_search(32), reader.search(&query).k(5).ef_search(32));
        assert_eq!(ids(&ours.await.expect("searches")), ids(&theirs.await.expect("searches")));
    }
    reader.verify().await.expect("sound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_replaced_a_hundred_times_do_not_pile_up_in_the_base() {
    let (_db, table) = table_with(Options { memtable_rows: 500, ..options() }).await;
    for round in 0..100 {
        put(&table, 0..500, round).await;
        put(&table, 500..1_000, round).await;
        if round % 10 == 9 {
            table.flush().await.expect("flushes");
            merged(&table).await;
        }
    }
    table.flush().await.expect("flushes");
    merged(&table).await;
    let stats = table.stats();
    // Two segments of live rows, at most as many dead ones in the base, one or two that are on their way.
    assert!(stats.segments.rows <= 5_000 && stats.merge.retired > 100, "{:?} {:?}", stats.segments, stats.merge);
    assert!(stats.base.nodes >= 1_000 && stats.base.nodes <= 3_000, "{:?}", stats.base);
    assert_eq!(table.count().await.expect("counts"), 1_000);
    let hits = table.search(&row(77, 99).2).k(10).ef_search(16).await.expect("searches");
    assert_eq!((hits.num_rows(), ids(&hits)[0]), (10, 77));
    assert!(states(&hits).iter().all(|state| state == "99"), "only newest versions");
    table.verify().await.expect("sound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_emptied_has_no_base_left_and_can_be_filled_again() {
    let (_db, table) = table_with(options()).await;
    for round in 0..3 {
        put(&table, round * 700..(round + 1) * 700, 0).await;
        table.flush().await.expect("flushes");
    }
    merged(&table).await;
    assert_eq!(table.stats().base.segments, 3);
    table.delete((0..2_100).collect::<Vec<i64>>()).await.expect("deletes");
    table.flush().await.expect("flushes");
    until(&table, |s| s.base.nodes == 0).await;
    assert_eq!(table.search(&[1.0; DIM]).k(10).await.expect("searches").num_rows(), 0);
    put(&table, 0..1_500, 1).await;
    table.flush().await.expect("flushes");
    merged(&table).await;
    assert_eq!(table.count().await.expect("counts"), 1_500);
    let hits = table.search(&row(5, 1).2).k(10).ef_search(16).await.expect("searches");
    assert_eq!((hits.num_rows(), ids(&hits)[0]), (10, 5));
    table.verify().await.expect("sound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_of_the_node_cache_gives_the_same_rows() {
    for (invalidation, publish) in [
        (Invalidation::Dirty, true),
        (Invalidation::Dirty, false),
        (Invalidation::Touched, false),
        (Invalidation::All, false),
    ] {
        let merge = MergeOptions { invalidation, publish, node_cache_bytes: 128 << 10, ..eager() };
        let (_db, table) = table_with(Options { merge, ..options() }).await;
        for round in 0..4 {
            put(&table, round * 700..(round + 1) * 700, 0).await;
            table.flush().await.expect("flushes");
            for n in 0..100 {
                let id = n * 7 % ((round + 1) * 700);
                let hits = table.search(&row(id, 0).2).k(1).ef_search(24).await.expect("searches");
                assert_eq!(ids(&hits), [id]);
            }
        }
        merged(&table).await;
        let cache = table.stats().node_cache;
        assert!(cache.bytes <= cache.capacity_bytes && cache.hits > 0, "{cache:?}");
        assert_eq!(cache.published > 0, publish);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_words_are_found_as_well_as_in_one_graph() {
    let rows = glove();
    let (base, queries) = (&rows[..9_000], &rows[24_600..]);
    for metric in [Metric::L2, Metric::Cosine] {
        let options = Options { index_threads: 2, memtable_rows: 3_000, merge: eager(), ..Options::default() };
        let (_db, table) = create(100, metric, options).await;
        let whole = Options { merge: MergeOptions { enabled: false, ..eager() }, ..Options::default() };
        let (_other, whole) = create(100, metric, whole).await;
        for (n, chunk) in base.chunks(500).enumerate() {
            table.upsert(rows_of(n as i64 * 500, chunk)).await.expect("writes");
            whole.upsert(rows_of(n as i64 * 500, chunk)).await.expect("writes");
        }
        table.flush().await.expect("flushes");
        whole.flush().await.expect("flushes");
        merged(&table).await;
        assert_eq!((table.stats().base.segments, table.stats().base.nodes), (3, 9_000));
        assert_eq!((whole.stats().segments.count, whole.stats().base.nodes), (1, 0));
        let (found, one) = (recall(&table, queries, 10, 64).await, recall(&whole, queries, 10, 64).await);
        assert!(found >= 0.97 && found >= one - 0.01, "{metric:?}: {found} in the base, {one} in one graph");
        assert_eq!(table.verify().await.expect("sound").base_nodes, 9_000);
        drop(table.get(keys![1, 8_999]).await.expect("gets"));
    }
}
