//! The object log, its fences and their fights over a store that delays, fails and stalls on purpose.

use super::*;
use crate::store::ObjectBackend;
use crate::store::fault::{FaultOptions, FaultStore};
use crate::store::fault_fs::Phase;
use crate::wal::fence::take_over;
use crate::wal::fixture::*;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

fn quick() -> ObjectLogOptions {
    ObjectLogOptions { beside_bytes: 1, ..ObjectLogOptions::default() }
}

async fn wal_objects(store: &Arc<dyn Store>) -> Vec<(u64, u64)> {
    let listed = store.list(&paths().wal_dir()).await.expect("lists");
    let parsed = listed.iter().filter_map(|object| paths().parse_wal(&object.path));
    parsed.map(|(epoch, n, _)| (epoch.0, n)).collect()
}

#[tokio::test]
async fn what_was_acknowledged_is_replayed_in_order_after_a_close_and_after_a_crash() {
    for closes in [true, false] {
        let store = memory();
        let writer = Writer::objects(&store, 1, 1, quick());
        for count in [1, 700, 3] {
            writer.put(count).await.expect("durable");
        }
        let closed = if closes { vec![writer.log.close().await.expect("closes")] } else { Vec::new() };
        drop(writer);
        // Opened three times; nobody records what the one before found, or writes.
        for current in 2..5 {
            let plan = plan(from_start(2).from, 1, current, closed.clone());
            let (batches, recovered) = recover_objects(&store, plan).await.expect("replays");
            assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), (1..=704).collect::<Vec<_>>());
            assert_eq!(recovered.ends[0], EpochEnd { epoch: Epoch(1), at: 3, last_seq: Seq(704) });
        }
        let fence = (1, 3);
        let expected = [(1, 0), (1, 1), (1, 2), fence, (2, 0), (3, 0)];
        let left = wal_objects(&store).await;
        assert!(left.iter().eq(expected.iter().filter(|&&at| !closes || at != fence)), "{left:?}: one fence an epoch");
    }
}

#[tokio::test]
async fn an_open_without_a_write_puts_nothing() {
    let store = memory();
    let writer = Writer::objects(&store, 1, 1, quick());
    assert_eq!(writer.log.close().await.expect("closes").at, 0);
    assert!(wal_objects(&store).await.is_empty());
    assert_eq!(writer.put(1).await.expect_err("closed").kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_huge_batch_spans_objects_and_is_whole_or_absent() {
    let store = memory();
    let writer = Writer::objects(&store, 1, 1, ObjectLogOptions { object_bytes: 1 << 20, ..quick() });
    writer.put(1).await.expect("durable");
    writer.put(150_000).await.expect("durable");
    writer.put(2).await.expect("durable");
    let objects = wal_objects(&store).await;
    assert_eq!(objects.len(), 5, "{objects:?}: one, three parts, one");
    let behind = writer.log.locate(Seq(150_002));
    let (batches, _) = recover_objects(&store, plan(behind, 150_002, 2, Vec::new())).await.expect("replays");
    assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), [150_002, 150_003]);
    // The log breaks off inside it.
    for n in [3, 4, 5] {
        store.delete(&paths().wal(Epoch(1), n, LogKind::Object)).await.expect("deletes");
    }
    let (batches, recovered) = recover_objects(&store, from_start(2)).await.expect("replays");
    assert_eq!(batches.len(), 1);
    assert_eq!(recovered.ends, [EpochEnd { epoch: Epoch(1), at: 1, last_seq: Seq(1) }]);
}

#[tokio::test]
async fn a_stalled_writer_never_acknowledges_behind_the_fence() {
    for phase in [Phase::Before, Phase::After] {
        let store = memory();
        let faults = FaultStore::new(Arc::clone(&store), FaultOptions::default());
        let old = Writer::objects(&faults.shared(), 1, 1, quick());
        old.put(3).await.expect("durable");
        faults.stall(phase);
        for _ in 0..4 {
            old.put_later(1).await.expect("room");
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (batches, recovered) = recover_objects(&store, from_start(2)).await.expect("takes over");
        let heard = old.heard.upto();
        assert_eq!(heard, PubNo(1), "nothing more was acknowledged while it hung");
        let new = Writer::objects(&store, 2, recovered.last_seq.0 + 1, quick());
        new.put(1).await.expect("durable");
        faults.release();
        let late = old.put(1).await.expect_err("shut out");
        assert_eq!(late.kind(), ErrorKind::Fenced, "{phase:?}");
        assert!(late.message().contains("epoch 2 took the shard over"), "{late}");
        // What was acknowledged after the takeover had been recovered by it.
        let acknowledged = old.heard.upto().0 as usize;
        assert!(acknowledged <= batches.len(), "{phase:?}: {acknowledged} of {}", batches.len());
        let (again, _) = recover_objects(&store, from_start(3)).await.expect("replays");
        assert_eq!(again.len(), batches.len() + 1, "{phase:?}: late puts are garbage");
    }
}

#[tokio::test]
async fn an_own_put_whose_answer_was_lost_counts() {
    let store = memory();
    let faults = FaultStore::new(Arc::clone(&store), FaultOptions::default());
    let writer = Writer::objects(&faults.shared(), 1, 1, quick());
    writer.put(1).await.expect("durable");
    // Its bytes are there already, as after a retry below the log.
    let schema = log_schema();
    let mut object = schema.file_header(Epoch(1), 1);
    let batch = put(&schema, 2, 1);
    let place = Place { epoch: Epoch(1), at: 1, first_seq: Seq(2), publication: PubNo(2), synced_to: 1 };
    batch.seal_header(0, &place, &mut object);
    object.extend_from_slice(batch.part_body(0));
    store.put(&paths().wal(Epoch(1), 1, LogKind::Object), object.into()).await.expect("puts");
    writer.put(1).await.expect("its own bytes");
    // Anybody else's bytes are not.
    store.put(&paths().wal(Epoch(1), 2, LogKind::Object), vec![7; 100].into()).await.expect("puts");
    assert_eq!(writer.put(1).await.expect_err("another's").kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn an_unreachable_store_fails_the_log_and_the_outcome_is_found_on_replay() {
    for phase in [Phase::Before, Phase::After] {
        let store = memory();
        let faults = FaultStore::new(Arc::clone(&store), FaultOptions::default());
        let writer = Writer::objects(&faults.shared(), 1, 1, quick());
        writer.put(1).await.expect("durable");
        faults.fail_next("store.put_if_absent", "/wal/", phase, 1);
        let error = writer.put(1).await.expect_err("unreachable");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("unknown"), "{error}");
        assert!(writer.put(1).await.is_err(), "the log is dead");
        let (batches, _) = recover_objects(&store, from_start(2)).await.expect("replays");
        assert_eq!(batches.len(), if phase == Phase::After { 2 } else { 1 });
    }
}

#[tokio::test]
async fn takeovers_of_takeovers_agree_on_the_first_fence() {
    let store = memory();
    let writer = Writer::objects(&store, 1, 1, quick());
    for _ in 0..20 {
        writer.put(1).await.expect("durable");
    }
    drop(writer);
    // Epochs 2, 3 and 4 all take over and die before they record anything; 3 and 4 at once.
    let from = LogPosition { epoch: Epoch(1), at: 0 };
    let ends = take_over(&store, &paths(), from, &[], Epoch(2)).await.expect("fences");
    assert_eq!(ends.iter().map(|end| end.at).collect::<Vec<_>>(), [20]);
    let path = paths();
    let (three, four) =
        tokio::join!(take_over(&store, &path, from, &[], Epoch(3)), take_over(&store, &path, from, &[], Epoch(4)),);
    for ends in [three.expect("fences"), four.expect("fences")] {
        assert_eq!(ends[0].at, 20, "the first fence stays the end");
    }
    let (batches, recovered) = recover_objects(&store, from_start(5)).await.expect("replays");
    assert_eq!((batches.len(), recovered.ends.len()), (20, 4));
    assert!(recovered.ends[1..].iter().all(|end| end.at == 0 && end.last_seq == Seq(20)));
}

#[tokio::test]
async fn a_missing_or_damaged_object_below_the_end_is_named() {
    let store = memory();
    let writer = Writer::objects(&store, 1, 1, quick());
    for _ in 0..3 {
        writer.put(1).await.expect("durable");
    }
    let end = writer.log.close().await.expect("closes");
    let path = paths().wal(Epoch(1), 1, LogKind::Object);
    let mut bytes = store.get(&path).await.expect("there").to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    store.delete(&path).await.expect("deletes");
    for damage in [None, Some(Bytes::from(bytes))] {
        if let Some(damage) = damage {
            store.put(&path, damage).await.expect("puts");
        }
        let error = recover_objects(&store, plan(from_start(2).from, 1, 2, vec![end])).await.expect_err("damage");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(&path), "{error}");
    }
}

#[tokio::test]
async fn trimming_leaves_fences_and_what_is_needed() {
    let store = memory();
    let old = Writer::objects(&store, 1, 1, quick());
    for _ in 0..5 {
        old.put(1).await.expect("durable");
    }
    let (_, recovered) = recover_objects(&store, from_start(2)).await.expect("takes over");
    let writer = Writer::objects(&store, 2, 6, quick());
    for _ in 0..5 {
        writer.put(1).await.expect("durable");
    }
    assert_eq!(writer.log.stats().objects, 5);
    let position = writer.log.locate(Seq(9));
    assert_eq!(position, LogPosition { epoch: Epoch(2), at: 3 });
    writer.log.trim(position).await.expect("trims");
    assert_eq!(wal_objects(&store).await, [(1, 5), (2, 3), (2, 4)]);
    assert_eq!(writer.log.stats().objects, 2);
    assert_eq!(old.put(1).await.expect_err("the fence stands").kind(), ErrorKind::Fenced);
    let plan = plan(position, 9, 3, recovered.ends);
    let (batches, _) = recover_objects(&store, plan).await.expect("replays");
    assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), [9, 10]);
}

#[tokio::test]
async fn many_writers_share_objects() {
    let faults = FaultStore::new(memory(), FaultOptions { max_delay_us: 3000, ..FaultOptions::default() });
    let writer = Arc::new(Writer::objects(&faults.shared(), 1, 1, ObjectLogOptions::default()));
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move {
                for _ in 0..10 {
                    writer.put(1).await.expect("durable");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    let stats = writer.log.stats();
    assert_eq!((stats.rows_written, stats.queue_rows), (640, 0));
    assert!(stats.rows_per_sync > 2.0, "{stats:?}");
}

/// The store, over which every put and get takes 30 ms of Tokio's time.
fn distant_store(inner: Arc<dyn ObjectStore>) -> Arc<dyn Store> {
    let latency =
        ThrottleConfig { wait_put_per_call: LATENCY, wait_get_per_call: LATENCY, ..ThrottleConfig::default() };
    Arc::new(ObjectBackend::new(Arc::new(ThrottledStore::new(inner, latency))))
}

fn distant(options: ObjectLogOptions) -> Arc<Writer> {
    Arc::new(Writer::objects(&distant_store(Arc::new(InMemory::new())), 1, 1, options))
}

const LATENCY: Duration = Duration::from_millis(30);

/// `callers` that each write `rows` rows, one after the other; how long it took.
async fn closed_loop(writer: &Arc<Writer>, callers: usize, rows: u64) -> Duration {
    let started = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let writer = Arc::clone(writer);
            tokio::spawn(async move {
                for _ in 0..rows {
                    writer.put(1).await.expect("durable");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn small_writers_share_objects_and_none_waits_for_two_whole_puts() {
    let writer = distant(ObjectLogOptions::default());
    let took = closed_loop(&writer, 64, 20).await;
    let stats = writer.log.stats();
    assert!(stats.rows_per_sync >= 20.0, "{stats:?}");
    assert!(took < LATENCY * 20 * 3 / 2, "{took:?} for 20 writes in a row");
    // A lone writer waits for nothing but his own.
    let alone = distant(ObjectLogOptions::default());
    let took = closed_loop(&alone, 1, 20).await;
    assert!(took < LATENCY * 20 + Duration::from_millis(40), "{took:?}");
    assert_eq!(alone.log.stats().syncs, 20);
}

#[tokio::test(start_paused = true)]
async fn a_window_of_puts_hides_their_latency() {
    let mut took = Vec::new();
    for puts_in_flight in [1, 8] {
        let writer = distant(ObjectLogOptions { puts_in_flight, object_bytes: 4 << 10, ..ObjectLogOptions::default() });
        let started = Instant::now();
        let mut last = PubNo(0);
        for _ in 0..80 {
            last = writer.put_later(400).await.expect("room");
        }
        writer.heard.wait(last).await.expect("durable");
        took.push(started.elapsed());
        assert_eq!(writer.log.stats().syncs, 80, "objects of one size");
    }
    assert!(took[0] > took[1] * 5, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_put_holds_acknowledgements_up_but_not_the_puts_behind_it() {
    let faults = FaultStore::new(distant_store(Arc::new(InMemory::new())), FaultOptions::default());
    let options = ObjectLogOptions { puts_in_flight: 2, object_bytes: 4 << 10, ..ObjectLogOptions::default() };
    let writer = Writer::objects(&faults.shared(), 1, 1, options);
    let slow = Duration::from_secs(1);
    faults.delay_next("store.put_if_absent", "/wal/", slow);
    let started = Instant::now();
    let mut last = PubNo(0);
    for _ in 0..20 {
        last = writer.put_later(400).await.expect("room");
    }
    tokio::time::sleep(slow - LATENCY).await;
    assert_eq!(writer.heard.upto(), PubNo(0), "nothing is acknowledged before what precedes it");
    assert_eq!(faults.calls("store.put_if_absent"), 8, "no more than four windows are ahead of it");
    writer.heard.wait(last).await.expect("durable");
    // Seven of them were there by then; the other twelve go two at a time.
    let took = started.elapsed();
    assert!(took < slow + LATENCY * 8, "{took:?}");
}

#[tokio::test]
async fn what_precedes_a_failed_put_is_acknowledged_and_what_follows_it_is_not() {
    let store = memory();
    let faults = FaultStore::new(Arc::clone(&store), FaultOptions::default());
    let options = ObjectLogOptions { puts_in_flight: 4, object_bytes: 4 << 10, ..ObjectLogOptions::default() };
    let writer = Writer::objects(&faults.shared(), 1, 1, options);
    faults.delay_next("store.put_if_absent", "/wal/", Duration::from_millis(50));
    faults.fail_next("store.put_if_absent", &paths().wal(Epoch(1), 1, LogKind::Object), Phase::Before, 1);
    let mut last = PubNo(0);
    for _ in 0..4 {
        last = writer.put_later(400).await.expect("room");
    }
    assert_eq!(writer.heard.wait(last).await.expect_err("one failed").kind(), ErrorKind::Unavailable);
    assert_eq!(writer.heard.upto(), PubNo(1), "the one before it");
}

#[tokio::test(start_paused = true)]
async fn a_long_log_is_fenced_and_replayed_many_objects_at_a_time_and_in_order() {
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store: Arc<dyn Store> = Arc::new(ObjectBackend::new(inner.clone()));
    let writer = Writer::objects(&store, 1, 1, quick());
    for _ in 0..400 {
        writer.put(1).await.expect("durable");
    }
    drop(writer);
    let started = Instant::now();
    let (batches, recovered) = recover_objects(&distant_store(inner), from_start(2)).await.expect("replays");
    assert_eq!(batches.iter().flat_map(ids).collect::<Vec<_>>(), (1..=400).collect::<Vec<_>>());
    assert_eq!(recovered.ends[0].at, 400);
    // A trial is a put and a look at what is there; then the objects are read.
    let took = started.elapsed();
    assert!(took < LATENCY * 3 * 400 / 16, "{took:?}");
    assert_eq!(
        wal_objects(&store).await.iter().filter(|(epoch, n)| *epoch == 1 && *n > 400).count(),
        0,
        "none too many"
    );
}

#[tokio::test(start_paused = true)]
async fn an_interval_bounds_the_puts_but_holds_no_full_object_back() {
    let interval = Duration::from_millis(200);
    let options = ObjectLogOptions { put_interval: interval, object_bytes: 64 << 10, ..ObjectLogOptions::default() };
    let writer = distant(options);
    let took = closed_loop(&writer, 8, 10).await;
    let puts = writer.log.stats().syncs;
    assert!(took >= interval * (puts as u32 - 1), "{puts} puts in {took:?}");
    assert!(writer.log.stats().rows_per_sync >= 7.0, "{:?}", writer.log.stats());
    let started = Instant::now();
    let mut last = PubNo(0);
    for _ in 0..40 {
        last = writer.put_later(10_000).await.expect("room");
    }
    writer.heard.wait(last).await.expect("durable");
    assert!(started.elapsed() < interval * 5, "{:?}", started.elapsed());
}

/// Enqueuing and the task's last look before it sleeps race for real.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_batch_is_overlooked_however_it_races_with_the_log_going_to_sleep() {
    for beside_bytes in [1, 256 << 10] {
        let options = ObjectLogOptions { beside_bytes, puts_in_flight: 2, ..ObjectLogOptions::default() };
        let writer = Arc::new(Writer::objects(&memory(), 1, 1, options));
        closed_loop(&writer, 8, 200).await;
        assert_eq!(writer.log.stats().rows_written, 1_600);
    }
}

#[test]
fn the_pace_follows_what_most_puts_take() {
    let ms = Duration::from_millis;
    let mut pace = Pace::new(Duration::ZERO);
    let now = Instant::now();
    assert!(pace.is_due(false, now), "an idle log puts at once");
    pace.last = Some(now);
    assert!(!pace.is_due(true, now + ms(500)), "nothing is known yet: one at a time");
    for n in 0..200u64 {
        pace.note(if n % 10 == 0 { ms(2_000) } else { ms(28 + n % 5) });
    }
    let median = pace.median.expect("known");
    assert!((ms(27)..ms(40)).contains(&median), "{median:?}: one in ten of two seconds changes little");
    assert!(!pace.is_due(true, now + ms(10)) && pace.is_due(true, now + ms(21)));
    for _ in 0..60 {
        pace.note(ms(3));
    }
    assert!(pace.median.expect("known") < ms(4), "and it follows");
}

/// Writers take the shard from one another over a store that delays, loses answers and lets puts take effect late: each
/// recovers everything that was acknowledged before, and nothing is acknowledged behind a fence.
#[tokio::test]
async fn fights_lose_nothing_that_was_acknowledged() {
    for seed in 0..30 {
        let store = memory();
        let options = FaultOptions { seed, max_delay_us: 300, error_after: 20, late: 20, ..FaultOptions::default() };
        let faults = FaultStore::new(Arc::clone(&store), options);
        let mut writers: Vec<Writer> = Vec::new();
        let (mut acknowledged, mut next_seq) = (0, 1);
        for epoch in 1..=4 {
            if epoch > 1 {
                // The old one goes on while it is being shut out.
                let (batches, recovered) = recover_objects(&store, from_start(epoch)).await.expect("takes over");
                let seen = batches.iter().map(|b| b.publication).max().unwrap_or(PubNo(0)).0;
                assert!(seen >= acknowledged, "seed {seed}: {acknowledged} acknowledged before, {seen} found");
                next_seq = recovered.last_seq.0 + 1;
            }
            let writer = Writer::objects(&faults.shared(), epoch, next_seq, quick());
            let mut last = PubNo(next_seq - 1);
            for _ in 0..12 {
                match writer.put_later(1).await {
                    Ok(publication) => last = publication,
                    Err(_) => break,
                }
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            let _ = tokio::time::timeout(Duration::from_millis(seed % 5), writer.heard.wait(last)).await;
            acknowledged = acknowledged.max(writer.heard.upto().0);
            writers.push(writer);
        }
        faults.settle().await;
        let (batches, recovered) = recover_objects(&store, from_start(5)).await.expect("replays");
        assert!(recovered.last_publication.0 >= acknowledged, "seed {seed}");
        let seqs: Vec<i64> = batches.iter().flat_map(ids).collect();
        assert_eq!(seqs, (1..=recovered.last_seq.0 as i64).collect::<Vec<_>>(), "seed {seed}");
        for (writer, end) in writers.iter().zip(&recovered.ends) {
            let heard = writer.heard.upto();
            assert!(heard.0 <= end.last_seq.0, "seed {seed}: epoch {} acknowledged behind its fence", end.epoch);
        }
    }
}
