//! Files in, in every format, and again after a stop.

use crate::run::{World, batch, parquet};
use arrow::array::{RecordBatch, cast::AsArray};
use arrow::datatypes::{DataType, Int64Type};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use std::fs::File;
use std::time::{Duration, Instant};

fn check_rows(world: &World, table: &str, rows: u64) {
    assert_eq!(world.count(table), rows);
    let got = world.json(&["get", "db", table, "7"]);
    assert_eq!(got["rows"][0]["name"], "row 7", "{got}");
    let hits = world.json(&["search", "db", table, "--like", "7", "-k", "2"]);
    let nearest: Vec<i64> = ids(&hits["results"]);
    assert_eq!(nearest, [8, 9], "{hits}");
}

fn ids(rows: &serde_json::Value) -> Vec<i64> {
    rows.as_array().into_iter().flatten().filter_map(|row| row["id"].as_i64()).collect()
}

#[test]
fn every_format_becomes_the_same_table() {
    let world = World::new();
    let rows = batch(0..30);
    parquet(&world.path("rows.parquet"), &rows);
    let mut file =
        FileWriter::try_new(File::create(world.path("rows.arrow")).expect("creates"), &rows.schema()).expect("opens");
    file.write(&rows).and_then(|()| file.finish()).expect("writes");
    let mut stream =
        StreamWriter::try_new(File::create(world.path("rows.ipc")).expect("creates"), &rows.schema()).expect("opens");
    stream.write(&rows).and_then(|()| stream.finish()).expect("writes");
    world.json_lines("rows.jsonl", 30);
    for name in ["parquet", "arrow", "ipc", "jsonl"] {
        let file = format!("rows.{name}");
        let report =
            world.json(&["ingest", "db", name, &file, "--key", "id", "--vector", "vec:cosine", "--batch", "8"]);
        assert_eq!((&report["rows"], &report["inserted"], &report["created"]), (&30.into(), &30.into(), &true.into()));
        check_rows(&world, name, 30);
        let declared = world.text(&["tables", "db", name]);
        assert_eq!(declared.trim(), "id int64 key, name utf8, vec f32[2] cosine");
    }
}

#[test]
fn an_export_comes_back_as_the_same_table() {
    let world = World::new();
    world.json_lines("rows.jsonl", 20);
    world.json(&["ingest", "db", "docs", "rows.jsonl", "--key", "id", "--vector", "vec:l2:f16"]);
    for file in ["copy.arrow", "copy.parquet"] {
        let written = world.json(&["scan", "db", "docs", "-o", file]);
        assert_eq!(written["count"], 20);
        let table = file.replace('.', "_");
        // The columns carry their marks: neither key nor vector is to be named again.
        world.json(&["ingest", "db", &table, file]);
        let declaration = |table: &str| world.json(&["tables", "db", table]);
        assert_eq!(declaration(&table), declaration("docs"));
        assert_eq!(world.count(&table), 20);
    }
}

#[test]
fn a_second_run_of_a_finished_file_writes_nothing_and_restart_writes_it_again() {
    let world = World::new();
    world.json_lines("rows.jsonl", 10);
    let args = ["ingest", "db", "docs", "rows.jsonl", "--key", "id", "--vector", "vec"];
    assert_eq!(world.json(&args)["inserted"], 10);
    let again = world.json(&args);
    assert_eq!((&again["rows"], &again["files"][0]["resumed_rows"]), (&0.into(), &10.into()), "{again}");
    let restarted = world.json(&[&args[..], &["--restart"]].concat());
    assert_eq!((&restarted["inserted"], &restarted["updated"]), (&0.into(), &10.into()), "{restarted}");
    // A file that changed is a new one.
    world.json_lines("rows.jsonl", 12);
    let changed = world.json(&args);
    assert_eq!((&changed["inserted"], &changed["updated"]), (&2.into(), &10.into()), "{changed}");
}

/// Starts an ingest slowed down, and waits until another process sees at least `rows`.
fn start_slow(world: &World, args: &[&str], rows: u64) -> crate::run::Running {
    let mut running = world.start(&[args, &["--batch", "20", "--rate", "250"]].concat());
    let since = Instant::now();
    while world.count("docs") < rows {
        assert!(running.runs(), "the ingest ended before it could be stopped");
        assert!(since.elapsed() < Duration::from_secs(60), "the ingest writes nothing");
    }
    running
}

#[test]
fn a_killed_ingest_goes_on_where_it_stopped_in_every_mode() {
    for (mode, key) in [("upsert", true), ("insert", true), ("upsert", false)] {
        let world = World::new();
        world.json_lines("rows.jsonl", 2_000);
        let mut args = vec!["ingest", "db", "docs", "rows.jsonl", "--vector", "vec", "--mode", mode];
        if key {
            args.extend(["--key", "id"]);
        }
        start_slow(&world, &args, 60).kill();
        let before = world.count("docs");
        assert!((60..2_000).contains(&before), "{before} rows are there after the kill");
        let report = world.json(&args);
        let resumed = report["files"][0]["resumed_rows"].as_u64().expect("a number");
        assert!(resumed + 20 >= before && resumed <= before, "resumed at {resumed}, {before} rows were there");
        assert_eq!(resumed + report["rows"].as_u64().expect("a number"), 2_000, "{report}");
        assert_eq!(world.count("docs"), 2_000, "mode {mode}, key {key}");
    }
}

#[test]
fn ctrl_c_stops_after_a_batch_and_says_how_to_go_on() {
    let world = World::new();
    world.json_lines("rows.jsonl", 2_000);
    let args = ["ingest", "db", "docs", "rows.jsonl", "--key", "id", "--vector", "vec", "--mode", "insert"];
    let stopped = start_slow(&world, &args, 40).interrupt();
    assert_eq!(stopped.code, Some(130), "{stopped}");
    assert!(stopped.stderr.contains("same command again"), "{stopped}");
    let before = world.count("docs");
    assert_eq!(before % 20, 0);
    let report = world.json(&args);
    assert_eq!(report["files"][0]["resumed_rows"], before);
    assert_eq!(world.count("docs"), 2_000);
}

#[test]
fn insert_refuses_a_key_that_is_there_also_when_run_again() {
    let world = World::new();
    parquet(&world.path("a.parquet"), &batch(0..10));
    parquet(&world.path("b.parquet"), &batch(5..8));
    world.json(&["ingest", "db", "docs", "a.parquet", "--key", "id", "--vector", "vec"]);
    for _ in 0..2 {
        let (error, code) = world.error(&["ingest", "db", "docs", "b.parquet", "--mode", "insert"]);
        assert_eq!((error["kind"].as_str(), code), (Some("conflict"), 1), "{error}");
        assert!(error["message"].as_str().is_some_and(|m| m.contains("b.parquet") && m.contains('5')), "{error}");
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("--mode upsert")), "{error}");
    }
    let replaced = world.json(&["ingest", "db", "docs", "b.parquet"]);
    assert_eq!((&replaced["inserted"], &replaced["updated"]), (&0.into(), &3.into()), "{replaced}");
}

#[test]
fn what_is_wrong_with_a_file_is_named_and_nothing_of_the_batch_is_written() {
    let world = World::new();
    world.json_lines("rows.jsonl", 10);
    world.json(&["ingest", "db", "docs", "rows.jsonl", "--key", "id", "--vector", "vec"]);
    for (name, text, words) in [
        (
            "short.jsonl",
            "{\"id\":1,\"vec\":[1,2]}\n{\"id\":2,\"vec\":[1]}\n",
            ["short.jsonl", "`vec`", "row 1", "got 1"],
        ),
        ("zero.jsonl", "{\"id\":1,\"vec\":[0,0]}\n", ["zero.jsonl", "vec", "row 0", "zero"]),
        ("type.jsonl", "{\"id\":1}\n{\"id\":\"x\"}\n", ["type.jsonl", "line 2", "id", ""]),
        ("extra.jsonl", "{\"id\":1,\"colour\":\"red\"}\n", ["extra.jsonl", "line 1", "colour", ""]),
        ("broken.jsonl", "{\"id\":1}\n{\"id\":\n", ["broken.jsonl", "line 2", "", ""]),
        ("rows.csv", "id,name\n1,a\n", ["rows.csv", "CSV", "", ""]),
        ("array.json", "[{\"id\":1}]", ["array.json", "array", "", ""]),
    ] {
        std::fs::write(world.path(name), text).expect("writes");
        let (error, code) = world.error(&["ingest", "db", "docs", name]);
        let message = error["message"].as_str().unwrap_or_default();
        assert!(words.iter().all(|word| message.contains(word)), "{name}: {error}");
        assert!(error["hint"].is_string() && code == 1, "{name}: {error}");
    }
    let (error, _) = world.error(&["ingest", "db", "docs", "missing.parquet"]);
    assert!(error["message"].as_str().is_some_and(|m| m.contains("missing.parquet")), "{error}");
    assert_eq!(world.count("docs"), 10);
}

#[test]
fn a_new_table_asks_for_what_the_file_does_not_say() {
    let world = World::new();
    parquet(&world.path("rows.parquet"), &batch(0..5));
    let (error, _) = world.error(&["ingest", "db", "docs", "rows.parquet", "--key", "id"]);
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("--vector vec:cosine")), "{error}");
    let (error, _) = world.error(&["ingest", "db", "docs", "rows.parquet", "--key", "uid", "--vector", "vec"]);
    assert!(error["message"].as_str().is_some_and(|m| m.contains("`uid`") && m.contains("id, name, vec")), "{error}");
    world.json(&["ingest", "db", "docs", "rows.parquet", "--key", "id", "--vector", "vec:dot"]);
    let (error, _) = world.error(&["ingest", "db", "docs", "rows.parquet", "--vector", "vec:l2"]);
    assert!(error["message"].as_str().is_some_and(|m| m.contains("dot")), "{error}");
}

#[test]
fn scans_export_the_rows_in_every_format() {
    let world = World::new();
    parquet(&world.path("rows.parquet"), &batch(0..25));
    world.json(&["ingest", "db", "docs", "rows.parquet", "--key", "id", "--vector", "vec"]);
    world.json(&["scan", "db", "docs", "-o", "out.arrow"]);
    let reader = arrow::ipc::reader::FileReader::try_new(File::open(world.path("out.arrow")).expect("opens"), None)
        .expect("an Arrow file");
    let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>().expect("reads");
    let mut ids: Vec<i64> = (batches.iter())
        .flat_map(|b| b.column_by_name("id").expect("a column").as_primitive::<Int64Type>().values().to_vec())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..25).collect::<Vec<_>>());
    assert!(matches!(batches[0].schema().field(2).data_type(), DataType::FixedSizeList(_, 2)));
    let lines = world.text(&["scan", "db", "docs", "--format", "json", "--columns", "id"]);
    assert_eq!(lines.lines().count(), 25);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
    let table = world.run(&["scan", "db", "docs"]);
    assert_eq!(table.stdout.lines().count(), 21, "a title and twenty rows: {table}");
    assert!(table.stderr.contains("--limit 0"), "{table}");
    assert_eq!(world.text(&["scan", "db", "docs", "--limit", "0"]).lines().count(), 26);
    let object = world.json(&["scan", "db", "docs", "--limit", "3"]);
    assert_eq!((object["rows"].as_array().map(Vec::len), &object["count"]), (Some(3), &3.into()), "{object}");
}
