//! Data for the integration tests and the example: the shipped GloVe words, a
//! clustered generator, and a way to put rows into a table.
#![allow(dead_code, reason = "each target uses its own part")]

use arrow_array::cast::AsArray;
use arrow_array::types::Float16Type;
use std::path::Path;
use vectide_graph::{
    ChunkedVectors, Compiled, Graph, GraphError, Hit, MappedGraph, Metric, Query, Scratch, VectorBlock, VectorTable,
};

/// `[rows, dim] f32`, row-major.
pub struct Rows {
    pub dim: usize,
    pub values: Vec<f32>,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.values.len() / self.dim
    }

    pub fn row(&self, id: usize) -> &[f32] {
        &self.values[id * self.dim..][..self.dim]
    }

    /// The first `count` rows, and the others.
    pub fn split(mut self, count: usize) -> (Rows, Rows) {
        let rest = self.values.split_off(count * self.dim);
        let dim = self.dim;
        (self, Rows { dim, values: rest })
    }

    /// All rows in a table, copied in blocks of 500.
    pub fn table(&self, metric: Metric) -> VectorTable<f32> {
        let table = VectorTable::new(self.dim as u32, metric).expect("a dimension");
        for rows in self.values.chunks(500 * self.dim) {
            let block = VectorBlock::copied(rows.to_vec(), self.dim as u32, metric, None);
            table.append(block.expect("whole rows")).expect("room");
        }
        table
    }
}

/// The column `vec` of an Arrow file of f16 lists.
pub fn read_arrow(path: &Path) -> Rows {
    let file = std::fs::File::open(path).expect("the file is there");
    let reader = arrow_ipc::reader::FileReader::try_new(file, None).expect("an Arrow file");
    let mut rows = Rows { dim: 0, values: Vec::new() };
    for batch in reader {
        let batch = batch.expect("an intact batch");
        let list = batch.column_by_name("vec").expect("a column of vectors").as_fixed_size_list();
        rows.dim = list.value_length() as usize;
        let halves = list.values().as_primitive::<Float16Type>();
        rows.values.extend(halves.values().iter().map(|h| h.to_f32()));
    }
    rows
}

/// The 25,000 shipped GloVe words, 100-d, not normalised.
pub fn glove() -> Rows {
    read_arrow(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/glove-100d-25k.arrow")))
}

/// A small generator of its own, so that data replays (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Normal, by the sum of twelve uniforms.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// Rows around `clusters` centres; within a cluster they vary along `inner`
/// random directions, as embeddings do, plus a little noise in all.
pub fn clustered(rows: usize, dim: usize, clusters: usize, inner: usize, seed: u64) -> Rows {
    let mut random = Random(seed);
    let mut normals = |count: usize| (0..count).map(|_| random.normal()).collect::<Vec<f32>>();
    let centres = normals(clusters * dim);
    let directions = normals(inner * dim);
    let mut values = Vec::with_capacity(rows * dim);
    let mut random = Random(seed ^ 1);
    for _ in 0..rows {
        let cluster = random.next() as usize % clusters;
        let weights: Vec<f32> = (0..inner).map(|_| random.normal() / (inner as f32).sqrt()).collect();
        for at in 0..dim {
            let mut value = centres[cluster * dim + at] + 0.05 * random.unit();
            for (n, weight) in weights.iter().enumerate() {
                value += weight * directions[n * dim + at];
            }
            values.push(value);
        }
    }
    Rows { dim, values }
}

// What the library compiles for the vectors that it knows, so that no test has to
// compile a traversal again.

pub fn insert<E: Compiled>(
    graph: &Graph,
    table: &VectorTable<E>,
    id: u32,
    scratch: &mut Scratch,
) -> Result<bool, GraphError> {
    E::insert(graph, table, id, scratch)
}

pub fn search<E: Compiled>(
    graph: &Graph,
    table: &VectorTable<E>,
    query: &Query,
    k: usize,
    ef: usize,
    accept: &dyn Fn(u32) -> bool,
    scratch: &mut Scratch,
) -> Vec<Hit> {
    E::search_live((graph, table), query, k, ef, accept, scratch)
}

pub fn search_stored<E: Compiled>(
    graph: &MappedGraph,
    vectors: &ChunkedVectors<E>,
    query: &Query,
    k: usize,
    ef: usize,
    accept: &dyn Fn(u32) -> bool,
    scratch: &mut Scratch,
) -> Vec<Hit> {
    E::search_stored((graph, vectors), query, k, ef, accept, scratch)
}

pub fn exact<E: Compiled>(
    table: &VectorTable<E>,
    query: &Query,
    ids: std::ops::Range<u32>,
    accept: &dyn Fn(u32) -> bool,
    k: usize,
    scratch: &mut Scratch,
) -> Vec<Hit> {
    E::scan_live(table, query, ids, accept, k, scratch)
}
