//! Inserters and deleters on the same keys, with flushes under them: the order of tokens explains everything.
//! `VECTIDE_BUSY_SECONDS` says for how long (60 flushes by default).

use crate::environment::number;
use crate::support::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vectide::{Options, Visibility, WriteAck};

/// A write as acknowledged.
#[derive(Clone, Debug)]
struct Done {
    is_delete: bool,
    keys: Vec<i64>,
    value: String,
    ack: WriteAck,
}

/// The place of a write in the order of all writes.
fn place(done: &Done) -> u64 {
    let text = done.ack.token.to_string();
    text.rsplit('.').next().and_then(|seq| seq.parse().ok()).expect("shard.epoch.seq")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_inserters_and_eight_deleters_agree_with_the_order_of_their_tokens() {
    agree(Visibility::Ordered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn so_do_they_when_batches_are_visible_unordered() {
    agree(Visibility::Unordered).await;
}

async fn agree(visibility: Visibility) {
    let (_db, table) = table_with(Options { visibility, ..tiny() }).await;
    let (done, stop): (Arc<Mutex<Vec<Done>>>, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let workers = (0..16u64).map(|worker| {
        let (table, done, stop) = (table.clone(), Arc::clone(&done), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut rng = Rng(worker);
            while !stop.load(Ordering::SeqCst) {
                let mut keys: Vec<i64> = (0..1 + rng.below(8)).map(|_| rng.below(60) as i64).collect();
                keys.sort_unstable();
                keys.dedup();
                let value = format!("{worker}-{}", rng.next());
                let is_delete = worker % 2 == 1;
                let ack = if is_delete {
                    table.delete(keys.clone()).await
                } else {
                    let rows: Vec<_> = keys.iter().map(|key| (*key, value.as_str(), [*key as f32; DIM])).collect();
                    table.upsert(batch(&rows)).await
                };
                let ack = ack.expect("no error");
                done.lock().expect("no panic").push(Done { is_delete, keys, value, ack });
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    let until = Instant::now() + Duration::from_secs(number("VECTIDE_BUSY_SECONDS").unwrap_or(0));
    let mut rounds = 0;
    while rounds < 60 || Instant::now() < until {
        rounds += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
        table.flush().await.expect("flushes");
        let snapshot = table.snapshot();
        let hits = snapshot.search(&[30.0; DIM]).k(60).await.expect("searches");
        assert_eq!(hits.num_rows() as u64, snapshot.count().await.expect("counts"), "the search finds what is counted");
        let mut keys = ids(&hits);
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "each key once: {keys:?}");
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.expect("no error");
    }
    let mut done = std::mem::take(&mut *done.lock().expect("no panic"));
    done.sort_by_key(place);
    let mut model: BTreeMap<i64, String> = BTreeMap::new();
    for Done { is_delete, keys, value, ack } in &done {
        let held = keys.iter().filter(|key| model.contains_key(key)).count() as u64;
        let said = if *is_delete { ack.deleted } else { ack.updated };
        assert_eq!(said, held, "the write at {} replaced {held} rows", ack.token);
        for key in keys {
            if *is_delete {
                model.remove(key);
            } else {
                model.insert(*key, value.clone());
            }
        }
    }
    assert!(done.len() > 500, "only {} writes", done.len());
    assert_eq!(all_rows(&table).await, model.into_iter().collect::<Vec<_>>());
    table.verify().await.expect("no orphan");
}
