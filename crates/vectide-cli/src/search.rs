//! `search`: the rows nearest to a vector, to a row of the table, or to each vector of a file.
//!
//! In: one of `--vector`, `--like`, `--file`. Out: columns and `_distance`, nearest first; for a file `_query` says which
//! of its vectors a row answers.

use crate::database;
use crate::error::{Failure, Outcome};
use crate::keys;
use crate::npy;
use crate::output::Out;
use crate::render::{self, Format, RowWriter};
use crate::vectors;
use arrow::array::{ArrayRef, RecordBatch, Scalar, UInt64Array};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vectide::{ReadTable, TableSchema};

/// `vectide search`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["vector", "like", "file"]), after_help = "\
Examples:
  vectide search ./db words --like river -k 5
  vectide search ./db docs --vector \"[0.1, 0.2, 0.3]\" --columns id,name
  vectide search ./db docs --file queries.npy -k 10 --format json
  vectide search ./db docs --like 17 --exact            (compares with every row: the ground truth)")]
pub(crate) struct Args {
    /// Directory or object store
    uri: String,
    /// Table
    table: String,
    /// The query vector, such as "[0.1, 0.2]"
    #[arg(long, value_name = "NUMBERS", allow_hyphen_values = true)]
    vector: Option<String>,
    /// The row with this key is the query, and is left out of the answer
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    like: Option<String>,
    /// Each row of a NumPy file (.npy, shape (n, dim)) is a query
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Answers per query
    #[arg(short, default_value_t = 10, value_name = "N")]
    k: usize,
    /// Beam width of the search: larger finds more of the true neighbours and takes longer
    #[arg(long, default_value_t = 64, value_name = "N")]
    ef: usize,
    /// The vector column to search, if there are several
    #[arg(long, value_name = "COL")]
    column: Option<String>,
    /// Columns to print [default: all but vectors]
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    columns: Vec<String>,
    /// Compare with every row instead of walking the graph
    #[arg(long)]
    exact: bool,
    /// How to print the rows
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the search.
pub(crate) async fn run(args: Args, out: &Out) -> Outcome {
    let table = database::read_table(&args.uri, &args.table).await?;
    let vector = &table.schema().vectors()[table.schema().vector(args.column.as_deref())?];
    let column = vector.name.clone();
    if let Some(file) = &args.file {
        let queries = queries(file)?;
        let answers = many(&table, &args, &column, &queries).await?;
        return print(&args, out, &answers, true);
    }
    let answer = match (&args.vector, &args.like) {
        (Some(text), _) => one(&table, &args, &column, &parse_vector(text)?, args.k, shown(&args, &table)).await?,
        (None, Some(key)) => like(&table, &args, &column, key).await?,
        (None, None) => return Err(Failure::usage("give --vector, --like or --file")),
    };
    print(&args, out, &[answer], false)
}

fn shown(args: &Args, table: &ReadTable) -> Vec<String> {
    if !args.columns.is_empty() {
        return args.columns.clone();
    }
    let is_vector = |name: &str| table.schema().vectors().iter().any(|v| v.name == name);
    let names = table.schema().arrow().fields().iter().map(|f| f.name().clone());
    names.filter(|name| !is_vector(name)).collect()
}

async fn one(
    table: &ReadTable,
    args: &Args,
    column: &str,
    query: &[f32],
    k: usize,
    columns: Vec<String>,
) -> Outcome<RecordBatch> {
    let search = table.search(query).k(k).ef_search(args.ef.max(k)).column(column).columns(columns).exact(args.exact);
    Ok(search.await?)
}

async fn many(table: &ReadTable, args: &Args, column: &str, queries: &[Vec<f32>]) -> Outcome<Vec<RecordBatch>> {
    let search = table.search_batch(queries).k(args.k).ef_search(args.ef.max(args.k)).column(column);
    Ok(search.columns(shown(args, table)).exact(args.exact).await?)
}

/// Asks for one more than `k` and takes the row itself out, which need not be the nearest: another may be equal to it.
async fn like(table: &ReadTable, args: &Args, column: &str, key: &str) -> Outcome<RecordBatch> {
    let key_column = keys::key_column(table.schema(), &args.table)?.clone();
    let row = table.get(keys::parse(&[key], &key_column)?).await?;
    if row.num_rows() == 0 {
        return Err(Failure::not_found(format!("table `{}` has no row with key {key}", args.table))
            .hint("`vectide scan URI TABLE` shows some that it has"));
    }
    let vector = row.column_by_name(column).map(|array| vectors::row_f32(array, 0)).transpose()?.flatten();
    let query = vector.ok_or_else(|| Failure::invalid(format!("row {key} has no vector in column `{column}`")))?;
    let columns = shown(args, table);
    let mut asked = columns.clone();
    if !asked.contains(&key_column.name) {
        asked.push(key_column.name.clone());
    }
    let hits = one(table, args, column, &query, args.k.saturating_add(1), asked).await?;
    let own = Scalar::new(row.column_by_name(&key_column.name).map(Arc::clone).ok_or_else(|| no_key(table.schema()))?);
    let keys = hits.column_by_name(&key_column.name).ok_or_else(|| no_key(table.schema()))?;
    let others = filter_record_batch(&hits, &arrow::compute::kernels::cmp::neq(keys, &own)?)?;
    let others = others.slice(0, others.num_rows().min(args.k));
    if columns.contains(&key_column.name) {
        return Ok(others);
    }
    let kept: Vec<usize> =
        (0..others.num_columns()).filter(|&i| others.schema().field(i).name() != &key_column.name).collect();
    Ok(others.project(&kept)?)
}

fn no_key(schema: &TableSchema) -> Failure {
    let name = schema.key().map_or("", |k| k.name.as_str());
    Failure::from(vectide::Error::internal(format!("the answer lacks the key column `{name}`")))
}

fn queries(file: &Path) -> Outcome<Vec<Vec<f32>>> {
    let bytes = std::fs::read(file).map_err(|e| Failure::from(e).context(file.display()))?;
    npy::read(&bytes).map_err(|failure| failure.context(file.display()))
}

/// Reads `[1, 2.5]`, with or without brackets, separated by commas or spaces.
fn parse_vector(text: &str) -> Outcome<Vec<f32>> {
    let inside = text.trim().trim_start_matches('[').trim_end_matches(']');
    let numbers = inside.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let read = |word: &str| {
        word.parse::<f32>().map_err(|_| {
            Failure::usage(format!("`{word}` in --vector is no number")).hint("write it as \"[0.1, -0.2, 0.3]\"")
        })
    };
    numbers.map(read).collect()
}

fn print(args: &Args, out: &Out, answers: &[RecordBatch], numbered: bool) -> Outcome {
    if out.json() && args.output.is_none() {
        let mut rows = answers.iter().map(render::to_values).collect::<Outcome<Vec<_>>>()?;
        let results = if numbered { json!(rows) } else { rows.pop().unwrap_or_else(|| json!([])) };
        let object = json!({ "table": args.table, "k": args.k, "ef_search": args.ef.max(args.k), "exact": args.exact, "results": results });
        return out.object(&object);
    }
    let rows = if numbered { number(answers)? } else { answers[0].clone() };
    let file = args.output.as_deref();
    let mut writer = RowWriter::new(Format::for_output(args.format, file), &rows.schema(), file)?;
    writer.write(&rows)?;
    let count = writer.finish("")?;
    match file {
        Some(file) => out.result(
            &json!({ "table": args.table, "count": count, "file": file }),
            format_args!("wrote {} to {}", crate::progress::rows(count), file.display()),
        ),
        None => Ok(()),
    }
}

/// One batch of all answers, led by `_query`.
fn number(answers: &[RecordBatch]) -> Outcome<RecordBatch> {
    let Some(first) = answers.first() else {
        return Ok(RecordBatch::new_empty(Arc::new(Schema::empty())));
    };
    let rows = concat_batches(&first.schema(), answers)?;
    let query: UInt64Array =
        answers.iter().enumerate().flat_map(|(i, a)| std::iter::repeat_n(i as u64, a.num_rows())).collect();
    let mut fields = vec![Arc::new(Field::new("_query", DataType::UInt64, false))];
    fields.extend(rows.schema().fields().iter().map(Arc::clone));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(query)];
    columns.extend(rows.columns().iter().map(Arc::clone));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_read_with_or_without_brackets() {
        assert_eq!(parse_vector("[0.5, -1, 2e1]").expect("reads"), [0.5, -1.0, 20.0]);
        assert_eq!(parse_vector("0.5 -1").expect("reads"), [0.5, -1.0]);
        assert!(parse_vector("[0.5, x]").expect_err("no number").message.contains("`x`"));
    }
}
