//! Two processes on one database.

use crate::run::World;
use std::time::{Duration, Instant};

#[test]
fn a_second_writer_is_told_who_holds_the_database_and_readers_work_beside_it() {
    let world = World::new();
    world.json_lines("rows.jsonl", 4_000);
    let args =
        ["ingest", "db", "docs", "rows.jsonl", "--key", "id", "--vector", "vec", "--batch", "20", "--rate", "300"];
    let mut writer = world.start(&args);
    let since = Instant::now();
    while world.count("docs") < 40 {
        assert!(writer.runs() && since.elapsed() < Duration::from_secs(60), "the writer writes nothing");
    }
    let (error, code) = world.error(&["delete", "db", "docs", "1"]);
    assert_eq!((error["kind"].as_str(), code), (Some("conflict"), 1), "{error}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(&writer.pid().to_string()), "the holder {} is not named: {error}", writer.pid());
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("stop that one")), "{error}");

    let first = world.count("docs");
    let hits = world.json(&["search", "db", "docs", "--like", "5", "-k", "1"]);
    assert_eq!(hits["results"][0]["id"], 6, "{hits}");
    assert!(world.json(&["stats", "db", "docs"])["tables"]["docs"]["live_rows"].as_u64() >= Some(first));
    let since = Instant::now();
    while world.count("docs") <= first {
        assert!(writer.runs() && since.elapsed() < Duration::from_secs(60), "a reader does not see the writer's rows");
    }

    writer.kill();
    // The lock died with its process.
    assert_eq!(world.json(&["delete", "db", "docs", "1"])["deleted"], 1);
}
