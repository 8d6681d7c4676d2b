//! Random operations against a model: a map from key to newest row.

use crate::support::*;
use std::collections::BTreeMap;
use vectide::{Durability, ErrorKind, Options, Table, Vectide, Visibility};

type Model = BTreeMap<i64, (String, [f32; DIM])>;

fn truth(model: &Model, query: &[f32; DIM], k: usize) -> Vec<f32> {
    let mut distances: Vec<f32> =
        model.values().map(|(_, v)| v.iter().zip(query).map(|(a, b)| (a - b) * (a - b)).sum()).collect();
    distances.sort_by(f32::total_cmp);
    distances.truncate(k);
    distances
}

async fn check(table: &Table, model: &Model, rng: &mut Rng, what: &str) {
    assert_eq!(table.count().await.expect("counts"), model.len() as u64, "{what}");
    let rows: Vec<(i64, String)> = model.iter().map(|(id, (state, _))| (*id, state.clone())).collect();
    assert_eq!(all_rows(table).await, rows, "{what}");
    let asked: Vec<i64> = (0..10).map(|_| rng.below(80) as i64).collect();
    let expected: Vec<i64> = asked.iter().copied().filter(|id| model.contains_key(id)).collect();
    assert_eq!(ids(&table.get(asked).await.expect("gets")), expected, "{what}");
    let query = [rng.unit(), rng.unit(), rng.unit(), rng.unit()];
    let k = 1 + rng.below(12) as usize;
    let found = distances(&table.search(&query).k(k).ef_search(200).await.expect("searches"));
    let wanted = truth(model, &query, k);
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found - wanted).abs() <= 1e-4 * (1.0 + wanted), "{what}: {found} for {wanted}");
    }
}

async fn run(seed: u64, steps: u64, uri: &str, options: Options) {
    let mut rng = Rng(seed);
    let mut model = Model::new();
    let mut db = Vectide::open(uri, options.clone()).await.expect("opens");
    let mut table = db.create_table("t", schema()).await.expect("creates");
    for step in 0..steps {
        let what = format!("seed {seed}, step {step}");
        let rows: Vec<(i64, String, [f32; DIM])> = (0..1 + rng.below(30))
            .map(|_| (rng.below(80) as i64, format!("s{step}"), [rng.unit(), rng.unit(), rng.unit(), rng.unit()]))
            .collect();
        let borrowed: Vec<(i64, &str, [f32; DIM])> = rows.iter().map(|r| (r.0, r.1.as_str(), r.2)).collect();
        match rng.below(10) {
            0..=4 => {
                let before = model.len();
                for (id, state, vector) in rows.clone() {
                    model.insert(id, (state, vector));
                }
                let ack = table.upsert(batch(&borrowed)).await.expect("writes");
                assert_eq!(ack.inserted, (model.len() - before) as u64, "{what}");
                assert_eq!(ack.inserted + ack.updated, rows.len() as u64, "{what}");
            }
            5 | 6 => {
                let keys: Vec<i64> = rows.iter().map(|r| r.0).collect();
                let ended = keys.iter().filter(|key| model.remove(key).is_some()).count();
                assert_eq!(table.delete(keys).await.expect("deletes").deleted, ended as u64, "{what}");
            }
            7 => {
                let one = [borrowed[0]];
                let fits = !model.contains_key(&one[0].0);
                match table.insert(batch(&one)).await {
                    Ok(_) => {
                        assert!(fits, "{what}");
                        model.insert(one[0].0, (one[0].1.to_owned(), one[0].2));
                    }
                    Err(error) => assert!(!fits && error.kind() == ErrorKind::Conflict, "{what}: {error}"),
                }
            }
            8 => table.flush().await.expect("flushes"),
            _ => {
                if rng.below(2) == 0 || options.durability == Durability::Buffered {
                    db.close().await.expect("closes");
                }
                drop((table, db));
                db = Vectide::open(uri, options.clone()).await.expect("opens again");
                table = db.open_table("t").await.expect("opens again");
            }
        }
        check(&table, &model, &mut rng, &what).await;
    }
    table.flush().await.expect("flushes");
    let report = table.verify().await.expect("nothing is damaged");
    assert_eq!(report.live_rows, model.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_agrees_on_a_local_directory() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().expect("a folder");
        run(seed, 60, dir.path().to_str().expect("utf-8"), tiny()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_agrees_on_an_object_store() {
    for seed in 100..104 {
        run(seed, 60, &format!("memory://model-{seed}"), tiny()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_agrees_when_writes_are_buffered() {
    for seed in 200..203 {
        let options = Options { durability: Durability::Buffered, ..tiny() };
        run(seed, 60, &format!("memory://buffered-{seed}"), options).await;
    }
}

/// Every promise of an ordered table that its documentation does not take back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_agrees_when_batches_are_visible_unordered() {
    for (seed, durability) in [(300, Durability::Durable), (301, Durability::Durable), (302, Durability::Buffered)] {
        let options = Options { visibility: Visibility::Unordered, durability, ..tiny() };
        run(seed, 60, &format!("memory://unordered-{seed}"), options.clone()).await;
        let dir = tempfile::tempdir().expect("a folder");
        run(seed + 10, 60, dir.path().to_str().expect("utf-8"), options).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_writers_of_one_row_batches_meet_no_conflict_and_share_syncs() {
    let dir = tempfile::tempdir().expect("a folder");
    let db = Vectide::open(dir.path().to_str().expect("utf-8"), Options::default()).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    let writers = (0..64i64).map(|writer| {
        let table = table.clone();
        tokio::spawn(async move {
            for n in 0..20 {
                table.upsert(numbered([writer * 20 + n], "a")).await.expect("no conflict");
            }
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer.expect("joins");
    }
    assert_eq!(table.count().await.expect("counts"), 1_280);
    let wal = table.stats().wal;
    assert!(wal.syncs < 1_280, "{} syncs for 1,280 one-row writes", wal.syncs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_rows_in_one_batch_are_taken_whole() {
    let (_db, table) = table().await;
    let ack = table.upsert(numbered(0..100_000, "a")).await.expect("split inside");
    assert_eq!(ack.inserted, 100_000);
    assert_eq!(table.count().await.expect("counts"), 100_000);
    let tail = table.stats().memtable.tail_rows_max;
    assert!(tail <= u64::from(Options::default().tail_rows), "linked before it was published: {tail}");
    assert_eq!(ids(&table.search(&[77_777.0; DIM]).k(1).await.expect("searches")), [77_777]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_snapshots_are_refused_and_dropping_one_makes_room() {
    let (_db, table) = table_with(Options { snapshots: 3, ..Options::default() }).await;
    let mut held: Vec<_> = (0..3).map(|_| table.snapshot()).collect();
    assert_eq!(table.snapshot().count().await.expect_err("full").kind(), ErrorKind::Unavailable);
    held.pop();
    assert_eq!(table.snapshot().count().await.expect("room again"), 0);
    assert_eq!(held[0].count().await.expect("held from before"), 0);
}
