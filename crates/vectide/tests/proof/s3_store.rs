//! The S3 store over real HTTP: every promise of [`Store`], on a good line and on a bad one.

use crate::s3::{S3, seed, stubborn};
use bytes::Bytes;
use std::time::Duration;
use vectide::store::{PutOutcome, RetryOptions, Store, conformance};
use vectide::{ErrorKind, Options, Result, Vectide};
use vectide_s3_server::{Faults, Latency, Line};

/// Long enough for any answer that comes, on any machine.
const PATIENT_MS: u64 = 60_000;

fn bytes() -> Bytes {
    Bytes::from_static(b"ours")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_keeps_every_promise() {
    let s3 = S3::start();
    let (options, line) = s3.client("good", RetryOptions::default(), PATIENT_MS);
    conformance::run(s3.store("some/prefix", &options)).await;
    assert!(line.count("complete_upload") > 0 && line.count("list_objects") > 5, "{:?}", line.counts());
    let (other, _) = s3.client("other", RetryOptions::default(), PATIENT_MS);
    conformance::run(s3.store("some/other", &other)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_keeps_every_promise_over_a_bad_line() {
    let seed = seed("VECTIDE_S3_SEED");
    let s3 = S3::start();
    let (options, line) = s3.client("bad", stubborn(), 5_000);
    let latency = Latency { median_ms: 3.0, sigma: 0.8, max_ms: 200.0 };
    line.set_faults(Faults {
        seed,
        latency,
        slow_down: 40,
        drop_before: 20,
        drop_after: 20,
        hang_before: 2,
        hang_after: 2,
        slow_body: 20,
        cut_body: 20,
        ..Faults::default()
    });
    conformance::run(s3.store("some/prefix", &options)).await;
    for fault in ["slow_down", "drop_before", "drop_after"] {
        assert!(line.count(fault) > 0, "{fault}: {:?}", line.counts());
    }
}

/// A kind of failure by name, how it is set, and whether the request's effect takes place all the same.
type Failure = (&'static str, fn(&mut Faults), bool);

/// Every kind of failure of one request.
const FAILURES: [Failure; 6] = [
    ("slow_down", |faults| faults.slow_down = 1_000, false),
    ("drop_before", |faults| faults.drop_before = 1_000, false),
    ("drop_after", |faults| faults.drop_after = 1_000, true),
    ("late", |faults| faults.late = 1_000, true),
    ("hang_before", |faults| faults.hang_before = 1_000, false),
    ("hang_after", |faults| faults.hang_after = 1_000, true),
];

fn only(set: fn(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

/// Makes the line good again once `count` requests have met `fault`.
async fn mend_after(line: &Line, fault: &str, count: u64) {
    while line.count(fault) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    line.set_faults(Faults::default());
}

#[tokio::test]
async fn a_conditional_put_is_settled_whatever_became_of_its_first_attempts() {
    let s3 = S3::start();
    let retry = RetryOptions { base_delay_ms: 20, max_delay_ms: 20, ..stubborn() };
    let (options, line) = s3.client("k", retry, 300);
    let store = s3.store("p", &options);
    // On a line of its own and never out of patience: its one attempt is answered.
    let good = s3.store("p", &s3.client("good", stubborn(), PATIENT_MS).0);
    for (fault, set, _) in FAILURES {
        line.set_faults(only(set));
        let (put, ()) = tokio::join!(store.put_if_absent(fault, bytes()), mend_after(&line, fault, 2));
        assert_eq!(put.expect(fault), PutOutcome::Created, "{fault}: ours, whichever attempt wrote it");
        let again = good.put_if_absent(fault, bytes()).await.expect(fault);
        assert_eq!(again, PutOutcome::Exists, "{fault}: another call");
        line.set_faults(only(set));
        let theirs = Bytes::from_static(b"theirs");
        let (put, ()) = tokio::join!(store.put_if_absent(fault, theirs), mend_after(&line, fault, 4));
        assert_eq!(put.expect(fault), PutOutcome::Exists, "{fault}: never Created over another's object");
        line.settle().await;
        assert_eq!(good.get(fault).await.expect(fault), bytes());
    }
}

#[tokio::test]
async fn a_put_that_is_never_answered_ends_in_bounded_time_as_unknown() {
    let s3 = S3::start();
    let retry = RetryOptions { max_attempts: 3, base_delay_ms: 1, max_delay_ms: 2, ..RetryOptions::default() };
    let (options, line) = s3.client("k", retry, 200);
    let store = s3.store("p", &options);
    let good = s3.store("p", &s3.client("good", stubborn(), PATIENT_MS).0);
    for (fault, set, has_effect) in FAILURES {
        line.set_faults(only(set));
        let error = store.put_if_absent(fault, bytes()).await.expect_err(fault);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault}: {error}");
        assert!(error.message().contains("gave up after 3 attempts"), "{error}");
        assert_eq!(line.count(fault), 3, "three requests and no more: the client retries nothing by itself");
        line.set_faults(Faults::default());
        line.settle().await;
        assert_eq!(good.get(fault).await.is_ok(), has_effect, "{fault}");
    }
}

#[tokio::test]
async fn a_body_that_is_cut_is_asked_for_again_and_a_wrong_key_is_not() {
    let s3 = S3::start();
    let (options, line) = s3.client("k", stubborn(), PATIENT_MS);
    let store = s3.store("p", &options);
    let whole = Bytes::from(vec![7; 100_000]);
    store.put("x", whole.clone()).await.expect("put");
    line.set_faults(only(|faults| faults.cut_body = 1_000));
    let (got, ()) = tokio::join!(store.get("x"), mend_after(&line, "cut_body", 2));
    assert!(got.expect("whole in the end") == whole);
    let mut stranger = options.clone();
    stranger.s3.access_key_id = Some("nobody".to_owned());
    let error = s3.store("p", &stranger).get("x").await.expect_err("refused");
    assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("InvalidAccessKeyId"), "{error}");
    assert!(!error.message().contains("attempts"), "not tried again: {error}");
}

async fn stream(store: &dyn Store, path: &str, bytes: usize) -> Result<()> {
    let mut writer = store.create(path).await?;
    for _ in 0..bytes.div_ceil(1 << 20) {
        writer.write(Bytes::from(vec![7; 1 << 20])).await?;
    }
    writer.finish().await.map(drop)
}

#[tokio::test]
async fn an_upload_whose_completion_was_not_answered_is_whole() {
    let s3 = S3::start();
    let (options, line) = s3.client("k", stubborn(), PATIENT_MS);
    let store = s3.store("p", &options);
    // The answer to the first completion is lost, and the second finds no upload any more.
    line.fail_next("complete_upload", only(|faults| faults.drop_after = 1_000));
    stream(&*store, "x", 20 << 20).await.expect("whole");
    assert_eq!((line.count("complete_upload"), line.count("drop_after")), (2, 1));
    assert_eq!(store.map("x", 20 << 20).await.expect("there").len(), 20 << 20);
    // One that was aborted by somebody else is no success, and no missing object either.
    line.stall_next("complete_upload");
    let abort = async {
        while s3.server.unfinished_uploads() == 0 || line.count("complete_upload") < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        s3.server.abort_uploads();
        line.release();
    };
    let (lost, ()) = tokio::join!(stream(&*store, "y", 20 << 20), abort);
    assert_eq!(lost.expect_err("aborted").kind(), ErrorKind::Unavailable);
    assert_eq!(store.get("y").await.expect_err("nothing").kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn an_upload_that_is_given_up_leaves_nothing_on_the_server() {
    let s3 = S3::start();
    let (options, line) = s3.client("k", stubborn(), PATIENT_MS);
    let store = s3.store("p", &options);
    let mut writer = store.create("x").await.expect("create");
    writer.write(Bytes::from(vec![7; 9 << 20])).await.expect("write");
    drop(writer);
    while line.count("abort_upload") == 0 || s3.server.unfinished_uploads() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(s3.server.objects("bucket").is_empty());
}

#[tokio::test]
async fn a_store_that_ignores_conditions_gets_no_database() {
    let s3 = S3::start();
    s3.server.ignore_conditions();
    let (store, line) = s3.client("k", stubborn(), PATIENT_MS);
    let options = Options { store, ..Options::default() };
    let error = Vectide::open(&s3.uri("db"), options.clone()).await.expect_err("refused");
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("If-None-Match"), "{error}");
    assert!(s3.server.objects("bucket").is_empty(), "nothing is left");
    // One that honours them does, also if the answers to the trial are lost.
    let s3 = S3::start();
    let (store, line_of_another) = s3.client("k", stubborn(), PATIENT_MS);
    line_of_another.fail_next("put_object", only(|faults| faults.drop_after = 1_000));
    let options = Options { store, ..options };
    Vectide::open(&s3.uri("db"), options).await.expect("opens");
    assert_eq!((line_of_another.count("drop_after"), line.count("drop_after")), (1, 0));
}
