use super::*;
use crate::ErrorKind;
use crate::flush::build::build_segment;
use crate::memtable::Memtable;
use crate::rows_conformance::{Case, FIRST_ROW, Random, check, probe};
use crate::store::fault::{FaultOptions, FaultStore};
use crate::store::{Store, StoreOptions, open_uri};
use parking_lot::Mutex;

const DIR: &str = "segments/1-1/";

fn memory() -> Arc<dyn Store> {
    open_uri("memory://", &StoreOptions::default()).expect("opens")
}

/// Seals the case's memtable and writes it out.
async fn built(store: &Arc<dyn Store>, case: &Case, older: &[(RowId, PubNo)]) -> (Arc<Memtable>, SegmentMeta) {
    let memtable = Arc::new(case.memtable(u32::MAX));
    memtable.seal();
    let meta = build_segment(store, DIR, "1-1", &memtable, older).await.expect("builds");
    (memtable, meta)
}

async fn open(store: &Arc<dyn Store>, case: &Case, meta: &SegmentMeta) -> Result<Segment> {
    Segment::open(store, DIR, meta, &case.schema).await
}

#[tokio::test]
async fn a_segment_answers_as_its_memtable_did() {
    for (seed, n, string_keys) in [(1, 1500, false), (2, 4500, true), (3, 1, true)] {
        let (store, case) = (memory(), Case::new(seed, n, string_keys));
        let (_, meta) = built(&store, &case, &[]).await;
        let segment = open(&store, &case, &meta).await.expect("opens");
        check(&segment, &case);
        let verified = segment.verify(&meta).expect("is whole");
        let bytes: u64 = meta.parts.iter().map(|part| part.len).sum();
        assert_eq!((verified.parts, verified.rows, verified.bytes), (6, n as u64, bytes));
        assert_eq!(segment.disk_bytes(), bytes);
    }
}

#[tokio::test]
async fn a_segment_on_disk_is_mapped() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("UTF-8");
    let store = open_uri(path, &StoreOptions::default()).expect("opens");
    let case = Case::new(5, 900, true);
    let (_, meta) = built(&store, &case, &[]).await;
    let segment = open(&store, &case, &meta).await.expect("opens");
    check(&segment, &case);
    segment.verify(&meta).expect("is whole");
}

#[tokio::test]
async fn marks_of_later_batches_come_from_the_log_again() {
    let (store, case) = (memory(), Case::new(7, 600, false));
    let memtable = Arc::new(case.memtable(u32::MAX));
    let last = memtable.last_publication();
    let own = memtable.marks();
    assert!(!own.is_empty(), "keys repeat");
    let live = (0..600).find(|&row| case.ends.ended_by(row).is_none()).expect("some row lives");
    case.ends.set(live, last.plus(1));
    memtable.seal();
    let older = [(RowId(3), last), (RowId(900), PubNo(1))];
    let meta = build_segment(&store, DIR, "1-1", &memtable, &older).await.expect("builds");
    let mut expected = [&older[..], &own].concat();
    expected.sort_unstable();
    let segment = open(&store, &case, &meta).await.expect("opens");
    assert_eq!(segment.marks().expect("reads"), expected);
}

#[tokio::test]
async fn a_memtable_of_deletes_alone_becomes_a_segment_of_marks() {
    let (store, case) = (memory(), Case::new(8, 10, false));
    let memtable = Memtable::new(case.schema.clone(), Arc::clone(&case.ends), FIRST_ROW).expect("valid");
    memtable.cover(Seq(4), Seq(5), PubNo(9));
    memtable.seal();
    let older = [(RowId(3), PubNo(9))];
    let meta = build_segment(&store, DIR, "1-1", &Arc::new(memtable), &older).await.expect("builds");
    assert_eq!((meta.rows, meta.parts.len(), meta.first_seq, meta.last_seq), (0, 1, Seq(4), Seq(5)));
    let segment = open(&store, &case, &meta).await.expect("opens");
    assert_eq!(segment.marks().expect("reads"), older);
    assert_eq!(segment.verify(&meta).expect("is whole").rows, 0);
    assert_eq!(segment.find(&probe(&case.keys(), 0), 1).expect("looks"), None);
    assert_eq!(segment.read(0..0, &[0]).expect("reads").num_rows(), 0);
}

#[tokio::test]
async fn what_still_changes_is_not_built() {
    let (store, case) = (memory(), Case::new(9, 50, false));
    let unsealed = Arc::new(case.memtable(u32::MAX));
    let error = build_segment(&store, DIR, "1-1", &unsealed, &[]).await.expect_err("not sealed");
    assert_eq!(error.kind(), ErrorKind::Internal);
    let case = Case::new(9, 50, false);
    let behind = Arc::new(case.memtable(10));
    behind.seal();
    assert!(build_segment(&store, DIR, "1-1", &behind, &[]).await.is_err(), "not indexed");
}

#[tokio::test]
async fn rows_are_an_arrow_file_like_any_other() {
    let (store, case) = (memory(), Case::new(4, 5000, false));
    built(&store, &case, &[]).await;
    let bytes = store.get(&format!("{DIR}rows.arrow")).await.expect("is there");
    let reader = arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(bytes), None).expect("an Arrow file");
    assert_eq!(reader.schema().metadata()["vectide.first_row"], FIRST_ROW.to_string());
    let batches: Vec<_> = reader.map(|batch| batch.expect("decodes")).collect();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [4096, 904]);
    let all = arrow::compute::concat_batches(&batches[0].schema(), &batches).expect("one schema");
    for (column, expected) in all.columns().iter().zip(case.rows.columns()) {
        assert_eq!(column, expected);
    }
    let seqs = all.column_by_name("_seq").expect("seqs").as_primitive::<UInt64Type>();
    assert!(seqs.values().iter().zip(&case.seqs).all(|(a, b)| *a == b.0));
}

#[tokio::test]
async fn a_missing_or_shortened_part_is_named() {
    let (store, case) = (memory(), Case::new(6, 300, true));
    let (_, meta) = built(&store, &case, &[]).await;
    for part in &meta.parts {
        let path = format!("{DIR}{}", part.name);
        let bytes = store.get(&path).await.expect("is there");
        store.put(&path, bytes.slice(..bytes.len() - 1)).await.expect("puts");
        let error = open(&store, &case, &meta).await.expect_err("too short");
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains(&path), "{error:?}");
        store.delete(&path).await.expect("deletes");
        let error = open(&store, &case, &meta).await.expect_err("missing");
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains(&path), "{error:?}");
        store.put(&path, bytes).await.expect("puts");
    }
    open(&store, &case, &meta).await.expect("whole again");
}

#[tokio::test]
async fn a_newer_format_asks_for_an_upgrade() {
    let (store, case) = (memory(), Case::new(6, 30, true));
    let (_, meta) = built(&store, &case, &[]).await;
    let path = format!("{DIR}{}", paths::ENDS);
    let bytes = store.get(&path).await.expect("is there");
    // The metadata value "1" of "vectide.format", in the schema and in the footer.
    let mut newer = bytes.to_vec();
    for at in 0..newer.len() - 30 {
        if newer[at..].starts_with(b"\x0e\0\0\0vectide.format") {
            let value = (0..at).rev().find(|&i| newer[i..].starts_with(b"\x01\0\0\x001\0")).expect("the value");
            newer[value + 4] = b'7';
        }
    }
    store.put(&path, newer.into()).await.expect("puts");
    let error = open(&store, &case, &meta).await.expect_err("newer");
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("upgrade"), "{error:?}");
}

/// Runs everything that reads over a segment whose part was changed: it may answer wrongly or say `Corrupt`.
async fn exercise(store: &Arc<dyn Store>, case: &Case, meta: &SegmentMeta) {
    let is_corrupt = |error: crate::Error| {
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::Internal), "{error:?}");
    };
    let segment = match open(store, case, meta).await {
        Ok(segment) => segment,
        Err(error) => return is_corrupt(error),
    };
    let error = segment.verify(meta).expect_err("every change is found");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let keys = case.keys();
    let rows = segment.rows();
    (0..rows as usize).step_by(7).for_each(|row| {
        let _ = segment.find(&probe(&keys, row), rows).map_err(is_corrupt);
    });
    let all: Vec<usize> = (0..case.rows.num_columns()).collect();
    drop(segment.read(0..rows, &all).map_err(is_corrupt));
    drop(segment.take(&[rows - 1, 0, rows / 2], &all).map_err(is_corrupt));
    drop(segment.marks().map_err(is_corrupt));
    let visible = Visible { ends: &case.ends, at: PubNo(u64::MAX), below: rows };
    for (column, dim) in [(0, 8), (1, 5), (2, 4)] {
        let query = VectorQuery { column, vector: &vec![0.5; dim], k: 5, ef: 20 };
        drop(segment.search(&query, &visible).map_err(is_corrupt));
        drop(segment.scan_nearest(&query, &visible).map_err(is_corrupt));
    }
}

#[tokio::test]
async fn no_damage_makes_a_read_panic_and_verify_finds_it() {
    let (store, case) = (memory(), Case::new(11, 200, true));
    let (_, meta) = built(&store, &case, &[(RowId(3), PubNo(2))]).await;
    let mut random = Random(12);
    for part in &meta.parts {
        let path = format!("{DIR}{}", part.name);
        let whole = store.get(&path).await.expect("is there");
        for round in 0..60 {
            let mut bytes = whole.to_vec();
            // Half of the changes go where the structure is: the head and the footer.
            let at = match round % 4 {
                0 => random.below(1200.min(bytes.len())),
                1 => bytes.len() - 1 - random.below(1200.min(bytes.len())),
                _ => random.below(bytes.len()),
            };
            match round % 3 {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = !bytes[at],
                _ => {
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].fill(0xff);
                }
            }
            if bytes == whole {
                continue;
            }
            store.put(&path, bytes.into()).await.expect("puts");
            exercise(&store, &case, &meta).await;
        }
        store.put(&path, whole).await.expect("puts");
    }
    open(&store, &case, &meta).await.expect("opens").verify(&meta).expect("whole again");
}

/// Lets `left` more points of store calls pass and has the next one fail.
fn fail_after(faults: &FaultStore, left: Option<u32>) -> Arc<Mutex<Vec<String>>> {
    let passed: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&passed);
    faults.set_hook(Arc::new(move |point| {
        let mut seen = seen.lock();
        seen.push(format!("{point} {}", point.path));
        match left {
            Some(left) if seen.len() as u32 == left + 1 => Err(Error::unavailable(format!("told to fail at {point}"))),
            _ => Ok(()),
        }
    }));
    passed
}

#[tokio::test]
async fn whichever_store_call_of_a_build_fails_an_earlier_segment_stands_and_a_retry_succeeds() {
    let inner = memory();
    let faults = FaultStore::new(Arc::clone(&inner), FaultOptions::default());
    let store = faults.shared();
    let case = Case::new(13, 700, true);
    let (memtable, earlier) = built(&inner, &case, &[(RowId(3), PubNo(2))]).await;
    let before = inner.list("").await.expect("lists");
    let points = fail_after(&faults, None);
    build_segment(&store, "segments/1-2/", "1-2", &memtable, &[]).await.expect("builds");
    // Creating and finishing each of six parts, each before and after its effect.
    let points = points.lock().len() as u32;
    assert_eq!(points, 24);
    for left in 0..points {
        let (failed, again) = (format!("1-{}", 10 + 2 * left), format!("1-{}", 11 + 2 * left));
        let passed = fail_after(&faults, Some(left));
        let error = build_segment(&store, &format!("segments/{failed}/"), &failed, &memtable, &[]).await;
        let error = error.expect_err("a call failed");
        let at = passed.lock().clone();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.message().contains("told to fail"),
            "{at:?}: {error:?}"
        );
        fail_after(&faults, None);
        let dir = format!("segments/{again}/");
        let meta = build_segment(&store, &dir, &again, &memtable, &[]).await.expect("the next attempt succeeds");
        let segment = Segment::open(&store, &dir, &meta, &case.schema).await.expect("opens");
        segment.verify(&meta).expect("is whole");
        assert_eq!(segment.rows(), memtable.rows());
    }
    // What failed attempts left lies in folders of their own.
    let after = inner.list("").await.expect("lists");
    assert!(before.iter().all(|object| after.contains(object)));
    let segment = open(&inner, &case, &earlier).await.expect("opens");
    segment.verify(&earlier).expect("is whole");
    check(&segment, &case);
    assert_eq!(faults.calls("store.put") + faults.calls("store.put_if_absent"), 0, "a build names nothing");
}
