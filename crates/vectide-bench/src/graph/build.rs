//! Building one graph: rows are appended in batches and inserted by some threads, and both are timed.

use crate::dataset::Dataset;
use crate::error::Outcome;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use vectide_graph::{Compiled, Graph, Isa, Params, Scratch, VectorBlock, VectorTable, unreachable};

/// One combination of what `bench graph` varies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) params: Params,
    pub(super) isa: Isa,
    /// Threads that insert.
    pub(super) threads: usize,
    /// Rows per append.
    pub(super) batch: usize,
}

impl Setting {
    pub(super) fn codes_name(&self) -> &'static str {
        self.params.codes.name()
    }

    pub(super) fn kernels_name(&self) -> &'static str {
        self.isa.name()
    }

    pub(super) fn label(&self) -> String {
        format!("{}, {} threads, batch {}", self.codes_name(), self.threads, self.batch)
    }

    pub(super) fn scratch(&self) -> Scratch {
        Scratch::with_isa(self.isa)
    }
}

/// Rows and the seconds that they took, by quarter of the build.
#[derive(Clone, Debug, Default)]
pub(super) struct Speed {
    rows: [f64; 4],
    wall: [f64; 4],
    /// Of the thread that took longest.
    cpu: [f64; 4],
}

impl Speed {
    pub(super) fn rows_per_s(&self) -> f64 {
        self.rows.iter().sum::<f64>() / self.wall.iter().sum::<f64>()
    }

    /// Rows a second of the processor time of the busiest thread: what a machine without neighbours would reach.
    pub(super) fn rows_per_cpu_s(&self) -> f64 {
        self.rows.iter().sum::<f64>() / self.cpu.iter().sum::<f64>()
    }

    pub(super) fn last_quarter_rows_per_cpu_s(&self) -> f64 {
        self.rows[3] / self.cpu[3]
    }
}

/// A graph and the rows that it was built over.
pub(super) struct Built {
    pub(super) table: VectorTable<f32>,
    pub(super) graph: Graph,
    pub(super) setting: Setting,
    pub(super) speed: Speed,
    /// Distances measured, by one inserting thread.
    evaluations: u64,
}

impl Built {
    /// Appends and inserts all base rows.
    pub(super) fn new(data: &Dataset, setting: &Setting) -> Outcome<Self> {
        let table = VectorTable::new(data.dim as u32, setting.params.metric)?;
        let graph = Graph::new(setting.params)?;
        let mut built = Self { table, graph, setting: setting.clone(), speed: Speed::default(), evaluations: 0 };
        let rows = data.rows();
        for quarter in 0..4 {
            built.extend(data, quarter * rows / 4, (quarter + 1) * rows / 4, quarter)?;
        }
        Ok(built)
    }

    /// Appends the rows from `first` to `end` in batches, each inserted before the next is appended.
    pub(super) fn extend(&mut self, data: &Dataset, first: usize, end: usize, quarter: usize) -> Outcome {
        let (started, cpu) = (Instant::now(), cpu_seconds());
        let mut inserted_cpu = 0.0f64;
        if self.setting.threads == 1 {
            let mut scratch = self.setting.scratch();
            for from in (first..end).step_by(self.setting.batch) {
                let to = (from + self.setting.batch).min(end);
                append(&self.table, data, from, to)?;
                for id in from..to {
                    f32::insert(&self.graph, &self.table, id as u32, &mut scratch)?;
                }
            }
            self.evaluations += scratch.evaluations();
        } else {
            for from in (first..end).step_by(self.setting.batch) {
                append(&self.table, data, from, (from + self.setting.batch).min(end))?;
            }
            inserted_cpu = self.insert_beside_each_other(first as u32, end as u32)?;
        }
        self.speed.rows[quarter] = (end - first) as f64;
        self.speed.wall[quarter] = started.elapsed().as_secs_f64();
        self.speed.cpu[quarter] = cpu_seconds() - cpu + inserted_cpu;
        Ok(())
    }

    /// Inserts rows with several threads; the processor seconds of the busiest.
    fn insert_beside_each_other(&self, first: u32, end: u32) -> Outcome<f64> {
        let next = AtomicU32::new(first);
        let insert = || -> Outcome<f64> {
            let mut scratch = self.setting.scratch();
            loop {
                // ORDERING: Relaxed: hands out ids; the rows were appended before the threads started.
                let id = next.fetch_add(1, Ordering::Relaxed);
                if id >= end {
                    return Ok(cpu_seconds());
                }
                f32::insert(&self.graph, &self.table, id, &mut scratch)?;
            }
        };
        let times: Vec<Outcome<f64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.setting.threads).map(|_| scope.spawn(insert)).collect();
            threads.into_iter().map(|thread| thread.join().expect("an insert does not panic")).collect()
        });
        times.into_iter().try_fold(0.0f64, |busiest, time| Ok(busiest.max(time?)))
    }

    /// Distances measured per insert; nothing with several threads.
    pub(super) fn evaluations_per_insert(&self) -> Option<f64> {
        (self.evaluations > 0).then(|| self.evaluations as f64 / f64::from(self.graph.len().max(1)))
    }

    /// Bytes per row beside the caller's vectors, by part.
    pub(super) fn bytes_per_row(&self) -> Value {
        let per_row = |bytes: usize| (bytes as f64 / f64::from(self.graph.len().max(1))).round();
        let codes = self.graph.code_bytes();
        json!({
            "graph": per_row(self.graph.memory_bytes()),
            "codes": per_row(codes),
            "links": per_row(self.graph.memory_bytes() - codes),
            "row_pointers": per_row(self.table.memory_bytes().bookkeeping),
        })
    }

    /// Nodes that no path from the entry point reaches on level 0.
    pub(super) fn unreachable(&self) -> usize {
        unreachable(&self.graph).len()
    }
}

impl Built {
    /// Appends all rows from `first` on without inserting them.
    pub(super) fn append_all(&self, data: &Dataset, first: usize) -> Outcome {
        append(&self.table, data, first, data.rows())
    }
}

/// Appends base rows as a memtable does: small batches are copied, large ones borrowed.
fn append(table: &VectorTable<f32>, data: &Dataset, from: usize, to: usize) -> Outcome {
    let rows: Vec<f32> = data.base[from * data.dim..to * data.dim].to_vec();
    let (dim, metric) = (data.dim as u32, table.metric());
    let block = match to - from < 256 {
        true => VectorBlock::copied(rows, dim, metric, None)?,
        false => VectorBlock::borrowed(rows, dim, metric, None)?,
    };
    table.append(block)?;
    Ok(())
}

/// Processor seconds of this thread.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
