use super::*;
use crate::store::fault::{FaultOptions, FaultStore};
use crate::store::fault_fs::Phase;
use crate::store::{Metered, ObjectBackend};
use object_store::memory::InMemory;

fn faulty(options: FaultOptions) -> FaultStore {
    FaultStore::new(Arc::new(ObjectBackend::new(Arc::new(InMemory::new()))), options)
}

fn retrying(store: &FaultStore, max_attempts: u32) -> RetryStore {
    let options = RetryOptions { max_attempts, ..RetryOptions::default() };
    RetryStore::new(Arc::new(Metered::new(store.shared())), options, 7).expect("valid options")
}

fn bytes() -> Bytes {
    Bytes::from_static(b"ours")
}

#[tokio::test(start_paused = true)]
async fn every_idempotent_call_is_made_again_until_the_limit() {
    let faults = faulty(FaultOptions::default());
    let store = retrying(&faults, 3);
    store.put("a", bytes()).await.expect("put");
    for op in ["store.put", "store.get", "store.list", "store.delete", "store.create", "store.map"] {
        for (failures, served) in [(2, true), (3, false)] {
            faults.fail_next(op, "", Phase::Before, failures);
            let before = faults.calls(op);
            let error = match op {
                "store.put" => store.put("a", bytes()).await.err(),
                "store.get" => store.get("a").await.err(),
                "store.list" => store.list("").await.err(),
                "store.delete" => store.delete("b").await.err(),
                "store.create" => store.create("c").await.err(),
                _ => store.map("a", 4).await.err(),
            };
            assert_eq!(error.is_none(), served, "{op}: {error:?}");
            assert_eq!(faults.calls(op) - before, 3, "{op}");
            if let Some(error) = error {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(error.message().starts_with("gave up after 3 attempts"), "{error}");
            }
        }
    }
    assert_eq!(store.stats().retries, 24);
    assert_eq!((store.stats().get.requests, store.stats().get.errors), (6, 5));
}

#[tokio::test(start_paused = true)]
async fn what_will_not_change_is_not_tried_again() {
    let faults = faulty(FaultOptions::default());
    let store = retrying(&faults, 8);
    assert_eq!(store.get("none").await.expect_err("absent").kind(), ErrorKind::NotFound);
    assert_eq!(faults.calls("store.get"), 1);
    let refused = object_store::Error::PermissionDenied { path: "a".to_owned(), source: "no".into() };
    assert!(!is_transient(&Error::unavailable("refused").with_source(refused)));
    assert!(is_transient(&Error::unavailable("timed out")));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_an_own_failed_attempt_wrote_counts_as_created() {
    let faults = faulty(FaultOptions::default());
    let store = retrying(&faults, 4);
    faults.fail_next("store.put_if_absent", "", Phase::After, 2);
    assert_eq!(store.put_if_absent("a", bytes()).await.expect("settled"), PutOutcome::Created);
    assert_eq!(store.put_if_absent("a", bytes()).await.expect("another call"), PutOutcome::Exists);
    faults.fail_next("store.put_if_absent", "", Phase::Before, 1);
    let theirs = store.put_if_absent("a", Bytes::from_static(b"late")).await.expect("settled");
    assert_eq!(theirs, PutOutcome::Exists, "another's object, met on the second attempt");
    faults.fail_next("store.put_if_absent", "", Phase::After, 4);
    let unknown = store.put_if_absent("b", bytes()).await.expect_err("never answered");
    assert_eq!(unknown.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn of_racers_over_a_bad_line_one_creates_whatever_fails() {
    for seed in 0..30 {
        let options =
            FaultOptions { seed, max_delay_us: 500, error_before: 150, error_after: 200, late: 100, stale_list: 0 };
        let faults = faulty(options);
        let store = retrying(&faults, 50);
        let racers = (0..8u8).map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.put_if_absent("a", vec![n; 100].into()).await.expect("settled") })
        });
        let mut created = Vec::new();
        for (n, racer) in racers.collect::<Vec<_>>().into_iter().enumerate() {
            if racer.await.expect("no panic") == PutOutcome::Created {
                created.push(n as u8);
            }
        }
        assert_eq!(created.len(), 1, "seed {seed}");
        faults.settle().await;
        assert_eq!(store.get("a").await.expect("there"), vec![created[0]; 100], "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_stay_below_their_ceiling() {
    let faults = faulty(FaultOptions::default());
    let options = RetryOptions { max_attempts: 20, base_delay_ms: 10, max_delay_ms: 100, ..RetryOptions::default() };
    let store = RetryStore::new(faults.shared(), options, 1).expect("valid options");
    faults.fail_next("store.get", "", Phase::Before, 20);
    let begun = tokio::time::Instant::now();
    store.get("a").await.expect_err("never served");
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(100) && waited < Duration::from_millis(19 * 101), "{waited:?}");
}

/// A store whose every call takes this long and fails.
#[derive(Debug)]
struct Slow(Duration);

#[async_trait]
impl Store for Slow {
    async fn put(&self, _: &str, _: Bytes) -> Result<()> {
        unreachable!("only `get` is called")
    }
    async fn put_if_absent(&self, _: &str, _: Bytes) -> Result<PutOutcome> {
        tokio::time::sleep(self.0).await;
        Err(Error::unavailable("timed out"))
    }
    async fn get(&self, _: &str) -> Result<Bytes> {
        tokio::time::sleep(self.0).await;
        Err(Error::unavailable("timed out"))
    }
    async fn list(&self, _: &str) -> Result<Vec<ObjectMeta>> {
        unreachable!("only `get` is called")
    }
    async fn delete(&self, _: &str) -> Result<()> {
        unreachable!("only `get` is called")
    }
    async fn create(&self, _: &str) -> Result<Box<dyn ObjectWriter>> {
        unreachable!("only `get` is called")
    }
    async fn map(&self, _: &str, _: u64) -> Result<Bytes> {
        unreachable!("only `get` is called")
    }
    fn local(&self) -> Option<LocalDir> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_behind_the_deadline() {
    let options = RetryOptions { deadline_ms: 70_000, ..RetryOptions::default() };
    let store = RetryStore::new(Arc::new(Slow(Duration::from_secs(30))), options, 1).expect("valid options");
    for conditional in [false, true] {
        let begun = Instant::now();
        let error = match conditional {
            false => store.get("a").await.expect_err("never served"),
            true => store.put_if_absent("a", bytes()).await.expect_err("never served"),
        };
        let took = begun.elapsed();
        assert!(took > Duration::from_secs(89) && took < Duration::from_secs(100), "three attempts: {took:?}");
        assert!(error.message().contains("3 attempts within 70000 ms"), "{error}");
    }
}

#[test]
fn options_that_make_no_sense_are_refused_and_the_defaults_are_fine() {
    RetryOptions::default().validate().expect("the defaults are valid");
    for options in [
        RetryOptions { max_attempts: 0, ..RetryOptions::default() },
        RetryOptions { max_attempts: 101, ..RetryOptions::default() },
        RetryOptions { base_delay_ms: 2, max_delay_ms: 1, ..RetryOptions::default() },
        RetryOptions { deadline_ms: 4_999, ..RetryOptions::default() },
    ] {
        assert_eq!(options.validate().expect_err("refused").kind(), ErrorKind::Invalid);
    }
}
