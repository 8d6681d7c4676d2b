//! Declaring, listing, dropping and looking after tables.

use crate::run::{World, batch, parquet};

#[test]
fn a_table_is_declared_by_flags_by_a_file_or_by_another_tables_declaration() {
    let world = World::new();
    let flags = ["--column", "id:int64", "--column", "name:utf8", "--key", "id", "--vector", "vec:2:dot"];
    let created = world.json(&[&["create", "db", "a"], &flags[..], &["--m", "24"]].concat());
    assert_eq!(created["declaration"]["vectors"][0]["m"], 24, "{created}");
    let declaration = world.json(&["tables", "db", "a"]);
    std::fs::write(world.path("a.json"), declaration.to_string()).expect("writes");
    world.json(&["create", "db", "b", "--schema", "a.json"]);
    assert_eq!(world.json(&["tables", "db", "b"]), declaration);
    parquet(&world.path("rows.parquet"), &batch(0..3));
    world.json(&["create", "db", "c", "--schema", "rows.parquet", "--key", "id", "--vector", "vec:cosine"]);
    let tables = world.json(&["tables", "db"]);
    let names: Vec<_> = tables["tables"].as_array().into_iter().flatten().map(|t| t["table"].clone()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(tables["tables"][2]["rows"], 0);
}

#[test]
fn declarations_that_cannot_be_are_refused() {
    let world = World::new();
    for (args, words) in [
        (vec!["create", "db", "t", "--column", "id:number"], "int64"),
        (vec!["create", "db", "t", "--vector", "vec:cosine"], "dimension"),
        (vec!["create", "db", "t"], "columns"),
        (vec!["create", "db", "t", "--column", "id:int64", "--key", "uid"], "uid"),
        (vec!["create", "db", "../../x", "--column", "id:int64"], "../../x"),
    ] {
        let (error, code) = world.error(&args);
        assert!(error["message"].as_str().is_some_and(|m| m.contains(words)), "{args:?}: {error}");
        assert!(code == 1 || code == 2, "{args:?}: {error}");
    }
    world.json(&["create", "db", "t", "--column", "id:int64"]);
    let (error, code) = world.error(&["create", "db", "t", "--column", "id:int64"]);
    assert_eq!((error["kind"].as_str(), code), (Some("conflict"), 1), "{error}");
}

#[test]
fn a_table_is_dropped_only_when_that_is_meant() {
    let world = World::new();
    parquet(&world.path("rows.parquet"), &batch(0..3));
    world.json(&["ingest", "db", "docs", "rows.parquet", "--key", "id", "--vector", "vec"]);
    let (error, code) = world.error(&["drop", "db", "docs"]);
    assert!(code == 2 && error["message"].as_str().is_some_and(|m| m.contains("3 rows")), "{error}");
    world.json(&["drop", "db", "docs", "--yes"]);
    assert_eq!(world.json(&["tables", "db"])["tables"], serde_json::json!([]));
    // The record of the finished ingest was about the dropped table.
    let again = world.json(&["ingest", "db", "docs", "rows.parquet", "--key", "id", "--vector", "vec"]);
    assert_eq!(again["rows"], 3, "{again}");
}

#[test]
fn stats_flush_and_verify_say_how_a_table_is() {
    let world = World::new();
    parquet(&world.path("rows.parquet"), &batch(0..50));
    world.json(&["ingest", "db", "docs", "rows.parquet", "--key", "id", "--vector", "vec"]);
    let flushed = world.json(&["flush", "db"]);
    assert_eq!((&flushed["flushed"][0]["table"], &flushed["flushed"][0]["rows"]), (&"docs".into(), &50.into()));
    let stats = world.json(&["stats", "db", "docs"]);
    assert_eq!(stats["tables"]["docs"]["live_rows"], 50, "{stats}");
    assert!(stats["tables"]["docs"]["staleness"].is_object(), "{stats}");
    assert!(world.text(&["stats", "db"]).contains("memtable"));
    let verified = world.json(&["verify", "db"]);
    assert_eq!((&verified["ok"], &verified["tables"][0]["table"]), (&true.into(), &"docs".into()), "{verified}");
}

#[test]
fn damage_is_found_named_and_given_its_own_exit_code() {
    let world = World::new();
    parquet(&world.path("rows.parquet"), &batch(0..50));
    for table in ["docs", "other"] {
        world.json(&["ingest", "db", table, "rows.parquet", "--key", "id", "--vector", "vec"]);
    }
    world.json(&["flush", "db"]);
    let mut damaged = files_named(&world.path("db"), "rows.arrow");
    damaged.sort();
    let file = damaged.first().expect("a flushed table has its rows in a file");
    let mut bytes = std::fs::read(file).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(file, bytes).expect("writes");
    let ran = world.run(&["verify", "db", "--json"]);
    assert_eq!(ran.code, Some(3), "{ran}");
    let object: serde_json::Value = serde_json::from_str(&ran.stdout).expect("the result is printed all the same");
    let tables = object["tables"].as_array().expect("a list");
    assert_eq!(tables.iter().filter(|t| t["ok"] == true).count(), 1, "the other table is checked too: {ran}");
    let error: serde_json::Value = serde_json::from_str(ran.stderr.trim()).expect("stderr is JSON");
    assert_eq!(error["kind"], "corrupt");
    assert!(error["message"].as_str().is_some_and(|m| m.contains("rows.arrow")), "{error}");
}

fn files_named(dir: &std::path::Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("lists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_named(&path, name));
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found
}
