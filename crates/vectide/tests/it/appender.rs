//! Appenders: a commit is one batch, seen whole or not at all; what was not committed never was; a refused row leaves no
//! trace. With a log, without one, with a key and without.

use crate::support::*;
use arrow::array::{Array, AsArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vectide::{CommitEvery, Durability, ErrorKind, Options, Table, TableSchema, Value, Vectide, arrow};

fn with(durability: Durability) -> Options {
    Options { durability, ..tiny() }
}

const ALL: [Durability; 3] = [Durability::Durable, Durability::Buffered, Durability::None];

fn keyless() -> TableSchema {
    vectide::schema! { writer: Int64, number: Int64, text: Utf8 }.expect("valid")
}

async fn keyless_table(options: Options) -> (Vectide, Table) {
    let db = Vectide::open("memory://", options).await.expect("opens");
    let table = db.create_table("t", keyless()).await.expect("creates");
    (db, table)
}

/// `(writer, number)` of every row, in the order of the table.
async fn numbers(table: &Table) -> Vec<(i64, i64)> {
    let rows = table.scan().await.expect("scans").collect_all().expect("reads");
    let column = |name: &str| rows.column_by_name(name).expect(name).as_primitive::<Int64Type>().values().to_vec();
    column("writer").into_iter().zip(column("number")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_seen_when_they_are_committed_and_not_before() {
    for durability in ALL {
        let (db, table) = table_with(with(durability)).await;
        let mut appender = table.appender();
        for id in 0..200i64 {
            appender.append_row(&[id.into(), "row".into(), (&[id as f32; DIM]).into()]).expect("appends");
        }
        appender.append(&numbered(200..250, "batch")).expect("appends");
        assert_eq!((appender.buffered_rows(), table.count().await.expect("counts")), (250, 0));
        let ack = appender.commit().await.expect("commits");
        assert_eq!((ack.inserted, ack.updated, appender.buffered_rows()), (250, 0, 0));
        assert_eq!(table.count().await.expect("counts"), 250);
        assert_eq!(ids(&table.search(&[123.0; DIM]).k(1).await.expect("searches")), [123]);
        let rows = all_rows(&table).await;
        assert_eq!((&rows[7], &rows[249]), (&(7, "row".to_owned()), &(249, "batch".to_owned())));
        table.wait_durable(ack.token).await.expect("durable");
        assert_eq!(all_rows(&table).await.len(), 250, "{durability:?}");
        assert_eq!(appender.commit().await.expect("nothing to do").inserted, 0);
        db.close().await.expect("closes");
    }
}

#[tokio::test]
async fn of_a_key_that_stands_twice_in_a_commit_the_later_row_wins() {
    let (_db, table) = table().await;
    table.insert(numbered([1, 2], "old")).await.expect("writes");
    let mut appender = table.appender();
    for (id, state) in [(1i64, "a"), (3, "b"), (1, "c")] {
        appender.append_row(&[id.into(), state.into(), Value::Null]).expect("appends");
    }
    appender.commit().await.expect("commits");
    let expected = [(1, "c"), (2, "old"), (3, "b")].map(|(id, state)| (id, state.to_owned()));
    assert_eq!(all_rows(&table).await, expected);
    assert_eq!(table.count().await.expect("counts"), 3);
}

#[tokio::test]
async fn dropped_or_cleared_without_a_commit_nothing_happened() {
    let (_db, table) = table().await;
    let mut appender = table.appender();
    appender.append(&numbered(0..10, "a")).expect("appends");
    appender.clear();
    assert_eq!(appender.buffered_rows(), 0);
    appender.append(&numbered(10..12, "b")).expect("appends");
    appender.commit().await.expect("commits");
    appender.append(&numbered(20..30, "c")).expect("appends");
    drop(appender);
    assert_eq!(all_rows(&table).await.iter().map(|row| row.0).collect::<Vec<_>>(), [10, 11]);
}

#[tokio::test]
async fn a_refused_row_is_named_and_leaves_the_buffer_as_it_was() {
    let (_db, table) = table().await;
    let mut appender = table.appender();
    let vector = [0.5; DIM];
    appender.append_row(&[1i64.into(), "good".into(), (&vector).into()]).expect("appends");
    let nan = [1.0, f32::NAN, 0.0, 0.0];
    let refused: [(&[Value<'_>], &[&str]); 6] = [
        (&[2i64.into(), "x".into()], &["row 1", "3 values", "id, state, vec", "got 2"]),
        (&[Value::Null, "x".into(), (&vector).into()], &["`id`", "row 1", "got null"]),
        (&["2".into(), "x".into(), (&vector).into()], &["`id`", "row 1", "Int64", "string"]),
        (&[2i64.into(), 7i64.into(), (&vector).into()], &["`state`", "row 1", "Utf8", "got 7"]),
        (&[2i64.into(), "x".into(), (&[1.0f32, 2.0]).into()], &["`vec`", "row 1", "4 F32", "2 f32"]),
        (&[2i64.into(), "x".into(), (&nan).into()], &["`vec`", "row 1", "NaN"]),
    ];
    for (row, words) in refused {
        let error = appender.append_row(row).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        words.iter().for_each(|word| assert!(error.message().contains(word), "{word}: {error}"));
    }
    let wrong = RecordBatch::try_from_iter([("key", Arc::new(Int64Array::from(vec![5])) as Arc<dyn Array>)]);
    assert_eq!(appender.append(&wrong.expect("a batch")).expect_err("columns").kind(), ErrorKind::Invalid);
    assert_eq!(appender.buffered_rows(), 1);
    appender.commit().await.expect("commits");
    assert_eq!(all_rows(&table).await, [(1, "good".to_owned())]);
}

#[tokio::test]
async fn every_type_of_value_comes_back_nulls_too() {
    let fields = vec![
        Field::new("flag", DataType::Boolean, true),
        Field::new("small", DataType::Int16, true),
        Field::new("wide", DataType::UInt64, true),
        Field::new("single", DataType::Float32, true),
        Field::new("text", DataType::LargeUtf8, true),
        Field::new("bytes", DataType::Binary, true),
        Field::new("fixed", DataType::FixedSizeBinary(3), true),
        Field::new("day", DataType::Date32, true),
    ];
    let schema = TableSchema::builder(Schema::new(fields)).build().expect("valid");
    let db = Vectide::open("memory://", with(Durability::None)).await.expect("opens");
    let table = db.create_table("t", schema).await.expect("creates");
    let mut appender = table.appender();
    let mut by_batch = table.appender();
    let full: [Value<'_>; 8] = [
        true.into(),
        (-7i16).into(),
        u64::MAX.into(),
        1.5f32.into(),
        "text".into(),
        b"bytes".into(),
        b"abc".into(),
        19_000i32.into(),
    ];
    // Batches of one row, of a few and of many: each is kept and packed in another way.
    for rows in [1usize, 1, 3, 1, 40, 1, 300] {
        for row in 0..rows {
            let mut values = full;
            values[row % 8] = Value::Null;
            appender.append_row(&values).expect("appends");
        }
        appender.commit().await.expect("commits");
    }
    let before = table.scan().await.expect("scans").collect_all().expect("reads");
    assert_eq!(before.num_rows(), 347);
    by_batch.append(&before).expect("appends what was read");
    by_batch.append(&before.slice(11, 5)).expect("appends a slice");
    by_batch.commit().await.expect("commits");
    let after = table.scan().await.expect("scans").collect_all().expect("reads");
    assert_eq!(after.slice(0, 347), before);
    assert_eq!(after.slice(347, 347), before);
    assert_eq!(after.slice(694, 5), before.slice(11, 5));
    let (texts, days) =
        (after.column(4).as_string::<i64>(), after.column(7).as_primitive::<arrow::datatypes::Date32Type>());
    assert!((texts.is_valid(0), texts.value(0), days.value(0)) == (true, "text", 19_000) && after.column(0).is_null(0));
    let error = appender.append_row(&[true.into(), 40_000i32.into()]).expect_err("too few");
    assert!(error.message().contains("8 values"), "{error}");
    let mut values = full;
    values[1] = 40_000i32.into();
    let error = appender.append_row(&values).expect_err("does not fit");
    assert!(error.message().contains("`small`") && error.message().contains("Int16"), "{error}");
    table.flush().await.expect("flushes");
    assert_eq!(table.scan().await.expect("scans").collect_all().expect("reads"), after);
}

#[tokio::test]
async fn tables_with_nested_columns_take_whole_batches() {
    for durability in ALL {
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let schema = Schema::new(vec![Field::new("list", DataType::List(item), true)]);
        let db = Vectide::open("memory://", with(durability)).await.expect("opens");
        let table = db.create_table("t", TableSchema::builder(schema).build().expect("valid")).await.expect("creates");
        let mut appender = table.appender();
        let error = appender.append_row(&[7i32.into()]).expect_err("not by row");
        assert!(error.message().contains("`list`") && error.message().contains("RecordBatch"), "{error}");
        for n in 0..3 {
            let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(n), None]), None]);
            appender
                .append(&RecordBatch::try_from_iter([("list", Arc::new(lists) as _)]).expect("a batch"))
                .expect("fits");
        }
        appender.commit().await.expect("commits");
        let rows = table.scan().await.expect("scans").collect_all().expect("reads");
        let lists = rows.column(0).as_list::<i32>();
        assert_eq!((lists.len(), lists.null_count()), (6, 3));
        assert_eq!(lists.value(4).as_primitive::<Int32Type>(), &Int32Array::from(vec![Some(2), None]));
    }
}

#[tokio::test]
async fn a_policy_commits_by_itself_and_the_next_commit_answers_for_all() {
    let (_db, table) = keyless_table(with(Durability::Buffered)).await;
    let mut appender = table.appender();
    appender.commit_every(CommitEvery::rows(10).or_bytes(1 << 20));
    for number in 0..25i64 {
        appender.append_row(&[0i64.into(), number.into(), Value::Null]).expect("appends");
    }
    assert_eq!((table.count().await.expect("counts"), appender.buffered_rows()), (20, 5));
    assert_eq!(appender.commit().await.expect("commits").inserted, 25);
    let mut old = table.appender();
    old.commit_every(CommitEvery::interval(Duration::ZERO));
    old.append_row(&[1i64.into(), 0i64.into(), "now".into()]).expect("appends");
    assert_eq!((table.count().await.expect("counts"), old.buffered_rows()), (26, 0));
    drop(old);
    assert_eq!(table.count().await.expect("counts"), 26, "what was published stands");
}

#[tokio::test]
async fn a_full_buffer_says_so_and_a_commit_makes_room() {
    let (_db, table) = keyless_table(Options { batch_bytes: 4 << 10, ..with(Durability::Durable) }).await;
    let mut appender = table.appender();
    let long = "x".repeat(1_000);
    let row = [0i64.into(), 0i64.into(), Value::Str(&long)];
    (0..4).for_each(|_| appender.append_row(&row).expect("fits"));
    let error = appender.append_row(&row).expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("commit") && error.message().contains("batch_bytes"), "{error}");
    appender.commit().await.expect("commits");
    appender.append_row(&row).expect("has room again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_finds_no_memory_keeps_its_rows_and_may_be_repeated() {
    // The budget holds ten rows, so that commits wait for flushes, some of them longer than they may.
    let options = Options {
        memory_bytes: 1 << 20,
        memtable_bytes: 8 << 20,
        memtable_rows: 1_000_000,
        stall_timeout_ms: 50,
        ..with(Durability::None)
    };
    let (_db, table) = keyless_table(options).await;
    let mut appender = table.appender();
    let long = "x".repeat(100_000);
    let mut refused = 0;
    for number in 0..40i64 {
        appender.append_row(&[0i64.into(), number.into(), Value::Str(&long)]).expect("appends");
        while let Err(error) = appender.commit().await {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(appender.buffered_rows(), 1);
            assert!(appender.append_row(&[0i64.into(), 0i64.into(), Value::Null]).is_err(), "the commit comes first");
            refused += 1;
        }
    }
    println!("{refused} commits were refused for a while");
    assert_eq!(numbers(&table).await, (0..40).map(|n| (0, n)).collect::<Vec<_>>());
}

/// Writers in threads of their own, each commit of a size of its own; readers who look all the time.
#[test]
fn commits_of_many_threads_are_seen_whole_and_in_each_writers_order() {
    for (durability, seed) in ALL.into_iter().zip(1..) {
        println!("{durability:?}, seed {seed}");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts");
        let (_db, table) = runtime.block_on(keyless_table(with(durability)));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3i64)
                .map(|writer| {
                    let table = table.clone();
                    scope.spawn(move || write_in_groups(&table, writer, seed))
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let rows = runtime.block_on(numbers(&table));
                    assert!(rows.len() >= last, "what was seen stays");
                    last = rows.len();
                    check_groups(&rows, seed);
                }
            });
            let written: BTreeMap<i64, i64> = writers.into_iter().map(|w| w.join().expect("no panic")).collect();
            done.store(true, Ordering::Relaxed);
            reader.join().expect("no panic");
            let rows = runtime.block_on(numbers(&table));
            check_groups(&rows, seed);
            for (writer, count) in written {
                assert_eq!(rows.iter().filter(|row| row.0 == writer).count() as i64, count, "writer {writer}");
            }
        });
    }
}

/// How many rows the commit that begins with row `first` of a writer has.
fn group(seed: u64, writer: i64, first: i64) -> i64 {
    let mut rng = Rng(seed ^ ((writer as u64) << 32) ^ first as u64);
    [1, 1, 2, 7, 30, 300][rng.below(6) as usize]
}

fn write_in_groups(table: &Table, writer: i64, seed: u64) -> (i64, i64) {
    let mut appender = table.appender();
    let (mut number, mut rng) = (0, Rng(seed + writer as u64));
    for _ in 0..60 {
        if rng.below(8) == 0 {
            // Thrown away in the middle: its rows must never be seen.
            appender.append_row(&[writer.into(), (-1i64).into(), "dropped".into()]).expect("appends");
            appender = table.appender();
        }
        let rows = group(seed, writer, number);
        for n in number..number + rows {
            let text = if n % 3 == 0 { Value::Null } else { Value::Str("text") };
            appender.append_row(&[writer.into(), n.into(), text]).expect("appends");
        }
        number += rows;
        let ack = appender.commit_blocking().expect("commits");
        assert_eq!(ack.inserted, rows as u64);
    }
    (writer, number)
}

/// Of each writer, a prefix of its rows is there, in order, and it ends where a commit does.
fn check_groups(rows: &[(i64, i64)], seed: u64) {
    let writers: BTreeSet<i64> = rows.iter().map(|row| row.0).collect();
    for writer in writers {
        let own: Vec<i64> = rows.iter().filter(|row| row.0 == writer).map(|row| row.1).collect();
        assert_eq!(own, (0..own.len() as i64).collect::<Vec<_>>(), "writer {writer} has a gap");
        let mut end = 0;
        while end < own.len() as i64 {
            end += group(seed, writer, end);
        }
        assert_eq!(end, own.len() as i64, "half a commit of writer {writer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_rows_survive_a_reopen_as_their_durability_says() {
    for durability in ALL {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().to_str().expect("utf-8");
        let open = || Vectide::open(path, with(durability));
        let db = open().await.expect("opens");
        let table = db.create_table("t", schema()).await.expect("creates");
        let mut appender = table.appender();
        appender.append(&numbered(0..120, "first")).expect("appends");
        let first = appender.commit().await.expect("commits");
        table.wait_durable(first.token).await.expect("durable");
        appender.append(&numbered(100..110, "second")).expect("appends");
        appender.commit().await.expect("commits");
        drop(appender);
        db.close().await.expect("closes");
        drop((table, db));
        let db = open().await.expect("opens");
        let table = db.open_table("t").await.expect("opens");
        let rows = all_rows(&table).await;
        assert_eq!((rows.len(), rows[105].1.as_str()), (120, "second"), "{durability:?}: a clean close keeps all");
        table.wait_durable(first.token).await.expect("survived");
        let mut appender = table.appender();
        appender.append(&numbered(500..501, "third")).expect("appends");
        let third = appender.commit().await.expect("commits");
        drop((appender, table, db));
        let db = open().await.expect("opens after a drop");
        let table = db.open_table("t").await.expect("opens");
        let rows = all_rows(&table).await;
        match durability {
            Durability::None => {
                assert_eq!(rows.len(), 120, "what was not flushed is gone");
                assert_eq!(table.wait_durable(third.token).await.expect_err("gone").kind(), ErrorKind::Lost);
            }
            _ => assert_eq!(rows.len(), 121),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_may_change_from_a_log_to_none_and_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("utf-8");
    let rounds = [Durability::Durable, Durability::None, Durability::None, Durability::Durable, Durability::None];
    for (round, durability) in rounds.into_iter().enumerate() {
        let db = Vectide::open(path, with(durability)).await.expect("opens");
        let table = match db.open_table("t").await {
            Ok(table) => table,
            Err(_) => db.create_table("t", schema()).await.expect("creates"),
        };
        assert_eq!(all_rows(&table).await.len(), round * 30, "before round {round}");
        let first = round as i64 * 30;
        table.upsert(numbered(first..first + 20, "a")).await.expect("writes");
        table.flush().await.expect("flushes");
        table.upsert(numbered(first + 20..first + 30, "b")).await.expect("writes");
        // A clean end every other time; without a log the rest is flushed first.
        if round % 2 == 1 {
            db.close().await.expect("closes");
        } else if durability == Durability::None {
            table.flush().await.expect("flushes");
        }
    }
    let db = Vectide::open(path, Options::default()).await.expect("opens");
    let table = db.open_table("t").await.expect("opens");
    assert_eq!(all_rows(&table).await.len(), 150);
    table.verify().await.expect("whole");
}

#[test]
fn a_runtime_that_dies_in_the_middle_leaves_whole_commits() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("utf-8");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts");
    let options = || Options { memtable_rows: 1_000_000, memtable_bytes: 64 << 20, ..with(Durability::Durable) };
    let acknowledged = runtime.block_on(async {
        let db = Vectide::open(path, options()).await.expect("opens");
        let table = db.create_table("t", keyless()).await.expect("creates");
        let counts: Vec<_> = (0..2i64)
            .map(|writer| {
                let table = table.clone();
                let count = Arc::new(std::sync::atomic::AtomicI64::new(0));
                let told = Arc::clone(&count);
                tokio::spawn(async move {
                    let mut appender = table.appender();
                    let mut number = 0;
                    loop {
                        let rows = group(9, writer, number);
                        for n in number..number + rows {
                            appender.append_row(&[writer.into(), n.into(), Value::Null]).expect("appends");
                        }
                        number += rows;
                        if appender.commit().await.is_err() {
                            return;
                        }
                        told.store(number, Ordering::SeqCst);
                    }
                });
                count
            })
            .collect();
        while counts.iter().any(|count| count.load(Ordering::SeqCst) < 400) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        counts.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>()
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
    runtime.block_on(async {
        let db = Vectide::open(path, options()).await.expect("opens again");
        let rows = numbers(&db.open_table("t").await.expect("opens")).await;
        check_groups(&rows, 9);
        for (writer, count) in acknowledged.into_iter().enumerate() {
            let there = rows.iter().filter(|row| row.0 == writer as i64).count() as i64;
            assert!(there >= count, "writer {writer}: {there} of {count} acknowledged rows");
        }
    });
}

#[test]
fn every_text_is_its_own_string() {
    // A commit's strings begin where the last one's ended in the same chunk: their offsets begin at 0 all the same.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
    runtime.block_on(async {
        let (_db, table) = keyless_table(with(Durability::None)).await;
        let mut appender = table.appender();
        let texts: Vec<String> = (0..2_000i64).map(|n| format!("text {n} {}", "y".repeat(n as usize % 50))).collect();
        for (n, text) in texts.iter().enumerate() {
            appender.append_row(&[0i64.into(), (n as i64).into(), text.into()]).expect("appends");
            if n % 7 == 0 {
                appender.commit().await.expect("commits");
            }
        }
        appender.commit().await.expect("commits");
        let rows = table.scan().await.expect("scans").collect_all().expect("reads");
        assert_eq!(rows.column_by_name("text").expect("text").as_string::<i32>(), &StringArray::from(texts));
    });
}
