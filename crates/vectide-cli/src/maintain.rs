//! `stats`, `flush` and `verify`: looking after a database.
//!
//! Figures are printed from what the engine serializes, so that a new one appears here by itself; a name's last word is
//! its unit, as everywhere in Vectide.

use crate::clock;
use crate::database;
use crate::error::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Out;
use crate::progress::thousands;
use crate::render::aligned;
use serde_json::{Value, json};
use std::time::Duration;
use vectide::{ErrorKind, ReadOnly, ReadTable};

/// `vectide stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide stats ./db
  vectide stats ./db docs --watch")]
pub(crate) struct StatsArgs {
    /// Directory or object store
    uri: String,
    /// This table only
    table: Option<String>,
    /// Print again every second until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Seconds between two prints of --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = positive)]
    interval: f64,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("must be above 0 and at most 86400".to_owned()),
    }
}

/// Prints what the tables' rows, memory, log, flushes and health look like to a reader.
pub(crate) async fn stats(args: StatsArgs, out: &Out) -> Outcome {
    let db = database::read(&args.uri).await?;
    let mut tables = Vec::new();
    for name in names(&db, args.table.as_deref()).await? {
        tables.push((db.open_table(&name).await?, name));
    }
    let mut interrupt = args.watch.then(Interrupt::listen);
    loop {
        let mut object = serde_json::Map::new();
        for (table, name) in &tables {
            object.insert(name.clone(), figures(table).await?);
        }
        if out.json() {
            return out.object(&json!({ "tables": object }));
        }
        for (name, figures) in &object {
            out.line(readable(name, figures).trim_end())?;
        }
        let Some(interrupt) = &mut interrupt else { return Ok(()) };
        tokio::select! {
            () = interrupt.wait() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs_f64(args.interval)) => out.line("")?,
        }
        for (table, _) in &tables {
            table.refresh().await?;
        }
    }
}

async fn names(db: &ReadOnly, one: Option<&str>) -> Outcome<Vec<String>> {
    if let Some(name) = one {
        return Ok(vec![name.to_owned()]);
    }
    Ok(db.list_tables().await?.into_iter().map(|info| info.name).collect())
}

async fn figures(table: &ReadTable) -> Outcome<Value> {
    let mut figures = serde_json::to_value(table.stats())?;
    if let Value::Object(fields) = &mut figures {
        fields.insert("staleness".to_owned(), serde_json::to_value(table.staleness())?);
    }
    Ok(figures)
}

/// One line per group of figures: `wal  queue_rows 0  queue_bytes 0 B  …`.
fn readable(table: &str, figures: &Value) -> String {
    let mut own = String::new();
    let mut lines = Vec::new();
    for (name, value) in figures.as_object().into_iter().flatten() {
        match value {
            Value::Object(group) => {
                let words: Vec<_> = group.iter().map(|(n, v)| format!("{n} {}", figure(n, v))).collect();
                lines.push(vec![format!("  {name}"), words.join("  ")]);
            }
            Value::Null => {}
            _ => own.push_str(&format!("  {name} {}", figure(name, value))),
        }
    }
    format!("{table}{own}\n{}", aligned(&lines, &[]))
}

fn figure(name: &str, value: &Value) -> String {
    let unit = name.rsplit('_').next().unwrap_or(name);
    match (unit, value) {
        (_, Value::Null) => "-".to_owned(),
        ("bytes", Value::Number(n)) => n.as_u64().map_or_else(|| n.to_string(), bytes),
        ("ms" | "pct", Value::Number(n)) => n.as_f64().map_or_else(|| n.to_string(), |v| format!("{v:.2}")),
        (_, Value::Number(n)) => match n.as_u64() {
            Some(n) => thousands(n),
            None => n.as_f64().map_or_else(|| n.to_string(), |v| format!("{v:.2}")),
        },
        (_, Value::String(text)) => text.clone(),
        (_, other) => other.to_string(),
    }
}

fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

/// `vectide flush`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  vectide flush ./db docs")]
pub(crate) struct FlushArgs {
    /// Directory or object store
    uri: String,
    /// This table only
    table: Option<String>,
}

/// Writes what the tables hold in memory to segments.
pub(crate) async fn flush(args: FlushArgs, out: &Out) -> Outcome {
    let names = names(&database::read(&args.uri).await?, args.table.as_deref()).await?;
    let db = database::write(&args.uri).await?;
    let mut flushed = Vec::new();
    for name in names {
        let table = db.open_table(&name).await?;
        let since = clock::now();
        table.flush().await?;
        let ms = since.elapsed().as_secs_f64() * 1e3;
        let rows = table.count().await?;
        out.line(format_args!("flushed {name}: {} in {ms:.0} ms", crate::progress::rows(rows)))?;
        flushed.push(json!({ "table": name, "rows": rows, "ms": ms }));
    }
    db.close().await?;
    if out.json() { out.object(&json!({ "flushed": flushed })) } else { Ok(()) }
}

/// `vectide verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  vectide verify ./db

Checks checksums of every part, links, reachability, key uniqueness and counts. Exit code 3 if anything is damaged; the
message names the object.")]
pub(crate) struct VerifyArgs {
    /// Directory or object store
    uri: String,
    /// This table only
    table: Option<String>,
}

/// Checks tables whole, and goes on to the next after damage, so that one run names all of them.
pub(crate) async fn verify(args: VerifyArgs, out: &Out) -> Outcome {
    let db = database::read(&args.uri).await?;
    let mut results = Vec::new();
    let mut damage: Vec<String> = Vec::new();
    for name in names(&db, args.table.as_deref()).await? {
        let checked = match db.open_table(&name).await {
            Ok(table) => table.verify().await,
            Err(error) => Err(error),
        };
        match checked {
            Ok(report) => {
                let report = serde_json::to_value(&report)?;
                out.line(readable(&format!("{name}: sound"), &report).trim_end())?;
                results.push(json!({ "table": name, "ok": true, "report": report }));
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                out.line(format_args!("{name}: DAMAGED: {}", error.message()))?;
                results.push(json!({ "table": name, "ok": false, "damage": error.message() }));
                damage.push(format!("table `{name}`: {}", error.message()));
            }
            Err(error) => return Err(Failure::from(error).context(format_args!("verifying `{name}`"))),
        }
    }
    if out.json() {
        out.object(&json!({ "ok": damage.is_empty(), "tables": results }))?;
    }
    if damage.is_empty() {
        return Ok(());
    }
    Err(Failure::damage(damage.join("; ")).hint("restore the named objects from a copy; other tables are not affected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_their_units() {
        assert_eq!(figure("graph_bytes", &json!(5_242_880)), "5.0 MiB");
        assert_eq!(figure("queue_bytes", &json!(512)), "512 B");
        assert_eq!(figure("live_rows", &json!(25_000)), "25,000");
        assert_eq!(figure("queue_max_pct", &json!(0.4)), "0.40");
        assert_eq!(figure("since", &Value::Null), "-");
    }

    #[test]
    fn stats_print_a_line_a_group() {
        let text = readable("docs", &json!({ "live_rows": 3, "wal": { "queue_rows": 0, "queue_bytes": 0 } }));
        assert_eq!(text, "docs  live_rows 3\n  wal  queue_rows 0  queue_bytes 0 B\n");
    }
}
