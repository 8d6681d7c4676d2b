//! The arguments of `bench shard-writer`, and the settings that they ask for.

use super::rows::SchemaShape;
use super::store::StoreKind;
use crate::dataset::Source;
use crate::error::{Error, Outcome};
use serde_json::{Value, json};
use vectide::schema::{Codes, VectorOptions};
use vectide::{Durability, Metric, Options, WalOptions};

/// Rows a put, unless asked otherwise.
const BATCH: usize = 100;
/// A log's queue holds so many of its objects.
const OBJECTS_QUEUED: u64 = 8;
/// Bytes of batches that a durable writer leaves unacknowledged, and the least and most batches.
const OUTSTANDING_BYTES: f64 = 16e6;
const OUTSTANDING: std::ops::RangeInclusive<usize> = 4..=1_024;

/// Measure one shard's writer, log, memtable and graph together: Lance's shapes of rows
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Rows are upserts into a table keyed by `id`, written by one caller (or by --callers). A durable writer as fast as it goes
leaves 16 MB of batches unacknowledged (4 to 1,024 batches); any other waits for each put. One memtable holds all rows.
Rows are acknowledged when their put returns, and indexed when the graph holds every row and the log is drained.

Examples:
  vectide bench shard-writer --data packages-1024.parquet --batch 10,100,1000 --index-threads 2
  vectide bench shard-writer --index off --durability durable --batch 1000 --rows 100000 --dir /disk
  vectide bench shard-writer --durability durable --batch 10 --target-rows-per-s 5000 --rows 300000
  vectide bench shard-writer --store local,latency:30ms --puts-in-flight 8 --wal-buffer-mib 1 --index off
  vectide bench shard-writer --store latency:30ms --durability durable --callers 64 --rows 20000")]
pub struct Args {
    /// Columns of a row: key, page of a crawl and vector, or key and vector
    #[arg(long, value_enum, value_delimiter = ',', default_value = "vector-only")]
    pub schema_shape: Vec<SchemaShape>,
    /// Vectors: an Arrow or Parquet file (its first column of float lists), or `gen`; by default
    /// `../shared/data/packages-1024.parquet` where that is, else `gen`
    #[arg(long, value_name = "FILE|gen")]
    pub data: Option<Source>,
    /// Take only the first so many elements of each row; the dimension of generated ones
    #[arg(long)]
    pub dim: Option<usize>,
    /// Rows to write; a file with fewer is repeated with noise
    #[arg(long, default_value_t = 20_000)]
    pub rows: usize,
    /// Rows a put [default: 100; 1 with --callers]
    #[arg(long, value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Size at which the log is written although more is queued: of a log object. The queue holds eight of them, or two
    /// for each of --puts-in-flight
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    pub wal_buffer_mib: u64,
    /// Pace of the writer; 0 is as fast as it goes
    #[arg(long, default_value_t = 0.0)]
    pub target_rows_per_s: f64,
    /// Whether the vectors are indexed
    #[arg(long, value_enum, value_delimiter = ',', default_value = "on")]
    pub index: Vec<Switch>,
    /// Where the database is: local, memory, s3 (named by --dir), or latency:30ms, which is memory behind a delay
    #[arg(long, value_delimiter = ',', default_value = "local")]
    pub store: Vec<StoreKind>,
    /// What an acknowledgement means: durable, buffered (the log is written and not waited for), none (no log)
    #[arg(long, value_delimiter = ',', default_value = "buffered", value_parser = parse_durability)]
    pub durability: Vec<Durability>,
    /// Leave the table without closing it
    #[arg(long)]
    pub skip_close: bool,
    /// Threads that insert into the graph; 0 is one for each core but one
    #[arg(long, default_value_t = 0)]
    pub index_threads: usize,
    /// Links a node keeps on upper levels
    #[arg(long, default_value_t = 16)]
    pub m: u16,
    /// Beam width while building
    #[arg(long, default_value_t = 100)]
    pub ef_construction: u32,
    /// Compact codes: none, int8, int4, auto
    #[arg(long, default_value = "auto", value_parser = parse_codes)]
    pub codes: CodesArg,
    /// Log objects being put at once (object stores)
    #[arg(long, value_delimiter = ',', default_value = "4")]
    pub puts_in_flight: Vec<usize>,
    /// So many callers write single rows, each waiting for its acknowledgement before its next
    #[arg(long, default_value_t = 0)]
    pub callers: usize,
    /// Runs of each setting, in turn; medians are reported
    #[arg(long, default_value_t = 1)]
    pub repeat: usize,
    /// Folder (or s3://bucket/prefix) for the databases, each removed after its run; by default the current one
    #[arg(long, value_name = "DIR")]
    pub dir: Option<String>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Compact codes as asked for; `None` lets the engine choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodesArg(pub Option<Codes>);

fn parse_codes(text: &str) -> Result<CodesArg, String> {
    if text == "auto" {
        return Ok(CodesArg(None));
    }
    let names = || Codes::ALL.iter().map(|codes| codes.name()).collect::<Vec<_>>().join(", ");
    Codes::from_name(text)
        .map(|codes| CodesArg(Some(codes)))
        .ok_or_else(|| format!("it must be auto or one of {}", names()))
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "durable" => Ok(Durability::Durable),
        "buffered" => Ok(Durability::Buffered),
        "none" => Ok(Durability::None),
        _ => Err("it must be durable, buffered or none".to_owned()),
    }
}

pub(super) const fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::Durable => "durable",
        Durability::Buffered => "buffered",
        Durability::None => "none",
    }
}

/// One combination of what `bench shard-writer` varies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) shape: SchemaShape,
    pub(super) batch: usize,
    /// How the vectors are indexed, if they are.
    pub(super) index: Option<VectorOptions>,
    pub(super) store: StoreKind,
    pub(super) durability: Durability,
    pub(super) puts_in_flight: usize,
}

impl Setting {
    /// What is written, as in a ratio's name: `fineweb.batch100.index_on.buffered`.
    pub(super) fn work_name(&self) -> String {
        let index = if self.index.is_some() { "index_on" } else { "index_off" };
        format!("{}.batch{}.{index}.{}", self.shape.name(), self.batch, durability_name(self.durability))
    }

    /// Where it is written: `local`, `latency30ms`.
    pub(super) fn store_name(&self) -> String {
        self.store.to_string().replace(':', "")
    }

    /// All of it: `fineweb.batch100.index_on.buffered.latency30ms.puts4`. A window of PUTs is nothing that a local log has.
    pub(super) fn name(&self) -> String {
        let name = format!("{}.{}", self.work_name(), self.store_name());
        if self.store == StoreKind::Local { name } else { format!("{name}.puts{}", self.puts_in_flight) }
    }
}

impl Args {
    /// Every combination that was asked for.
    pub(super) fn settings(&self) -> Outcome<Vec<Setting>> {
        self.check()?;
        let index = VectorOptions {
            m: self.m,
            ef_construction: self.ef_construction,
            codes: self.codes.0,
            ..VectorOptions::new(Metric::Cosine)
        };
        let mut settings = Vec::new();
        for &shape in &self.schema_shape {
            for &batch in &self.batches() {
                for &switch in &self.index {
                    for &durability in &self.durability {
                        for &store in &self.store {
                            for &puts_in_flight in self.windows(store) {
                                let index = (switch == Switch::On).then(|| index.clone());
                                settings.push(Setting { shape, batch, index, store, durability, puts_in_flight });
                            }
                        }
                    }
                }
            }
        }
        Ok(settings)
    }

    fn check(&self) -> Outcome {
        if self.rows == 0 || self.repeat == 0 || self.wal_buffer_mib == 0 {
            return Err(Error::argument("--rows, --repeat and --wal-buffer-mib must be at least 1"));
        }
        if self.batch.contains(&0) || self.puts_in_flight.contains(&0) {
            return Err(Error::argument("--batch and --puts-in-flight must be at least 1"));
        }
        if self.callers > 0 && self.batch.iter().any(|&batch| batch != 1) {
            return Err(Error::argument("--callers write single rows: leave --batch out"));
        }
        if self.callers > 0 && self.target_rows_per_s > 0.0 {
            return Err(Error::argument("--callers are closed loops and have no pace: leave --target-rows-per-s out"));
        }
        if !self.target_rows_per_s.is_finite() || self.target_rows_per_s < 0.0 {
            return Err(Error::argument("--target-rows-per-s must be 0 or more"));
        }
        Ok(())
    }

    fn batches(&self) -> Vec<usize> {
        match (&self.batch[..], self.callers) {
            ([], 0) => vec![BATCH],
            ([], _) => vec![1],
            (asked, _) => asked.to_vec(),
        }
    }

    /// A local log has no window of PUTs: one setting is enough.
    fn windows(&self, store: StoreKind) -> &[usize] {
        let windows = &self.puts_in_flight[..];
        if store == StoreKind::Local { &windows[..1.min(windows.len())] } else { windows }
    }

    /// Batches that the writer leaves unacknowledged.
    pub(super) fn outstanding(&self, setting: &Setting, row_bytes: f64) -> usize {
        if setting.durability != Durability::Durable && self.target_rows_per_s == 0.0 {
            return 1;
        }
        let fitting = (OUTSTANDING_BYTES / (row_bytes * setting.batch as f64)) as usize;
        fitting.clamp(*OUTSTANDING.start(), *OUTSTANDING.end())
    }

    /// One memtable holds all rows, and memory is not what slows the writer.
    pub(super) fn options(&self, setting: &Setting, row_bytes: f64) -> Options {
        let object_bytes = self.wal_buffer_mib << 20;
        let queued = OBJECTS_QUEUED.max(2 * setting.puts_in_flight as u64);
        // A row's graph takes some hundred bytes and its codes up to its vector's.
        let memtable_bytes = (self.rows as f64 * (2.0 * row_bytes + 1_024.0)) as u64 + (256 << 20);
        Options {
            durability: setting.durability,
            memory_bytes: 2 * memtable_bytes,
            memtable_bytes,
            memtable_rows: u32::try_from(self.rows).unwrap_or(u32::MAX / 2).clamp(1_000_000, u32::MAX / 2),
            index_threads: self.index_threads,
            wal: WalOptions {
                object_bytes,
                queue_bytes: queued * object_bytes,
                puts_in_flight: setting.puts_in_flight,
                ..WalOptions::default()
            },
            ..Options::default()
        }
    }

    pub(super) fn describe(&self) -> Value {
        json!({
            "metric": "cosine",
            "m": self.m,
            "ef_construction": self.ef_construction,
            "codes": self.codes.0.map_or("auto", Codes::name),
            "index_threads": self.index_threads,
            "wal_buffer_mib": self.wal_buffer_mib,
            "target_rows_per_s": self.target_rows_per_s,
            "callers": self.callers,
            "skip_close": self.skip_close,
            "repeat": self.repeat,
        })
    }
}
