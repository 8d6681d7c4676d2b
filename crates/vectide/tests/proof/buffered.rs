//! `durability = buffered` on the object log: what `wait_durable` said stays, and what a crash takes is a tail, told as lost.
//!
//! One writer notes every write and its token, waits for some of them, and is dropped at any moment, over a store that
//! delays, fails, answers late or not at all. The next one has to find a prefix of the writes, no shorter than what was
//! said to be durable, and `Lost` for every token behind it. In memory, and over real HTTP.

use crate::arena::{Arena, Writer};
use crate::s3::seed;
use crate::support::{Rng, all_rows, batch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use vectide::clock::SystemClock;
use vectide::store::RetryOptions;
use vectide::store::fault::FaultOptions;
use vectide::store::fault_fs::Phase;
use vectide::{Durability, ErrorKind, Token};
use vectide_s3_server::{Faults, Latency};

const KEYS: u64 = 40;

/// One write: these keys get `value`, or go.
#[derive(Clone, Debug)]
struct Op {
    keys: Vec<i64>,
    value: Option<String>,
}

impl Op {
    fn random(rng: &mut Rng, n: u64) -> Self {
        let mut keys: Vec<i64> = (0..1 + rng.below(6)).map(|_| rng.below(KEYS) as i64).collect();
        keys.sort_unstable();
        keys.dedup();
        Self { keys, value: (rng.below(5) > 0).then(|| n.to_string()) }
    }

    async fn run(&self, writer: &Writer) -> vectide::Result<Token> {
        let ack = match &self.value {
            Some(value) => {
                let rows: Vec<_> = self.keys.iter().map(|&key| (key, value.as_str(), [key as f32; 4])).collect();
                writer.table.upsert(batch(&rows)).await?
            }
            None => writer.table.delete(self.keys.clone()).await?,
        };
        Ok(ack.token)
    }

    fn apply(&self, rows: &mut BTreeMap<i64, String>) {
        for key in &self.keys {
            match &self.value {
                Some(value) => drop(rows.insert(*key, value.clone())),
                None => drop(rows.remove(key)),
            }
        }
    }
}

/// What a writer did before it was gone.
#[derive(Default)]
struct Life {
    /// Acknowledged writes in order.
    writes: Vec<(Op, Token)>,
    /// How many of them were said to be durable.
    durable: usize,
    /// The write that failed: it may be there or not.
    failed: Option<Op>,
    /// Nothing reaches the store any more, or no answer comes back.
    is_cut_off: bool,
}

/// Writes, waits, and looks at what it wrote, until it is dropped or meets an error.
async fn live(writer: &Writer, rng: &mut Rng, rows: &BTreeMap<i64, String>) -> Life {
    let (mut life, mut rows) = (Life::default(), rows.clone());
    let writes = rng.below(120);
    let cut_off_at = (rng.below(2) == 0).then(|| rng.below(writes + 1));
    for n in 0..writes {
        if cut_off_at == Some(n) {
            writer.way.stall(if rng.below(2) == 0 { Phase::Before } else { Phase::After });
            life.is_cut_off = true;
        }
        let op = Op::random(rng, n);
        match op.run(writer).await {
            Ok(token) => {
                op.apply(&mut rows);
                life.writes.push((op, token));
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed), "{error:?}");
                life.failed = Some(op);
                return life;
            }
        }
        match rng.below(12) {
            // Any earlier token: what is durable is a prefix.
            0 if !life.is_cut_off => {
                let at = rng.below(life.writes.len() as u64) as usize;
                if writer.table.wait_durable(life.writes[at].1).await.is_ok() {
                    life.durable = life.durable.max(at + 1);
                }
            }
            1 => tokio::time::sleep(Duration::from_millis(rng.below(8))).await,
            2 => assert_eq!(
                all_rows(&writer.table).await,
                rows.clone().into_iter().collect::<Vec<_>>(),
                "visible at once"
            ),
            _ => {}
        }
    }
    life
}

/// Opens until it succeeds.
async fn open(arena: &Arena, is_http: bool, rng: &mut Rng) -> Writer {
    loop {
        let opened = if is_http {
            let often = |rng: &mut Rng, most: u64| rng.below(most + 1) as u32;
            let faults = Faults {
                seed: rng.next(),
                latency: Latency { median_ms: rng.below(4) as f64, sigma: 1.0, max_ms: 100.0 },
                slow_down: often(rng, 10),
                drop_before: often(rng, 10),
                drop_after: often(rng, 10),
                late: often(rng, 10),
                late_ms: 100,
                hang_after: often(rng, 2),
                ..Faults::default()
            };
            let patience =
                RetryOptions { max_attempts: 3, base_delay_ms: 1, max_delay_ms: 8, ..RetryOptions::default() };
            arena.open_line(faults, 500, patience).await
        } else {
            let often = |rng: &mut Rng, most: u64| rng.below(most + 1) as u32;
            let faults = FaultOptions {
                seed: rng.next(),
                max_delay_us: rng.below(2_000),
                error_before: often(rng, 10),
                error_after: often(rng, 10),
                late: often(rng, 10),
                stale_list: often(rng, 100),
            };
            let retries = rng.below(3) > 0;
            arena.open(faults, retries, Arc::new(SystemClock::new())).await
        };
        match opened {
            Ok(writer) => return writer,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        }
    }
}

/// What the next writer finds has to be a prefix of what this one did; the rows from then on.
async fn settle(life: Life, next: &Writer, mut rows: BTreeMap<i64, String>) -> BTreeMap<i64, String> {
    let mut found = 0;
    for (at, (op, token)) in life.writes.iter().enumerate() {
        match next.table.wait_durable(*token).await {
            Ok(()) => {
                assert_eq!(at, found, "a write survived although one before it was lost");
                found = at + 1;
                op.apply(&mut rows);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
                assert!(at >= life.durable, "write {at} was said to be durable, with {} others", life.durable);
            }
        }
    }
    let there: BTreeMap<i64, String> = all_rows(&next.table).await.into_iter().collect();
    if let Some(op) = life.failed.filter(|_| found == life.writes.len() && there != rows) {
        op.apply(&mut rows);
    }
    assert_eq!(there, rows, "after {found} of {} writes", life.writes.len());
    rows
}

async fn lives(arena: &Arena, is_http: bool, rng: &mut Rng, count: usize) -> (usize, usize) {
    let (mut rows, mut writes, mut lost) = (BTreeMap::new(), 0, 0);
    let mut writer = open(arena, is_http, rng).await;
    for _ in 0..count {
        let life = live(&writer, rng, &rows).await;
        let is_closed = !life.is_cut_off && rng.below(3) == 0 && writer.table.close().await.is_ok();
        // The old writer is still there, as a process is that sleeps.
        let gone = std::mem::replace(&mut writer, open(arena, is_http, rng).await);
        gone.way.release();
        drop(gone);
        let last = life.writes.last().map(|(_, token)| *token);
        let count = life.writes.len();
        rows = settle(life, &writer, rows).await;
        writes += count;
        if let Some(token) = last
            && writer.table.wait_durable(token).await.is_err()
        {
            assert!(!is_closed, "a clean close loses nothing");
            lost += 1;
        }
    }
    (writes, lost)
}

fn run(is_http: bool, seeds: u64, count: usize) {
    let first = seed("VECTIDE_BUFFERED_SEED");
    let (mut writes, mut lost) = (0, 0);
    for seed in first..first + seeds {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let done = runtime.block_on(async {
            let arena = match is_http {
                true => Arena::over_http(Durability::Buffered).await,
                false => Arena::new(&format!("buffered-{seed}"), Durability::Buffered).await,
            };
            lives(&arena, is_http, &mut Rng(seed), count).await
        });
        writes += done.0;
        lost += done.1;
    }
    println!("{writes} writes; {lost} writers lost their last");
    assert!(writes > 0 && lost > 0, "{writes} writes, {lost} lost: the test shows nothing");
}

#[test]
fn what_was_said_to_be_durable_stays_and_the_rest_is_a_prefix() {
    run(false, 4, 12);
}

#[test]
fn what_was_said_to_be_durable_over_http_stays_and_the_rest_is_a_prefix() {
    run(true, 1, 12);
}
