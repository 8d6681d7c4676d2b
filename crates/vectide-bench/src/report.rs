//! The one object that every bench gives: `{bench, machine, dataset, params, results, ratios}`.
//!
//! Ratio names are stable, ours over the rival's, bigger is better, and name what was compared.

use crate::error::{Error, Outcome};
use crate::figures::rounded;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// What a bench measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its name, as in `vectide bench NAME`.
    pub bench: String,
    /// Where it ran.
    pub machine: Machine,
    /// Which vectors, how many, of which dimension.
    pub dataset: Value,
    /// The settings of the run.
    pub params: Value,
    /// One object a measurement, each with `engine` and its recall where search is involved.
    pub results: Vec<Value>,
    /// Comparisons by name.
    pub ratios: BTreeMap<String, f64>,
}

/// The machine that a bench ran on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub cpu: String,
    /// Logical cores.
    pub cores: usize,
    /// Memory in bytes; 0 where the system does not say.
    pub memory_bytes: u64,
    /// The kernels that were chosen.
    pub kernels: String,
    /// `linux x86_64`.
    pub system: String,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kib = field(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernels: vectide_graph::Isa::detect().name().to_owned(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

impl Report {
    /// An empty one.
    #[must_use]
    pub fn new(bench: &str, dataset: Value, params: Value) -> Self {
        let (machine, results, ratios) = (Machine::here(), Vec::new(), BTreeMap::new());
        Self { bench: bench.to_owned(), machine, dataset, params, results, ratios }
    }

    /// Adds a comparison.
    pub fn ratio(&mut self, name: impl Into<String>, ratio: f64) {
        self.ratios.insert(name.into(), rounded(ratio));
    }

    /// Writes it as indented JSON.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(&self, path: &Path) -> Outcome {
        let mut text = serde_json::to_vec_pretty(self).expect("a report is plain data");
        text.push(b'\n');
        std::fs::write(path, text).map_err(|source| Error::Write { path: path.to_owned(), source })
    }
}

/// Lines of aligned columns, the first row being the heads.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_file() {
        let mut report = Report::new("graph", serde_json::json!({"name": "x"}), serde_json::json!({"m": 16}));
        report.results.push(serde_json::json!({"engine": "vectide"}));
        report.ratio("graph.x.insert.hnswlib", 7.123_456);
        let file = std::env::temp_dir().join(format!("vectide-report-{}.json", std::process::id()));
        report.write(&file).expect("written");
        let read: Report = serde_json::from_slice(&std::fs::read(&file).expect("there")).expect("a report");
        std::fs::remove_file(&file).expect("there");
        assert_eq!((read.bench.as_str(), read.results.len()), ("graph", 1));
        assert_eq!(read.ratios["graph.x.insert.hnswlib"], 7.1235);
        assert!(read.machine.cores >= 1 && !read.machine.kernels.is_empty());
        let missing = Path::new("/nowhere/at/all.json");
        assert!(report.write(missing).expect_err("no such folder").to_string().contains("/nowhere/at/all.json"));
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["name".to_owned(), "n".into()], vec!["a".into(), "1000".into()]];
        assert_eq!(table(&rows), "name     n\na     1000\n");
    }
}
