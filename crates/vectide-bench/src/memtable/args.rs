//! The arguments of `bench memtable`, and the settings that they ask for.

use super::fill::Setting;
use crate::error::{Error, Outcome};
use serde_json::{Value, json};
use vectide::Visibility;

/// Measure the memtable at memory speed: RocksDB's fillrandom shape, without a log and without a vector column
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Rows have a 16-byte random key and a 100-byte value, in a table without a key column; a commit of an appender is a batch.
Each run fills two memtables of a new database, the first in untouched memory, the next in what is left of the first.

Examples:
  vectide bench memtable
  vectide bench memtable --threads 1,2 --batch 100 --keyed                 a table with a key column beside it
  vectide bench memtable --rows 10000000 --repeat 5 --json memtable.json")]
pub struct Args {
    /// Threads that write, each with an appender of its own
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    pub threads: Vec<usize>,
    /// Rows a commit
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000")]
    pub batch: Vec<usize>,
    /// When others see a batch: ordered (after all earlier ones), unordered (when it is linked)
    #[arg(long, value_delimiter = ',', default_value = "ordered,unordered", value_parser = parse_visibility)]
    pub visibility: Vec<Visibility>,
    /// Also measure a table whose first column is its key
    #[arg(long)]
    pub keyed: bool,
    /// Rows that all threads together write
    #[arg(long, default_value_t = 4_000_000)]
    pub rows: usize,
    /// Runs of each setting, in turn; medians are reported
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
}

fn parse_visibility(text: &str) -> Result<Visibility, String> {
    match text {
        "ordered" => Ok(Visibility::Ordered),
        "unordered" => Ok(Visibility::Unordered),
        _ => Err("it must be ordered or unordered".to_owned()),
    }
}

pub(super) const fn visibility_name(visibility: Visibility) -> &'static str {
    match visibility {
        Visibility::Ordered => "ordered",
        Visibility::Unordered => "unordered",
    }
}

impl Args {
    /// Every combination that was asked for.
    pub(super) fn settings(&self) -> Outcome<Vec<Setting>> {
        if self.repeat == 0 || self.threads.contains(&0) || self.batch.contains(&0) {
            return Err(Error::argument("--repeat, --threads and --batch must be at least 1"));
        }
        let most = self.threads.iter().max().copied().unwrap_or(0);
        if self.rows < most {
            return Err(Error::argument(format!("--rows {}: it must be at least one for each thread", self.rows)));
        }
        let mut settings = Vec::new();
        for keyed in [false, true].into_iter().take(1 + usize::from(self.keyed)) {
            for &batch in &self.batch {
                for &threads in &self.threads {
                    for &visibility in &self.visibility {
                        settings.push(Setting { keyed, batch, threads, visibility });
                    }
                }
            }
        }
        Ok(settings)
    }

    pub(super) fn describe(&self) -> Value {
        json!({ "durability": "none", "repeat": self.repeat })
    }
}
