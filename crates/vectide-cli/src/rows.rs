//! `get`, `delete`, `count` and `scan`: rows by key and rows in bulk.

use crate::database;
use crate::error::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::keys;
use crate::output::Out;
use crate::progress::{Progress, rows as rows_of, thousands};
use crate::render::{Format, RowWriter};
use arrow::array::RecordBatch;
use futures::StreamExt as _;
use serde_json::json;
use std::path::PathBuf;
use vectide::TableSchema;

/// `vectide get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide get ./db docs 17 42
  vectide get ./db words river --columns rank --json")]
pub(crate) struct GetArgs {
    /// Directory or object store
    uri: String,
    /// Table
    table: String,
    /// Keys; bytes in hex
    #[arg(required = true, allow_negative_numbers = true, value_name = "KEY")]
    keys: Vec<String>,
    /// Only these columns
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    columns: Vec<String>,
    /// How to print the rows
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// Prints the rows of some keys, in the keys' order.
pub(crate) async fn get(args: GetArgs, out: &Out) -> Outcome {
    let table = database::read_table(&args.uri, &args.table).await?;
    let keys = keys::parse(&args.keys, keys::key_column(table.schema(), &args.table)?)?;
    let asked = keys.len();
    let found = project(table.get(keys).await?, &columns(table.schema(), &args.columns)?)?;
    let mut writer = if out.json() {
        RowWriter::object(&head(&args.table))?
    } else {
        RowWriter::new(args.format.unwrap_or_default(), &found.schema(), None)?
    };
    writer.write(&found)?;
    writer.finish(&format!(",\"asked\":{asked},\"found\":{}}}\n", found.num_rows()))?;
    if found.num_rows() < asked {
        out.note(format_args!("{} of {} keys found", found.num_rows(), asked));
    }
    Ok(())
}

/// `vectide delete`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide delete ./db docs 17 42
  vectide delete ./db docs --file stale-ids.txt     (one key a line)")]
pub(crate) struct DeleteArgs {
    /// Directory or object store
    uri: String,
    /// Table
    table: String,
    /// Keys; bytes in hex
    #[arg(allow_negative_numbers = true, value_name = "KEY", required_unless_present = "file")]
    keys: Vec<String>,
    /// Take the keys from a file, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    file: Option<PathBuf>,
}

/// Keys that one delete takes: each is one durable write.
const DELETE_KEYS: usize = 1_000;

/// Deletes the rows of some keys; keys without a row are skipped.
pub(crate) async fn delete(args: DeleteArgs, out: &Out) -> Outcome {
    let texts = match &args.file {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|e| Failure::from(e).context(file.display()))?;
            text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        }
        None => args.keys,
    };
    let (db, table) = database::write_table(&args.uri, &args.table).await?;
    let column = keys::key_column(table.schema(), &args.table)?.clone();
    // All keys are read before any row is deleted.
    let chunks = texts.chunks(DELETE_KEYS).map(|chunk| keys::parse(chunk, &column)).collect::<Outcome<Vec<_>>>()?;
    let interrupt = Interrupt::listen();
    let mut progress = Progress::rows(*out, "deleting", Some(texts.len() as u64));
    let (mut asked, mut deleted) = (0, 0);
    for chunk in chunks {
        if interrupt.asked() {
            let message = format!("stopped after {} of {} keys", thousands(asked), thousands(texts.len() as u64));
            return Err(Failure::interrupted(message).hint("run the same command again: deleted keys are skipped"));
        }
        let keys = chunk.len() as u64;
        deleted += table.delete(chunk).await?.deleted;
        asked += keys;
        progress.advance(keys, "");
    }
    progress.finish();
    db.close().await?;
    out.result(
        &json!({ "table": args.table, "asked": asked, "deleted": deleted }),
        format_args!("deleted {} of {} keys", thousands(deleted), thousands(asked)),
    )
}

/// `vectide count`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  vectide count ./db docs")]
pub(crate) struct CountArgs {
    /// Directory or object store
    uri: String,
    /// Table
    table: String,
}

/// Counts the live rows.
pub(crate) async fn count(args: CountArgs, out: &Out) -> Outcome {
    let rows = database::read_table(&args.uri, &args.table).await?.count().await?;
    out.result(&json!({ "table": args.table, "rows": rows }), rows)
}

/// `vectide scan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide scan ./db docs --limit 5
  vectide scan ./db docs --columns id,name --format json | head
  vectide scan ./db docs -o docs.parquet")]
pub(crate) struct ScanArgs {
    /// Directory or object store
    uri: String,
    /// Table
    table: String,
    /// Only these columns
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    columns: Vec<String>,
    /// At most this many rows; 0 for all [default: 20 for a table, else all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// How to write the rows [default: by the name after -o, else table]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Rows of a table shown without `--limit`.
const SHOWN_ROWS: u64 = 20;

/// Writes a snapshot's rows, in the order in which they were written.
pub(crate) async fn scan(args: ScanArgs, out: &Out) -> Outcome {
    let file = args.output.as_deref();
    let format = Format::for_output(args.format, file);
    let object = out.json() && file.is_none();
    if object && args.format.is_some_and(|f| f != Format::Json) {
        return Err(Failure::usage("--json prints one object, --format another form").hint("give one of them, or -o"));
    }
    let table = database::read_table(&args.uri, &args.table).await?;
    let limit = match args.limit {
        Some(0) => None,
        None if !object && file.is_none() && format.is_for_reading() => Some(SHOWN_ROWS),
        given => given,
    };
    let columns = columns(table.schema(), &args.columns)?;
    let mut scan = table.scan().columns(columns);
    if let Some(limit) = limit {
        scan = scan.limit(limit);
    }
    let mut stream = scan.await?;
    let mut progress = Progress::rows(*out, "scanning", None);
    let mut rows = 0;
    let mut writer = match object {
        true => RowWriter::object(&head(&args.table))?,
        false => RowWriter::new(format, stream.schema(), file)?,
    };
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        writer.write(&batch)?;
        rows += batch.num_rows() as u64;
        if file.is_some() {
            progress.advance(batch.num_rows() as u64, "");
        }
    }
    progress.finish();
    writer.finish(&format!(",\"count\":{rows}}}\n"))?;
    if let Some(file) = file {
        let object = json!({ "table": args.table, "count": rows, "file": file });
        return out.result(&object, format_args!("wrote {} to {}", rows_of(rows), file.display()));
    }
    if args.limit.is_none() && limit == Some(rows) {
        out.note(format_args!("the first {rows} rows; --limit 0 prints all"));
    }
    Ok(())
}

/// The beginning of an object that holds rows.
fn head(table: &str) -> String {
    format!("{{\"table\":{},\"rows\":", json!(table))
}

/// The columns asked for, or all.
pub(crate) fn columns(schema: &TableSchema, asked: &[String]) -> Outcome<Vec<String>> {
    let all = || schema.arrow().fields().iter().map(|f| f.name().clone());
    if let Some(unknown) = asked.iter().find(|name| schema.arrow().index_of(name).is_err()) {
        let there = all().collect::<Vec<_>>().join(", ");
        return Err(Failure::invalid(format!("column `{unknown}` is not in the table; it has: {there}"))
            .hint("correct --columns"));
    }
    Ok(if asked.is_empty() { all().collect() } else { asked.to_vec() })
}

fn project(batch: RecordBatch, columns: &[String]) -> Outcome<RecordBatch> {
    let indices = columns.iter().map(|name| batch.schema().index_of(name)).collect::<Result<Vec<_>, _>>()?;
    Ok(batch.project(&indices)?)
}
