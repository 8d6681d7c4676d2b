//! Rows by key and by vector.

use crate::run::{World, batch, parquet, vector};

fn world() -> World {
    let world = World::new();
    parquet(&world.path("rows.parquet"), &batch(0..40));
    world.json(&["ingest", "db", "docs", "rows.parquet", "--key", "id", "--vector", "vec"]);
    world
}

#[test]
fn a_search_by_vector_row_or_file_finds_the_same_neighbours() {
    let world = world();
    let [x, y] = vector(12);
    let query = format!("[{x}, {y}]");
    let by_vector = world.json(&["search", "db", "docs", "--vector", &query, "-k", "4", "--columns", "id"]);
    let ids = |rows: &serde_json::Value| -> Vec<i64> {
        rows.as_array().into_iter().flatten().filter_map(|row| row["id"].as_i64()).collect()
    };
    assert_eq!(ids(&by_vector["results"]), [12, 13, 14, 11], "{by_vector}");
    assert!(by_vector["results"][0]["_distance"].is_number() && by_vector["results"][0]["name"].is_null());
    let by_row = world.json(&["search", "db", "docs", "--like", "12", "-k", "3", "--exact"]);
    assert_eq!(ids(&by_row["results"]), [13, 14, 11], "{by_row}");

    let floats: Vec<u8> = [vector(12), vector(30)].concat().iter().flat_map(|v| v.to_le_bytes()).collect();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n";
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((header.len() as u16).to_le_bytes());
    npy.extend(header.as_bytes());
    npy.extend(floats);
    std::fs::write(world.path("queries.npy"), npy).expect("writes");
    let by_file = world.json(&["search", "db", "docs", "--file", "queries.npy", "-k", "1"]);
    assert_eq!((ids(&by_file["results"][0]), ids(&by_file["results"][1])), (vec![12], vec![30]), "{by_file}");
    let table = world.text(&["search", "db", "docs", "--file", "queries.npy", "-k", "1"]);
    assert!(table.lines().next().is_some_and(|title| title.starts_with("_query")), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn rows_are_got_and_deleted_by_key() {
    let world = world();
    let got = world.json(&["get", "db", "docs", "3", "999", "1"]);
    assert_eq!((&got["asked"], &got["found"]), (&3.into(), &2.into()), "{got}");
    assert_eq!((&got["rows"][0]["id"], &got["rows"][1]["id"]), (&3.into(), &1.into()), "{got}");
    assert_eq!(world.json(&["delete", "db", "docs", "3", "999"])["deleted"], 1);
    assert_eq!(world.count("docs"), 39);
    std::fs::write(world.path("keys.txt"), "4\n5\n\n3\n").expect("writes");
    let deleted = world.json(&["delete", "db", "docs", "--file", "keys.txt"]);
    assert_eq!((&deleted["asked"], &deleted["deleted"]), (&3.into(), &2.into()), "{deleted}");
    let hits = world.json(&["search", "db", "docs", "--like", "2", "-k", "2"]);
    assert_eq!((&hits["results"][0]["id"], &hits["results"][1]["id"]), (&6.into(), &7.into()), "{hits}");
}

#[test]
fn wrong_questions_are_answered_with_what_was_expected() {
    let world = world();
    for (args, kind, words) in [
        (vec!["search", "db", "docs", "--vector", "[1]"], "invalid", ["vec", "2", "1"]),
        (vec!["search", "db", "docs", "--vector", "[0, 0]"], "invalid", ["vec", "zero", ""]),
        (vec!["search", "db", "docs", "--like", "1", "-k", "0"], "invalid", ["k", "", ""]),
        (vec!["search", "db", "docs", "--like", "999"], "not_found", ["999", "docs", ""]),
        (vec!["search", "db", "docs", "--like", "1", "--columns", "nome"], "invalid", ["nome", "name", ""]),
        (vec!["search", "db", "dogs", "--like", "1"], "not_found", ["dogs", "docs", ""]),
        (vec!["get", "db", "docs", "x"], "invalid", ["`x`", "`id`", "integer"]),
        (vec!["scan", "db", "docs", "--columns", "nome"], "invalid", ["nome", "name", ""]),
        (vec!["count", "nowhere", "docs"], "not_found", ["nowhere", "", ""]),
    ] {
        let (error, code) = world.error(&args);
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!((error["kind"].as_str(), code), (Some(kind), 1), "{args:?}: {error}");
        assert!(words.iter().all(|word| message.contains(word)), "{args:?}: {error}");
        assert!(error["hint"].is_string(), "{args:?}: {error}");
    }
    for args in [
        vec!["search", "db", "docs"],
        vec!["search", "db", "docs", "--vector", "[1, x]"],
        vec!["serch", "db", "docs"],
        vec!["count", "memory://", "docs"],
    ] {
        let (error, code) = world.error(&args);
        assert_eq!((error["kind"].as_str(), code), (Some("usage"), 2), "{args:?}: {error}");
    }
    assert!(!world.path("nowhere").exists(), "a mistyped directory is not made");
}
