//! The arguments of `bench graph`, and the settings that they ask for.

use super::build::Setting;
use crate::dataset::{Dataset, Source};
use crate::error::{Error, Outcome};
use serde_json::{Value, json};
use std::path::PathBuf;
use vectide_graph::{Codes, Isa, Metric, Params};

/// Measure the live graph alone: insert rate, recall against search time, bytes a row
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vectide bench graph                                             generated rows, 1024-d
  vectide bench graph --data data/glove-100d-25k.arrow --codes none,int8,auto --plot recall.svg
  vectide bench graph --data packages-1024.parquet --dim 384 --index-threads 1,2 --batch 1,1000 --json out.json")]
pub struct Args {
    /// Vectors: an Arrow or Parquet file (its first column of float lists), or `gen`
    #[arg(long, default_value = "gen", value_name = "FILE|gen")]
    pub data: Source,
    /// Take only the first so many elements of each row; the dimension of generated ones
    #[arg(long)]
    pub dim: Option<usize>,
    /// Take so many rows; a file with fewer is repeated with noise
    #[arg(long)]
    pub rows: Option<usize>,
    /// Distance: l2, cosine or dot
    #[arg(long, default_value = "cosine", value_parser = parse_metric)]
    pub metric: Metric,
    /// Links a node keeps on upper levels
    #[arg(long, default_value_t = 16)]
    pub m: u16,
    /// Beam width while building
    #[arg(long, default_value_t = 100)]
    pub ef_construction: u32,
    /// Compact codes: none, int8, int4, auto
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    pub codes: Vec<String>,
    /// Threads that insert
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub index_threads: Vec<usize>,
    /// Rows per append
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    pub batch: Vec<usize>,
    /// Beam widths to search with
    #[arg(long, value_delimiter = ',', default_value = "10,16,24,32,48,64,96,128,192,256,384")]
    pub ef_search: Vec<usize>,
    /// Nearest rows asked for
    #[arg(short, default_value_t = 10)]
    pub k: usize,
    /// Builds of each setting; medians are reported
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
    /// Kernels to force: scalar, avx2, avx512 or neon, of what this machine has
    #[arg(long)]
    pub kernels: Option<String>,
    /// Also search while another thread inserts at full speed
    #[arg(long)]
    pub while_inserting: bool,
    /// Draw recall against searches per second
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

fn parse_metric(text: &str) -> Result<Metric, String> {
    match text {
        "l2" => Ok(Metric::L2),
        "cosine" => Ok(Metric::Cosine),
        "dot" => Ok(Metric::Dot),
        other => Err(format!("`{other}` is none of l2, cosine, dot")),
    }
}

impl Args {
    /// Every combination that was asked for.
    pub(super) fn settings(&self, data: &Dataset) -> Outcome<Vec<Setting>> {
        if self.repeat == 0 || self.k == 0 || self.ef_search.is_empty() {
            return Err(Error::argument("--repeat, -k and --ef-search must be at least 1"));
        }
        if self.batch.contains(&0) || self.index_threads.contains(&0) {
            return Err(Error::argument("--batch and --index-threads must be at least 1"));
        }
        let isa = self.isa()?;
        let mut settings = Vec::new();
        for codes in &self.codes {
            let codes = self.codes(codes, data)?;
            let params = Params {
                m: self.m,
                ef_construction: self.ef_construction,
                codes,
                ..Params::new(data.dim as u32, self.metric)
            };
            params.validate()?;
            for &threads in &self.index_threads {
                for &batch in &self.batch {
                    settings.push(Setting { params, isa, threads, batch });
                }
            }
        }
        Ok(settings)
    }

    fn codes(&self, text: &str, data: &Dataset) -> Outcome<Codes> {
        if text == "auto" {
            return Ok(Codes::auto(data.dim as u32, self.metric));
        }
        Codes::from_name(text).ok_or_else(|| {
            let names: Vec<&str> = Codes::ALL.iter().map(|codes| codes.name()).collect();
            Error::argument(format!("--codes {text}: it must be auto or one of {}", names.join(", ")))
        })
    }

    fn isa(&self) -> Outcome<Isa> {
        let Some(name) = &self.kernels else { return Ok(Isa::detect()) };
        let available = Isa::available();
        let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
        let found = names.iter().position(|known| known == name).map(|at| available[at]);
        found.ok_or_else(|| Error::argument(format!("--kernels {name}: this machine has {}", names.join(", "))))
    }

    pub(super) fn describe(&self) -> Value {
        json!({
            "metric": format!("{:?}", self.metric).to_lowercase(),
            "m": self.m,
            "ef_construction": self.ef_construction,
            "k": self.k,
            "repeat": self.repeat,
        })
    }
}
