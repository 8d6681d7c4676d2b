use super::*;
use crate::ErrorKind;
use crate::store::{ObjectBackend, conformance};
use object_store::memory::InMemory;

fn memory() -> Arc<dyn Store> {
    Arc::new(ObjectBackend::new(Arc::new(InMemory::new())))
}

fn bytes() -> Bytes {
    Bytes::from_static(b"bytes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_faults_every_promise_is_kept() {
    conformance::run(FaultStore::new(memory(), FaultOptions::default()).shared()).await;
    let delays = FaultOptions { seed: 3, max_delay_us: 200, ..FaultOptions::default() };
    conformance::run(FaultStore::new(memory(), delays).shared()).await;
}

#[tokio::test]
async fn an_error_comes_before_or_after_the_effect_as_chosen() {
    let store = FaultStore::new(memory(), FaultOptions::default());
    for (path, phase) in [("a/before", Phase::Before), ("a/after", Phase::After)] {
        store.fail_next("store.put_if_absent", path, phase, 1);
        let error = store.put_if_absent(path, bytes()).await.expect_err("chosen");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(store.get(path).await.is_ok(), phase == Phase::After);
        let outcome = store.put_if_absent(path, bytes()).await.expect("once only");
        assert_eq!(outcome == PutOutcome::Exists, phase == Phase::After);
    }
    assert_eq!((store.calls("store.put_if_absent"), store.calls("store.get"), store.calls("store.list")), (4, 2, 0));
    store.fail_next("store.finish", "s", Phase::Before, 1);
    let writer = store.create("s").await.expect("create");
    assert!(writer.finish().await.is_err() && store.get("s").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_late_put_fails_first_and_takes_effect_afterwards() {
    let options = FaultOptions { late: 1000, max_delay_us: 1000, ..FaultOptions::default() };
    let store = FaultStore::new(memory(), options);
    assert!(store.put_if_absent("a", bytes()).await.is_err());
    store.settle().await;
    assert_eq!(store.get("a").await.expect("it came"), bytes());
}

#[tokio::test(start_paused = true)]
async fn stalled_calls_hang_until_they_are_released() {
    let store = FaultStore::new(memory(), FaultOptions::default());
    for (path, phase) in [("a", Phase::Before), ("b", Phase::After)] {
        store.stall(phase);
        let put = tokio::spawn({
            let store = store.clone();
            async move { store.put(path, bytes()).await }
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!put.is_finished());
        assert_eq!(store.inner.get(path).await.is_ok(), phase == Phase::After);
        store.release();
        put.await.expect("no panic").expect("put");
        assert_eq!(store.get(path).await.expect("get"), bytes());
    }
}

#[tokio::test]
async fn a_stale_listing_lacks_only_what_was_put_last() {
    let store = FaultStore::new(memory(), FaultOptions { stale_list: 1000, ..FaultOptions::default() });
    for n in 0..8 {
        store.put(&format!("l/{n}"), bytes()).await.expect("put");
    }
    let mut shortest = 8;
    for _ in 0..50 {
        let listed = store.list("l/").await.expect("list");
        let want: Vec<String> = (0..listed.len()).map(|n| format!("l/{n}")).collect();
        assert_eq!(listed.into_iter().map(|m| m.path).collect::<Vec<_>>(), want);
        shortest = shortest.min(want.len());
    }
    assert_eq!(shortest, 8 - RECENT);
}

#[tokio::test]
async fn hooks_see_the_named_points_and_a_seed_repeats_itself() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let store = FaultStore::new(memory(), FaultOptions::default());
    let sink = seen.clone();
    store.set_hook(Arc::new(move |point| {
        sink.lock().push(format!("{point} {}", point.path));
        Ok(())
    }));
    store.put("a", bytes()).await.expect("put");
    assert_eq!(*seen.lock(), ["store.put.before a", "store.put.after a"]);

    let answers = async |seed| {
        let options = FaultOptions { seed, error_before: 300, error_after: 300, ..FaultOptions::default() };
        let store = FaultStore::new(memory(), options);
        let mut answers = Vec::new();
        for n in 0..40 {
            answers.push(store.put_if_absent(&format!("{}", n % 10), bytes()).await.map_err(|e| e.to_string()));
        }
        answers
    };
    assert_eq!(answers(1).await, answers(1).await);
    assert_ne!(answers(1).await, answers(2).await);
}
