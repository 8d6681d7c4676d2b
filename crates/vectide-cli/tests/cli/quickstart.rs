//! The main job.

use crate::run::World;

#[test]
fn quickstart_runs_the_main_job_and_cleans_up() {
    let world = World::new();
    let tmp = world.path("tmp");
    std::fs::create_dir(&tmp).expect("creates");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_vectide"))
        .args(["quickstart", "--rows", "2000", "--json"])
        .env("TMPDIR", &tmp)
        .output()
        .expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON object");
    assert_eq!(report["rows"], 2000);
    assert_eq!(report["reopened_rows"], 2000);
    assert_eq!(report["reopened_equal"], true);
    assert_eq!(report["empty_searches"], 0);
    for name in ["recall_at_10", "recall_at_10_during"] {
        assert!(report[name].as_f64().expect("a number") >= 0.97, "{report}");
    }
    for name in [
        "ingest_seconds",
        "rows_per_s",
        "ack_p50_ms",
        "ack_p99_ms",
        "search_p50_ms",
        "search_p99_ms",
        "searches",
        "wal_queue_max_pct",
    ] {
        assert!(report[name].is_number(), "{name} is missing in {report}");
    }
    assert!(report["searches"].as_u64() >= Some(1));
    assert_eq!(std::fs::read_dir(&tmp).expect("lists").count(), 0, "the temporary database is removed");
}

#[test]
fn quickstart_leaves_a_named_directory_to_be_searched() {
    let world = World::new();
    let text = world.text(&["quickstart", "--dir", "db", "--rows", "1500"]);
    assert!(text.contains("nearest words") && text.contains("the same answers"), "{text}");
    assert!(text.contains("search db words --like river"), "it says what to run next: {text}");
    let hits = world.json(&["search", "db", "words", "--like", "music", "-k", "3"]);
    assert_eq!(hits["results"].as_array().map(Vec::len), Some(3), "{hits}");
    let (error, code) = world.error(&["quickstart", "--dir", "db", "--rows", "100"]);
    assert_eq!((error["kind"].as_str(), code), (Some("conflict"), 1), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("--dir")), "{error}");
}
