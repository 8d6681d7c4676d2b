//! `create`, `tables` and `drop`: which tables there are.

use crate::database;
use crate::declare::{ColumnSpec, Declaration, VectorSpec};
use crate::error::{Failure, Outcome};
use crate::ingest;
use crate::output::Out;
use crate::progress;
use crate::render::aligned;
use arrow::datatypes::Schema;
use std::path::{Path, PathBuf};
use vectide::schema::{VectorElement, VectorOptions, parse_codes};
use vectide::{ErrorKind, TableSchema};

/// `vectide create`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide create ./db docs --column id:int64 --column name:utf8 --key id --vector vec:384:cosine
  vectide create ./db docs --schema docs.parquet --key id --vector vec:cosine
  vectide tables ./db docs --json > docs.json && vectide create ./copy docs --schema docs.json")]
pub(crate) struct CreateArgs {
    /// Directory or object store
    uri: String,
    /// The new table's name
    table: String,
    /// Take the columns from a Parquet, Arrow IPC or JSON lines file, or from a declaration in JSON
    #[arg(long, value_name = "FILE", conflicts_with = "column")]
    schema: Option<PathBuf>,
    /// A column, such as id:int64 or name:utf8; give it again for each column
    #[arg(long, value_name = "NAME:TYPE")]
    column: Vec<ColumnSpec>,
    /// The key column; without one the table is append-only
    #[arg(long, value_name = "COL")]
    key: Option<String>,
    /// A vector column: dimension, l2|cosine|dot and f16|f32 in any order (defaults: cosine, f32)
    #[arg(long, value_name = "COL:DIM[:METRIC][:f16]")]
    vector: Vec<VectorSpec>,
    /// Links per graph node
    #[arg(long, value_name = "N")]
    m: Option<u16>,
    /// Beam width while building the graph
    #[arg(long, value_name = "N")]
    ef_construction: Option<u32>,
    /// Compact codes that the graph walks on: auto, or one of none, int8, int4
    #[arg(long, value_name = "CODES")]
    codes: Option<String>,
}

/// Creates a table.
pub(crate) async fn create(args: CreateArgs, out: &Out) -> Outcome {
    let schema = match &args.schema {
        Some(file) if is_declaration(file) => declared_in_file(file, &args)?,
        Some(file) => ingest::schema_of(file, args.key.as_deref(), &args.vector)?,
        None => declared_by_flags(&args)?,
    };
    let schema = with_graph_options(schema, &args)?;
    let db = database::write(&args.uri).await?;
    let table = db.create_table(&args.table, schema).await.map_err(|error| {
        let exists = error.kind() == ErrorKind::Conflict;
        let failure = Failure::from(error);
        if exists {
            failure.hint("choose another name, or drop it first: `vectide drop URI TABLE --yes`")
        } else {
            failure
        }
    })?;
    let declaration = Declaration::of(table.schema());
    db.close().await?;
    let object = serde_json::json!({ "table": args.table, "created": true, "declaration": declaration });
    out.result(&object, format_args!("created {}: {}", args.table, declaration.line()))
}

fn is_declaration(file: &Path) -> bool {
    let json = file.extension().is_some_and(|e| e == "json");
    json && std::fs::read(file)
        .is_ok_and(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).is_ok_and(|v| v["columns"].is_array()))
}

fn declared_in_file(file: &Path, args: &CreateArgs) -> Outcome<TableSchema> {
    if args.key.is_some() || !args.vector.is_empty() {
        let message = format!("{} declares key and vectors itself", file.display());
        return Err(Failure::usage(message).hint("leave --key and --vector out, or edit the file"));
    }
    let bytes = std::fs::read(file).map_err(|e| Failure::from(e).context(file.display()))?;
    let declaration: Declaration =
        serde_json::from_slice(&bytes).map_err(|e| Failure::from(e).context(file.display()))?;
    declaration.schema()
}

fn declared_by_flags(args: &CreateArgs) -> Outcome<TableSchema> {
    if args.column.is_empty() && args.vector.is_empty() {
        return Err(Failure::usage("a table needs columns")
            .hint("give --column NAME:TYPE and --vector COL:DIM, or --schema FILE"));
    }
    let mut fields: Vec<_> = args.column.iter().map(|c| c.0.clone()).collect();
    for vector in &args.vector {
        let dim = vector.dim.ok_or_else(|| {
            let name = &vector.column;
            Failure::usage(format!("vector column `{name}` has no dimension")).hint("say it: --vector COL:DIM")
        })?;
        fields.push(vector.field(dim, VectorElement::F32));
    }
    let mut builder = TableSchema::builder(Schema::new(fields));
    if let Some(key) = &args.key {
        builder = builder.key(key);
    }
    for vector in &args.vector {
        builder = builder.vector(&vector.column, vector.metric);
    }
    Ok(builder.build()?)
}

fn with_graph_options(schema: TableSchema, args: &CreateArgs) -> Outcome<TableSchema> {
    if args.m.is_none() && args.ef_construction.is_none() && args.codes.is_none() {
        return Ok(schema);
    }
    let mut builder = TableSchema::builder(schema.arrow().as_ref().clone());
    if let Some(key) = schema.key() {
        builder = builder.key(&key.name);
    }
    for vector in schema.vectors() {
        let mut options = VectorOptions::new(vector.metric);
        options.m = args.m.unwrap_or(vector.m);
        options.ef_construction = args.ef_construction.unwrap_or(vector.ef_construction);
        options.codes = match args.codes.as_deref() {
            None => Some(vector.codes),
            Some("auto") => None,
            Some(name) => Some(parse_codes(name)?),
        };
        builder = builder.vector_with(&vector.name, options);
    }
    Ok(builder.build()?)
}

/// `vectide tables`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide tables ./db
  vectide tables ./db docs --json     (one table's declaration, as `create --schema` reads it)")]
pub(crate) struct ListArgs {
    /// Directory or object store
    uri: String,
    /// Print this table's declaration only
    table: Option<String>,
}

/// Lists the tables with their declarations and row counts.
pub(crate) async fn list(args: ListArgs, out: &Out) -> Outcome {
    let db = database::read(&args.uri).await?;
    if let Some(name) = &args.table {
        let declaration = Declaration::of(db.open_table(name).await?.schema());
        return out.result(&declaration, declaration.line());
    }
    let mut objects = Vec::new();
    let mut lines = vec![vec!["table".to_owned(), "rows".to_owned(), "columns".to_owned()]];
    for info in db.list_tables().await? {
        let declaration = Declaration::of(&info.schema);
        let rows = db.open_table(&info.name).await?.count().await?;
        lines.push(vec![info.name.clone(), progress::thousands(rows), declaration.line()]);
        objects.push(serde_json::json!({ "table": info.name, "rows": rows, "declaration": declaration }));
    }
    if objects.is_empty() {
        out.note("no tables yet: `vectide create` or `vectide ingest` makes one");
        lines.clear();
    }
    out.result(&serde_json::json!({ "tables": objects }), aligned(&lines, &[false, true, false]).trim_end())
}

/// `vectide drop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  vectide drop ./db docs --yes")]
pub(crate) struct DropArgs {
    /// Directory or object store
    uri: String,
    /// Table
    table: String,
    /// Really drop it: its rows cannot be brought back
    #[arg(long)]
    yes: bool,
}

/// Drops a table.
pub(crate) async fn drop(args: DropArgs, out: &Out) -> Outcome {
    if !args.yes {
        let rows = database::read_table(&args.uri, &args.table).await?.count().await?;
        let message = format!("this would drop `{}` and its {} for good", args.table, progress::rows(rows));
        return Err(Failure::usage(message).hint("add --yes to do it"));
    }
    let (db, table) = database::write_table(&args.uri, &args.table).await?;
    std::mem::drop(table);
    db.drop_table(&args.table).await?;
    db.close().await?;
    out.result(&serde_json::json!({ "table": args.table, "dropped": true }), format_args!("dropped {}", args.table))
}
