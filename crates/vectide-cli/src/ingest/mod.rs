//! `ingest`: files into a table, in durable batches, resumable.
//!
//! A thread reads and cuts the file (`source`, `jsonl`), each batch is brought to the table's types (`adapt`) and written,
//! and its end is recorded (`resume`) once it is acknowledged. Invariant: whatever stops a run, the same command goes on
//! with the first row that is not in the table: in `upsert` mode by writing the batch in flight again, in the others by
//! finding out whether it was written.

mod adapt;
mod jsonl;
mod pace;
mod resume;
mod source;

use self::pace::Pace;
use self::resume::{Position, Record};
use self::source::Source;
use crate::clock;
use crate::database;
use crate::declare::VectorSpec;
use crate::error::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Out;
use crate::progress::{Progress, per_second, rows as rows_of, thousands};
use arrow::array::RecordBatch;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vectide::{ErrorKind, Keys, Table, TableSchema, Vectide, WriteAck};

/// `vectide ingest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide ingest ./db docs docs.parquet --key id --vector vec:cosine
  vectide ingest ./db docs more/*.jsonl --batch 500 --rate 10000
  vectide ingest ./db docs docs.parquet                (again: goes on where it stopped)

Parquet, Arrow IPC (file or stream) and JSON lines are told apart by their first bytes. A table that is not there is made
from the first file's columns. Vectors may be any lists of numbers. Each batch is durable and searchable when it counts
as done; Ctrl-C stops after the one being written. How far each file has come is kept in $XDG_STATE_HOME/vectide
(else ~/.local/state/vectide); a file that changed, and --restart, begin anew.")]
pub(crate) struct Args {
    /// Directory or object store; made if it is not there
    uri: String,
    /// Table; made from the first file's columns if it is not there
    table: String,
    /// Files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// For a new table: the key column; without one rows are appended
    #[arg(long, value_name = "COL")]
    key: Option<String>,
    /// For a new table: a vector column, its metric l2|cosine|dot (default cosine), f16 to store halves
    #[arg(long, value_name = "COL[:METRIC][:f16]")]
    vector: Vec<VectorSpec>,
    /// What happens to a row whose key is there: upsert replaces it, insert refuses the batch
    #[arg(long, value_enum, default_value_t = Mode::Upsert)]
    mode: Mode,
    /// Rows per durable write
    #[arg(long, default_value_t = 1_000, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// At most this many rows per second
    #[arg(long, value_name = "ROWS/S", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Begin anew instead of going on where an earlier run stopped
    #[arg(long)]
    restart: bool,
}

/// How keys that are there already are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Replace the row
    Upsert,
    /// Refuse the batch
    Insert,
}

/// How batches are written, which decides how a run is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// A batch may be written twice.
    Upsert,
    /// A batch written twice is a conflict; its keys tell whether it is there.
    Insert,
    /// A batch written twice is there twice; the row count tells whether it is there.
    Append,
}

impl Writing {
    fn of(mode: Mode, schema: &TableSchema) -> Self {
        match (mode, schema.key()) {
            (_, None) => Self::Append,
            (Mode::Upsert, Some(_)) => Self::Upsert,
            (Mode::Insert, Some(_)) => Self::Insert,
        }
    }
}

/// What became of one file.
#[derive(Debug, Serialize)]
struct FileReport {
    file: PathBuf,
    /// Rows that an earlier run had written.
    resumed_rows: u64,
    /// Rows that this run wrote.
    rows: u64,
    inserted: u64,
    updated: u64,
    seconds: f64,
    rows_per_s: f64,
}

/// The schema of a table made for `file`, for `create --schema`.
pub(crate) fn schema_of(file: &Path, key: Option<&str>, vectors: &[VectorSpec]) -> Outcome<TableSchema> {
    let source = Source::open(file)?;
    adapt::table_schema(&source, key, vectors).map_err(|failure| failure.context(file.display()))
}

/// Ingests the files one after the other.
pub(crate) async fn run(args: Args, out: &Out) -> Outcome {
    // All files are looked at before anything is written.
    let sources = args.files.iter().map(|file| Source::open(file)).collect::<Outcome<Vec<_>>>()?;
    let db = database::write(&args.uri).await?;
    let (table, created) = open_or_create(&db, &args, &sources[0], out).await?;
    let job = Job {
        out,
        args: &args,
        writing: Writing::of(args.mode, table.schema()),
        table_id: table_id(&db, &args.table).await?,
        table,
        interrupt: Interrupt::listen(),
    };
    let mut reports = Vec::with_capacity(sources.len());
    for source in &sources {
        let report = job.file(source).await.map_err(|failure| failure.context(source.path.display()));
        let report = match report {
            Ok(report) => report,
            Err(failure) => {
                // What was acknowledged is durable: a failure to close adds nothing to what is reported.
                let _ = db.close().await;
                return Err(failure);
            }
        };
        describe(&report, *out)?;
        reports.push(report);
    }
    let total = |count: fn(&FileReport) -> u64| reports.iter().map(count).sum::<u64>();
    let object = serde_json::json!({
        "table": args.table,
        "created": created,
        "rows": total(|r| r.rows),
        "inserted": total(|r| r.inserted),
        "updated": total(|r| r.updated),
        "table_rows": job.table.count().await?,
        "files": reports,
    });
    db.close().await?;
    if out.json() { out.object(&object) } else { Ok(()) }
}

fn describe(report: &FileReport, out: Out) -> Outcome {
    let file = report.file.display();
    if report.rows == 0 && report.resumed_rows > 0 {
        let rows = rows_of(report.resumed_rows);
        return out.line(format_args!("{file}: {rows} were in the table already (--restart writes them again)"));
    }
    let resumed = match report.resumed_rows {
        0 => String::new(),
        rows => format!(" after {} of an earlier run", thousands(rows)),
    };
    out.line(format_args!(
        "{file}: {}{resumed} in {:.1} s ({} rows/s), {} new, {} replaced",
        rows_of(report.rows),
        report.seconds,
        thousands(report.rows_per_s as u64),
        thousands(report.inserted),
        thousands(report.updated),
    ))
}

async fn open_or_create(db: &Vectide, args: &Args, first: &Source, out: &Out) -> Outcome<(Table, bool)> {
    match db.open_table(&args.table).await {
        Ok(table) => {
            adapt::refuse_other_declaration(&args.table, table.schema(), args.key.as_deref(), &args.vector)?;
            Ok((table, false))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let schema = adapt::table_schema(first, args.key.as_deref(), &args.vector)
                .map_err(|failure| failure.context(first.path.display()))?;
            let table = db.create_table(&args.table, schema).await?;
            out.line(format_args!(
                "created {}: {}",
                args.table,
                crate::declare::Declaration::of(table.schema()).line()
            ))?;
            if table.schema().key().is_none() {
                out.note("without --key rows are appended: none can be replaced or deleted");
            }
            Ok((table, true))
        }
        Err(error) => Err(error.into()),
    }
}

async fn table_id(db: &Vectide, name: &str) -> Outcome<String> {
    let tables = db.list_tables().await?;
    Ok(tables.into_iter().find(|info| info.name == name).map_or_else(String::new, |info| info.id.to_string()))
}

/// What one file's run did.
#[derive(Debug, Default)]
struct Tally {
    resumed_rows: u64,
    inserted: u64,
    updated: u64,
}

struct Job<'a> {
    out: &'a Out,
    args: &'a Args,
    table: Table,
    table_id: String,
    writing: Writing,
    interrupt: Interrupt,
}

impl Job<'_> {
    /// Writes one file from where it stands to its end.
    async fn file(&self, source: &Source) -> Outcome<FileReport> {
        let sync = self.writing != Writing::Upsert;
        let record = Record::new(&self.args.uri, &self.args.table, &self.table_id, source, sync)?;
        let mut position = self.begin(&record).await?;
        let mut tally = Tally { resumed_rows: position.rows, ..Tally::default() };
        let since = clock::now();
        if !position.done {
            let written = self.rest(source, &record, &mut position, &mut tally).await;
            // Whatever happened, it is known now; unless the engine itself does not know what became of the batch.
            let known = |failure: &Failure| {
                [ErrorKind::Invalid, ErrorKind::Conflict].iter().any(|kind| failure.is(*kind)) || failure.is_interrupt()
            };
            position.done = written.is_ok();
            position.in_doubt = written.as_ref().is_err_and(|failure| !known(failure));
            record.save(&position)?;
            written?;
        }
        let elapsed = since.elapsed();
        let rows = position.rows - tally.resumed_rows;
        Ok(FileReport {
            file: source.path.clone(),
            resumed_rows: tally.resumed_rows,
            rows,
            inserted: tally.inserted,
            updated: tally.updated,
            seconds: elapsed.as_secs_f64(),
            rows_per_s: per_second(rows, elapsed),
        })
    }

    /// Where to begin: at the file's first row, or where an earlier run stopped.
    async fn begin(&self, record: &Record) -> Outcome<Position> {
        if self.args.restart {
            record.forget();
        }
        let append = self.writing == Writing::Append;
        let table_rows = if append { self.table.count().await? } else { 0 };
        let Some(mut position) = record.load() else {
            let position = Position { table_rows, in_doubt: true, ..Position::default() };
            record.save(&position)?;
            return Ok(Position { in_doubt: false, ..position });
        };
        if append && position.in_doubt {
            let more = table_rows.checked_sub(position.table_rows).filter(|more| *more <= u64::from(self.args.batch));
            position.rows += more.ok_or_else(|| undecidable(&position, table_rows))?;
        }
        position.table_rows = table_rows;
        record.save(&position)?;
        Ok(position)
    }

    /// Writes the file's rows from `position` on, and moves it along.
    async fn rest(&self, source: &Source, record: &Record, position: &mut Position, tally: &mut Tally) -> Outcome {
        let mut in_doubt = std::mem::replace(&mut position.in_doubt, true) && self.writing == Writing::Insert;
        let label = source.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let mut progress = Progress::rows(*self.out, &label, source.rows);
        progress.start_at(position.rows);
        let mut pace = Pace::new(self.args.rate);
        let mut interrupt = self.interrupt.clone();
        let mut batches = self.read(source, position.rows)?;
        while let Some(batch) = batches.recv().await {
            let batch = batch.map_err(|failure| at_rows(failure, position.rows, 0))?;
            let rows = batch.num_rows() as u64;
            let at = |failure| at_rows(failure, position.rows, rows);
            let mut batch = adapt::adapt(&batch, self.table.schema()).map_err(at)?;
            if in_doubt {
                let there = self.landed(&batch).await?;
                in_doubt = there == batch.num_rows();
                tally.resumed_rows += there as u64;
                batch = batch.slice(there, batch.num_rows() - there);
            }
            if batch.num_rows() > 0 {
                let ack = self.write(batch).await.map_err(at)?;
                tally.inserted += ack.inserted;
                tally.updated += ack.updated;
            }
            position.rows += rows;
            position.table_rows += if self.writing == Writing::Append { rows } else { 0 };
            record.save(position)?;
            progress.advance(rows, &self.queue());
            tokio::select! {
                biased;
                () = interrupt.wait() => return Err(stopped(position, source)),
                () = pace.wait(rows) => {}
            }
        }
        progress.finish();
        Ok(())
    }

    /// How many of the batch's first rows an interrupted `insert` run had written. A batch is there whole or not at all,
    /// but that run's batches may have been smaller.
    async fn landed(&self, batch: &RecordBatch) -> Outcome<usize> {
        let key = self.table.schema().key().and_then(|key| batch.column_by_name(&key.name));
        let Some(keys) = key else { return Ok(0) };
        let there = self.table.get(Keys::from(Arc::clone(keys))).await?.num_rows();
        let first = self.table.get(Keys::from(keys.slice(0, there))).await?.num_rows();
        Ok(if first == there { there } else { 0 })
    }

    async fn write(&self, batch: RecordBatch) -> Outcome<WriteAck> {
        let written = match self.writing {
            Writing::Upsert => self.table.upsert(batch).await,
            Writing::Insert | Writing::Append => self.table.insert(batch).await,
        };
        written.map_err(|error| {
            let conflict = error.kind() == ErrorKind::Conflict;
            let failure = Failure::from(error);
            if conflict {
                failure.hint("nothing of this batch was written; --mode upsert replaces such rows")
            } else {
                failure
            }
        })
    }

    /// Reads in a thread of its own, two batches ahead at most.
    fn read(&self, source: &Source, skip: u64) -> Outcome<tokio::sync::mpsc::Receiver<Outcome<RecordBatch>>> {
        let schema = adapt::reading_schema(source, self.table.schema());
        let batches = source.batches(skip, self.args.batch as usize, &schema)?;
        let (sender, receiver) = tokio::sync::mpsc::channel(2);
        tokio::task::spawn_blocking(move || {
            for batch in batches {
                // The writer went away after a failure of its own.
                if sender.blocking_send(batch).is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    fn queue(&self) -> String {
        let stats = self.table.stats();
        format!("  log queue {}  tail {}", thousands(stats.wal.queue_rows), thousands(stats.memtable.tail_rows))
    }
}

/// Says which of the file's rows an error about a batch is about.
fn at_rows(failure: Failure, from: u64, rows: u64) -> Failure {
    if !failure.is(ErrorKind::Invalid) && !failure.is(ErrorKind::Conflict) {
        return failure;
    }
    match rows {
        0 => failure,
        1 => failure.context(format_args!("in the batch that is row {from} (counted from 0)")),
        _ => failure.context(format_args!("in the batch of rows {from} to {} (counted from 0)", from + rows - 1)),
    }
}

fn undecidable(position: &Position, table_rows: u64) -> Failure {
    let message = format!(
        "the table had {} when an earlier run stopped, and has {} now: something else wrote to it, so nobody can tell \
         whether the batch then in flight was written",
        rows_of(position.table_rows),
        thousands(table_rows)
    );
    Failure::invalid(message).hint("--restart writes the file from its beginning; a table with a key has no such doubt")
}

fn stopped(position: &Position, source: &Source) -> Failure {
    let of = source.rows.map_or(String::new(), |rows| format!(" of {}", thousands(rows)));
    Failure::interrupted(format!("stopped after {}{of} rows, all of them durable", thousands(position.rows)))
        .hint("run the same command again to go on from there")
}
