//! Small runs of the bench: counts, shares and recall have values that can be known beforehand; times do not.

use super::*;

fn args(dir: &Path, words: &str) -> Args {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let common = format!("bench --data gen --dim 16 --dir {} {words}", dir.display());
    let line = <Line as clap::Parser>::try_parse_from(common.split(' ').filter(|word| !word.is_empty()));
    line.unwrap_or_else(|e| panic!("{e}")).args
}

async fn run_in(dir: &Path, words: &str) -> Report {
    run(&args(dir, words)).await.unwrap_or_else(|e| panic!("{words}: {e}"))
}

fn number(result: &Value, name: &str) -> f64 {
    result[name].as_f64().unwrap_or_else(|| panic!("`{name}` is no number in {result}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_has_a_result_with_its_recall() {
    let dir = tempfile::tempdir().expect("a folder");
    let words =
        "--rows 400 --schema-shape fineweb,vector-only --batch 20,100 --durability durable,buffered,none --repeat 2";
    let report = run_in(dir.path(), words).await;
    assert_eq!((report.bench.as_str(), report.results.len()), ("shard-writer", 12));
    for result in &report.results {
        assert!(number(result, "recall_at_10") > 0.9, "{result}");
        assert!(number(result, "acked_rows_per_s") >= number(result, "indexed_rows_per_s"), "{result}");
        assert!(number(result, "put_p50_us") <= number(result, "put_p99_us"), "{result}");
        assert!((0.0..=100.0).contains(&number(result, "queue_max_pct")), "{result}");
        assert!(number(result, "queue_final_pct") <= number(result, "queue_max_pct"), "{result}");
        assert!(number(result, "close_s") >= 0.0, "{result}");
        let text = if result["schema_shape"] == "fineweb" { 1_536.0 } else { 0.0 };
        assert!((80.0 + text..300.0 + text).contains(&number(result, "row_bytes")), "{result}");
        let has_log = result["durability"] != "none";
        assert_eq!(has_log, number(result, "syncs") > 0.0, "{result}");
        assert_eq!(has_log, result["disk"]["fdatasync_p50_us"].as_f64().is_some(), "{result}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0, "databases are removed");
    assert_eq!(print(&report).lines().count(), 1 + 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_index_there_is_a_log_to_compare_with_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let report = run_in(dir.path(), "--rows 500 --batch 50 --index off --durability durable --skip-close").await;
    let result = &report.results[0];
    assert_eq!((result["recall_at_10"].clone(), result["close_s"].clone()), (Value::Null, Value::Null));
    assert_eq!(result["tail_rows_max"], Value::Null);
    assert!(!print(&report).contains("recall@10"), "a column that no setting has a figure for");
    let names: Vec<&str> = report.ratios.keys().map(String::as_str).collect();
    let prefix = "shard_writer.vector_only.batch50.index_off.durable.local";
    assert_eq!(names, [format!("{prefix}.log_over_one_sync"), format!("{prefix}.log_over_sync_each")]);
    // The log's bytes are the rows' and some more.
    let log_bytes = number(result, "log_bytes_per_sync") * number(result, "syncs");
    assert!(log_bytes > 500.0 * number(result, "row_bytes"), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn object_stores_are_compared_with_the_local_one_and_by_their_window() {
    let dir = tempfile::tempdir().expect("a folder");
    let words = "--rows 300 --batch 10 --index off --store local,memory,latency:1ms --puts-in-flight 1,8";
    let report = run_in(dir.path(), words).await;
    assert_eq!(report.results.len(), 5);
    let prefix = "shard_writer.vector_only.batch10.index_off.buffered";
    let expected = [
        "acked.latency1ms_puts1_over_local",
        "acked.latency1ms_puts8_over_local",
        "acked.memory_puts1_over_local",
        "acked.memory_puts8_over_local",
        "latency1ms.acked.puts8_over_puts1",
        "memory.acked.puts8_over_puts1",
        "local.log_over_one_sync",
        "local.log_over_sync_each",
    ];
    for name in expected {
        assert!(report.ratios.contains_key(&format!("{prefix}.{name}")), "{name} is not in {:?}", report.ratios);
    }
    assert_eq!(report.ratios.len(), expected.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_share_objects_and_a_pace_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let words = "--rows 200 --store latency:5ms --durability durable --callers 20";
    let report = run_in(dir.path(), words).await;
    let result = &report.results[0];
    assert_eq!(number(result, "batch"), 1.0);
    assert!(number(result, "rows_per_sync") >= 2.0, "20 callers wait for each put: {result}");
    let report = run_in(dir.path(), "--rows 100 --batch 10 --durability durable --target-rows-per-s 1000").await;
    // The last put is due after 90 ms: no machine is faster.
    assert!(number(&report.results[0], "acked_rows_per_s") <= 1_112.0, "{}", report.results[0]);
    assert!(report.ratios.keys().any(|name| name.ends_with("paced.age_limit_over_age_max")), "{:?}", report.ratios);
}

#[tokio::test]
async fn arguments_that_contradict_each_other_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let refused = [
        ("--rows 0", "--rows"),
        ("--batch 0", "--batch"),
        ("--callers 4 --batch 10", "--batch"),
        ("--callers 4 --target-rows-per-s 10", "--target-rows-per-s"),
        ("--target-rows-per-s=-1", "--target-rows-per-s"),
        ("--store s3", "--dir"),
    ];
    for (words, named) in refused {
        let error = run(&args(dir.path(), words)).await.expect_err(words);
        assert!(error.to_string().contains(named), "{words}: {error}");
    }
}
