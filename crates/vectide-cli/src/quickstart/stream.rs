//! The main job: one task writes durable batches while another searches all the time for words already written.
//!
//! Out: ack and search latencies, and recall measured along the way against the exact scan of the same snapshot. The
//! searcher starts with the first acknowledgement and searches at least once.

use super::latency::Latencies;
use super::recall;
use super::words::Words;
use crate::clock;
use crate::error::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Out;
use crate::progress::{per_second, thousands};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use vectide::Table;

/// Rows of a durable write.
const BATCH_ROWS: usize = 100;
/// One search in this many is compared with the exact scan.
const CHECKED_EVERY: usize = 20;

/// What streaming showed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streamed {
    pub(crate) ingest_seconds: f64,
    pub(crate) acks: Latencies,
    pub(crate) searches: Latencies,
    pub(crate) empty_searches: u64,
    /// Sum of the recalls of the checked searches, and how many were checked.
    pub(crate) recall_sum: f64,
    pub(crate) recall_count: u64,
    pub(crate) wal_queue_max_pct: f64,
}

/// Figures that the live line reads while the two tasks fill them.
type Shared = Arc<Mutex<Streamed>>;

/// Streams all words into the table while searching it.
pub(crate) async fn run(table: &Table, words: &Arc<Words>, interrupt: &Interrupt, out: Out) -> Outcome<Streamed> {
    let shared = Shared::default();
    // Rows acknowledged so far; dropped when the last one is.
    let (acked, written) = watch::channel(0);
    let searcher = tokio::spawn(search(table.clone(), Arc::clone(words), written.clone(), Arc::clone(&shared)));
    let line = tokio::spawn(show(table.clone(), words.len(), written, Arc::clone(&shared), out));
    let ingested = write(table, words, acked, interrupt, &shared).await;
    let joined = |_| Failure::from(vectide::Error::internal("a quickstart task panicked"));
    searcher.await.map_err(joined)??;
    line.await.map_err(joined)?;
    ingested?;
    let mut streamed = with(&shared, |figures| figures.clone());
    streamed.wal_queue_max_pct = table.stats().wal.wal_queue_max_pct;
    Ok(streamed)
}

fn with<T>(shared: &Shared, read: impl FnOnce(&mut Streamed) -> T) -> T {
    // Figures stay readable whatever happened to another task.
    read(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn write(
    table: &Table,
    words: &Words,
    acked: watch::Sender<usize>,
    interrupt: &Interrupt,
    shared: &Shared,
) -> Outcome {
    let since = clock::now();
    for start in (0..words.len()).step_by(BATCH_ROWS) {
        if interrupt.asked() {
            return Err(
                Failure::interrupted(format!("stopped after {start} words")).hint("run it again to see the rest")
            );
        }
        let batch = words.batch.slice(start, BATCH_ROWS.min(words.len() - start));
        let rows = batch.num_rows();
        let sent = clock::now();
        table.upsert(batch).await?;
        let elapsed = sent.elapsed();
        with(shared, |figures| figures.acks.add(elapsed));
        acked.send_replace(start + rows);
    }
    with(shared, |figures| figures.ingest_seconds = since.elapsed().as_secs_f64());
    Ok(())
}

async fn search(table: Table, words: Arc<Words>, mut written: watch::Receiver<usize>, shared: Shared) -> Outcome {
    // An error means that the writer failed before its first acknowledgement, and says so itself.
    if written.wait_for(|rows| *rows > 0).await.is_err() {
        return Ok(());
    }
    let mut rows = Shuffle(0x9e37_79b9_7f4a_7c15);
    for turn in 0.. {
        let acknowledged = *written.borrow();
        let row = rows.below(acknowledged);
        let sent = clock::now();
        let hits = table.search(words.vector(row)).k(recall::K).ef_search(recall::EF_SEARCH).columns(["word"]).await?;
        let elapsed = sent.elapsed();
        let checked =
            if turn % CHECKED_EVERY == 0 { Some(recall::of_one(&table.snapshot(), &words, row).await?) } else { None };
        with(&shared, |figures| {
            figures.searches.add(elapsed);
            figures.empty_searches += u64::from(hits.num_rows() == 0);
            figures.recall_sum += checked.unwrap_or(0.0);
            figures.recall_count += u64::from(checked.is_some());
        });
        if written.has_changed().is_err() {
            break;
        }
        // A search need not wait for anything: on one core the writer would never get its turn.
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// xorshift64 (Marsaglia, 2003): the same words in every run.
struct Shuffle(u64);

impl Shuffle {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap_or(0)
    }
}

/// The live line, until the writer is done.
async fn show(table: Table, total: usize, written: watch::Receiver<usize>, shared: Shared, out: Out) {
    let shown = !out.json() && std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total as u64), target);
    let template = "{bar:20} {human_pos}/{human_len} rows  {msg}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
    let since = clock::now();
    while written.has_changed().is_ok() {
        let rows = *written.borrow();
        bar.set_position(rows as u64);
        bar.set_message(line(&table, rows, since, &shared));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bar.finish_and_clear();
}

fn line(table: &Table, rows: usize, since: Instant, shared: &Shared) -> String {
    let stats = table.stats();
    let (p50, p99) = with(shared, |figures| (figures.searches.newest_ms(50.0), figures.searches.newest_ms(99.0)));
    format!(
        "{} rows/s  log queue {}  tail {}  search p50 {p50:.2} ms, p99 {p99:.2} ms",
        thousands(per_second(rows as u64, since.elapsed()) as u64),
        thousands(stats.wal.queue_rows),
        thousands(stats.memtable.tail_rows),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffle_stays_below_its_bound_and_moves() {
        let mut shuffle = Shuffle(1);
        let drawn: Vec<usize> = (0..100).map(|_| shuffle.below(10)).collect();
        assert!(drawn.iter().all(|row| *row < 10));
        assert!((0..10).all(|row| drawn.contains(&row)), "{drawn:?}");
        assert_eq!(shuffle.below(0), 0);
    }
}
