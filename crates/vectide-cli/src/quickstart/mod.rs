//! `quickstart`: the main job on real data, from an empty directory to answers that survive a reopen.
//!
//! Steps: create the table, stream 25,000 words through durable writes while searching them (`stream`), show the nearest
//! words of a few, measure recall (`recall`), flush, close, reopen, compare. Invariant: it fails, with a non-zero exit
//! code, if a search came back empty, recall is below 0.97, or the reopened table answers differently.

mod latency;
mod recall;
mod stream;
mod words;

use self::recall::{Answers, Sample};
use self::stream::Streamed;
use self::words::Words;
use crate::database;
use crate::error::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Out;
use crate::progress::thousands;
use crate::render::aligned;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use vectide::{ErrorKind, Table};

/// `vectide quickstart`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide quickstart
  vectide quickstart --dir ./words-db        (keeps the table there, to search it afterwards)
  vectide quickstart --rows 2000 --json")]
pub(crate) struct Args {
    /// Where to put the database; it stays there [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the temporary directory
    #[arg(long)]
    keep: bool,
    /// Only the N most frequent words
    #[arg(long, value_name = "N")]
    rows: Option<u32>,
}

const TABLE: &str = "words";
/// Words whose neighbours are measured.
const SAMPLED: usize = 500;
/// The least recall that passes.
const LEAST_RECALL: f64 = 0.97;

/// What `--json` prints. Latencies in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Report {
    rows: usize,
    ingest_seconds: f64,
    rows_per_s: f64,
    ack_p50_ms: f64,
    ack_p99_ms: f64,
    search_p50_ms: f64,
    search_p99_ms: f64,
    searches: usize,
    empty_searches: u64,
    recall_at_10: f64,
    recall_at_10_during: f64,
    recall_queries: usize,
    ef_search: usize,
    wal_queue_max_pct: f64,
    reopened_rows: u64,
    reopened_equal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
}

/// Runs the main job.
pub(crate) async fn run(args: Args, out: &Out) -> Outcome {
    let words = Arc::new(Words::load(args.rows)?);
    let place = Place::new(&args)?;
    let uri = place.uri()?;
    out.line(format_args!(
        "{} words (GloVe, 100-d f16, cosine) into {uri}, 100 at a time, each write durable before the next",
        thousands(words.len() as u64)
    ))?;

    let sample = Sample::of(&words, SAMPLED);
    let first = fill(&uri, &words, &sample, *out).await?;
    let reopened = reopen(&uri, &words, &sample).await?;

    let report = report(&first, &reopened, &words, &sample, &place);
    describe_reopening(&report, *out)?;
    if out.json() {
        out.object(&report)?;
    }
    let checked = check(&report);
    next_steps(&place, *out)?;
    place.close()?;
    checked
}

/// What the table showed while it was written, and what it answered before it was closed.
struct First {
    streamed: Streamed,
    truth: Answers,
    answers: Answers,
}

/// Creates, streams, searches, flushes and closes. Gives the directory's lock back on return.
async fn fill(uri: &str, words: &Arc<Words>, sample: &Sample, out: Out) -> Outcome<First> {
    let db = database::write(uri).await?;
    let table = db.create_table(TABLE, words.schema()?).await.map_err(|error| {
        let exists = error.kind() == ErrorKind::Conflict;
        let failure = Failure::from(error);
        if exists { failure.hint("choose another --dir, or none for a temporary one") } else { failure }
    })?;
    let streamed = stream::run(&table, words, &Interrupt::listen(), out).await?;
    describe_stream(&streamed, words.len(), out)?;
    show_neighbours(&table, words, out).await?;
    let truth = sample.ask(&table, words, true).await?;
    table.flush().await?;
    let answers = sample.ask(&table, words, false).await?;
    table.close().await?;
    db.close().await?;
    Ok(First { streamed, truth, answers })
}

/// What the table says after it was closed and opened again.
struct Reopened {
    rows: u64,
    truth: Answers,
    answers: Answers,
}

async fn reopen(uri: &str, words: &Words, sample: &Sample) -> Outcome<Reopened> {
    let db = database::write(uri).await?;
    let table = db.open_table(TABLE).await?;
    let reopened = Reopened {
        rows: table.count().await?,
        truth: sample.ask(&table, words, true).await?,
        answers: sample.ask(&table, words, false).await?,
    };
    db.close().await?;
    Ok(reopened)
}

fn report(first: &First, reopened: &Reopened, words: &Words, sample: &Sample, place: &Place) -> Report {
    let rows = words.len();
    let streamed = &first.streamed;
    let same_rows = reopened.rows == rows as u64;
    Report {
        rows,
        ingest_seconds: streamed.ingest_seconds,
        rows_per_s: rows as f64 / streamed.ingest_seconds.max(1e-9),
        ack_p50_ms: streamed.acks.percentile_ms(50.0),
        ack_p99_ms: streamed.acks.percentile_ms(99.0),
        search_p50_ms: streamed.searches.percentile_ms(50.0),
        search_p99_ms: streamed.searches.percentile_ms(99.0),
        searches: streamed.searches.len(),
        empty_searches: streamed.empty_searches,
        recall_at_10: recall::recall(&reopened.answers, &first.truth),
        recall_at_10_during: streamed.recall_sum / streamed.recall_count.max(1) as f64,
        recall_queries: sample.len(),
        ef_search: recall::EF_SEARCH,
        wal_queue_max_pct: streamed.wal_queue_max_pct,
        reopened_rows: reopened.rows,
        reopened_equal: same_rows && reopened.truth == first.truth && reopened.answers == first.answers,
        dir: place.kept(),
    }
}

fn check(report: &Report) -> Outcome {
    let wrong = if report.empty_searches > 0 {
        format!("{} searches came back empty", report.empty_searches)
    } else if !report.reopened_equal {
        "the reopened table does not answer as before".to_owned()
    } else if report.recall_at_10 < LEAST_RECALL || report.recall_at_10_during < LEAST_RECALL {
        format!(
            "recall@10 is {:.4} after and {:.4} during the writes; expected at least {LEAST_RECALL}",
            report.recall_at_10, report.recall_at_10_during
        )
    } else {
        return Ok(());
    };
    Err(Failure::check_failed(wrong).hint("this is a bug in Vectide: please report it with the output of --json"))
}

fn describe_stream(streamed: &Streamed, rows: usize, out: Out) -> Outcome {
    let lines = [
        vec![
            "written".to_owned(),
            format!(
                "{} rows/s, acknowledged in p50 {:.2} ms, p99 {:.2} ms",
                thousands((rows as f64 / streamed.ingest_seconds.max(1e-9)) as u64),
                streamed.acks.percentile_ms(50.0),
                streamed.acks.percentile_ms(99.0),
            ),
        ],
        vec![
            "searched".to_owned(),
            format!(
                "{} times meanwhile, p50 {:.2} ms, p99 {:.2} ms, {} empty, recall@10 {:.3}",
                thousands(streamed.searches.len() as u64),
                streamed.searches.percentile_ms(50.0),
                streamed.searches.percentile_ms(99.0),
                streamed.empty_searches,
                streamed.recall_sum / streamed.recall_count.max(1) as f64,
            ),
        ],
        vec!["log queue".to_owned(), format!("at most {:.2}% of the rows", streamed.wal_queue_max_pct)],
    ];
    out.line(aligned(&lines, &[]))
}

/// Words that people know, among which those are shown that were written.
const SHOWN: [&str; 8] = ["river", "jazz", "computer", "berlin", "winter", "king", "music", "january"];

async fn show_neighbours(table: &Table, words: &Words, out: Out) -> Outcome {
    let known = SHOWN.iter().filter_map(|word| words.find(word)).take(5);
    let mut lines = Vec::new();
    for row in known {
        let search = table.search(words.vector(row)).k(7).ef_search(recall::EF_SEARCH).columns([words::WORD]);
        let mut near = Words::of_answer(&search.await?);
        near.retain(|word| word != words.word(row));
        near.truncate(6);
        let mut line = vec![words.word(row).to_owned()];
        line.extend(near);
        lines.push(line);
    }
    out.line(format_args!("nearest words\n{}", indented(&aligned(&lines, &[]))))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn describe_reopening(report: &Report, out: Out) -> Outcome {
    let same = if report.reopened_equal { "the same answers" } else { "DIFFERENT ANSWERS" };
    out.line(format_args!(
        "flushed, closed and reopened from disk: {} rows, {same} to {} queries, recall@10 {:.3} against the exact scan",
        thousands(report.reopened_rows),
        report.recall_queries,
        report.recall_at_10
    ))
}

fn next_steps(place: &Place, out: Out) -> Outcome {
    let program = std::env::args().next().unwrap_or_else(|| "vectide".to_owned());
    let dir = place.kept().map_or_else(|| "./words-db".to_owned(), |dir| dir.display().to_string());
    let keep = match place.kept() {
        Some(_) => String::new(),
        None => format!("  {program} quickstart --dir {dir}\n"),
    };
    out.line(format_args!(
        "\nnext\n{keep}  {program} search {dir} {TABLE} --like river -k 5\n  {program} stats {dir}\n  {program} ingest {dir} docs \
         YOUR.parquet --key id --vector vec:cosine"
    ))
}

/// Where the database lives, and for how long.
enum Place {
    Named(PathBuf),
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Place {
    fn new(args: &Args) -> Outcome<Self> {
        if let Some(dir) = &args.dir {
            return Ok(Self::Named(dir.clone()));
        }
        let dir = tempfile::Builder::new().prefix("vectide-quickstart-").tempdir()?;
        Ok(if args.keep { Self::Kept(dir.keep()) } else { Self::Temporary(dir) })
    }

    fn uri(&self) -> Outcome<String> {
        let path = match self {
            Self::Named(path) | Self::Kept(path) => path.as_path(),
            Self::Temporary(dir) => dir.path(),
        };
        let text = path.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", path.display())))?;
        Ok(text.to_owned())
    }

    fn kept(&self) -> Option<PathBuf> {
        match self {
            Self::Named(path) | Self::Kept(path) => Some(path.clone()),
            Self::Temporary(_) => None,
        }
    }

    fn close(self) -> Outcome {
        match self {
            Self::Temporary(dir) => Ok(dir.close()?),
            Self::Named(_) | Self::Kept(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing() -> Report {
        Report {
            rows: 1,
            ingest_seconds: 1.0,
            rows_per_s: 1.0,
            ack_p50_ms: 1.0,
            ack_p99_ms: 1.0,
            search_p50_ms: 1.0,
            search_p99_ms: 1.0,
            searches: 1,
            empty_searches: 0,
            recall_at_10: 1.0,
            recall_at_10_during: 1.0,
            recall_queries: 1,
            ef_search: recall::EF_SEARCH,
            wal_queue_max_pct: 0.0,
            reopened_rows: 1,
            reopened_equal: true,
            dir: None,
        }
    }

    #[test]
    fn each_broken_promise_fails_the_run() {
        assert!(check(&passing()).is_ok());
        assert!(check(&Report { empty_searches: 1, ..passing() }).is_err());
        assert!(check(&Report { reopened_equal: false, ..passing() }).is_err());
        assert!(check(&Report { recall_at_10: 0.96, ..passing() }).is_err());
        assert!(check(&Report { recall_at_10_during: 0.96, ..passing() }).is_err());
    }
}
