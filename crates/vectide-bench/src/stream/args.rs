//! The arguments of `bench stream`, and the engine's options that follow from them.

use crate::dataset::Source;
use crate::error::{Error, Outcome};
use serde_json::{Value, json};
use std::path::PathBuf;
use vectide::{Invalidation, MergeOptions, Metric, Options};

/// Measure searches while rows stream in and segments are merged
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide bench stream --quick
  vectide bench stream --data packages-1024.parquet --rows 20000 --rate 200 --plot stream.svg
  vectide bench stream --invalidation dirty,touched --no-publish --load-delay-us 1000 --json out.json")]
pub struct Args {
    /// Vectors: an Arrow or Parquet file (its first column of float lists), or `gen`
    #[arg(long, default_value = "gen", value_name = "FILE|gen")]
    pub data: Source,
    /// Take only the first so many elements of each row; the dimension of generated ones
    #[arg(long)]
    pub dim: Option<usize>,
    /// Rows to load
    #[arg(long, default_value_t = 20_000)]
    pub rows: usize,
    /// Distance: l2, cosine or dot
    #[arg(long, default_value = "cosine", value_parser = parse_metric)]
    pub metric: Metric,
    /// Rows written a second
    #[arg(long, default_value_t = 500.0)]
    pub rate: f64,
    /// Rows a batch
    #[arg(long, default_value_t = 100)]
    pub batch: usize,
    /// Beam width of searches
    #[arg(long, default_value_t = 64)]
    pub ef_search: usize,
    /// Queries asked at each stage, for each k
    #[arg(long, default_value_t = 1_000)]
    pub queries: usize,
    /// Searches a second of the reader with a schedule
    #[arg(long, default_value_t = 200.0)]
    pub qps: f64,
    /// What a step takes out of the node cache: dirty, touched, all; one run for each
    #[arg(long, value_delimiter = ',', default_value = "dirty", value_parser = parse_policy)]
    pub invalidation: Vec<Policy>,
    /// Drop what is invalidated instead of publishing new rows
    #[arg(long)]
    pub no_publish: bool,
    /// Memory for rows of links, in bytes; 0 takes 110% of what all rows' links take
    #[arg(long, default_value_t = 0)]
    pub node_cache_bytes: u64,
    /// Time that a load of a row of links takes at least, as on a store that is far away
    #[arg(long, default_value_t = 0)]
    pub load_delay_us: u64,
    /// Rows of a memtable; 0 takes a thirtieth of all rows
    #[arg(long, default_value_t = 0)]
    pub memtable_rows: u32,
    /// Share of one core that merging may take, in per cent
    #[arg(long, default_value_t = 50)]
    pub core_pct: u32,
    /// A run of about a minute: 5,000 rows of 128 dimensions, 200 queries
    #[arg(long)]
    pub quick: bool,
    /// Draw the open loop's latency over time
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// A policy of the node cache, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub Invalidation);

impl Policy {
    pub(super) fn name(self) -> &'static str {
        match self.0 {
            Invalidation::Dirty => "dirty",
            Invalidation::Touched => "touched",
            Invalidation::All => "all",
        }
    }
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    match text {
        "dirty" => Ok(Policy(Invalidation::Dirty)),
        "touched" => Ok(Policy(Invalidation::Touched)),
        "all" => Ok(Policy(Invalidation::All)),
        other => Err(format!("`{other}` is none of dirty, touched, all")),
    }
}

fn parse_metric(text: &str) -> Result<Metric, String> {
    match text {
        "l2" => Ok(Metric::L2),
        "cosine" => Ok(Metric::Cosine),
        "dot" => Ok(Metric::Dot),
        other => Err(format!("`{other}` is none of l2, cosine, dot")),
    }
}

/// Bytes that a node's row takes in the cache: 32 links, their marks and the bookkeeping.
const ROW_BYTES: u64 = 4 * 34 + 120;

impl Args {
    /// The arguments with what `--quick` means, refused if they make no sense.
    pub(super) fn checked(&self) -> Outcome<Self> {
        let mut args = self.clone();
        if args.quick {
            (args.rows, args.queries, args.dim) = (args.rows.min(5_000), args.queries.min(200), args.dim.or(Some(128)));
        }
        if args.rows == 0 || args.batch == 0 || args.queries == 0 || args.ef_search == 0 || args.invalidation.is_empty()
        {
            return Err(Error::argument("--rows, --batch, --queries and --ef-search must be at least 1"));
        }
        if !(args.rate > 0.0 && args.qps > 0.0) {
            return Err(Error::argument("--rate and --qps must be above 0"));
        }
        Ok(args)
    }

    pub(super) fn options(&self, policy: Policy) -> Options {
        let memtable_rows = match self.memtable_rows {
            0 => (self.rows as u32 / 30).max(200),
            rows => rows,
        };
        let cache = match self.node_cache_bytes {
            0 => (self.rows as u64 * ROW_BYTES * 11 / 10).max(64 << 10),
            bytes => bytes,
        };
        let merge = MergeOptions {
            core_pct: self.core_pct,
            invalidation: policy.0,
            publish: !self.no_publish,
            load_delay_us: self.load_delay_us,
            node_cache_bytes: cache,
            ..MergeOptions::default()
        };
        Options { memtable_rows, ef_search: self.ef_search, merge, ..Options::default() }
    }

    pub(super) fn describe(&self) -> Value {
        let options = self.options(self.invalidation[0]);
        json!({
            "metric": format!("{:?}", self.metric).to_lowercase(),
            "rate": self.rate,
            "batch": self.batch,
            "ef_search": self.ef_search,
            "queries": self.queries,
            "qps": self.qps,
            "memtable_rows": options.memtable_rows,
            "merge": options.merge,
        })
    }
}
