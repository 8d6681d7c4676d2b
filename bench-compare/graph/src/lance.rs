//! Lance's MemWAL graph, from the source of its crate (build.rs), with rows in Arrow batches as its memtable has them.

use super::{Rival, Task};
use arrow_array::{FixedSizeListArray, Float32Array};
use arrow_schema::{DataType, Field};
use lance_linalg::distance::DistanceType;
use std::sync::Arc;

#[allow(dead_code, unused_imports, clippy::all)]
mod graph {
    include!(concat!(env!("OUT_DIR"), "/graph.rs"));
}
#[allow(dead_code, unused_imports, clippy::all)]
mod storage {
    include!(concat!(env!("OUT_DIR"), "/storage.rs"));
}

use graph::{BuildParams, HnswGraph, SearchParams};
use storage::ArrowFixedSizeListVectorStore;

pub(super) struct Lance {
    graph: HnswGraph,
    store: Arc<ArrowFixedSizeListVectorStore>,
    dim: usize,
}

impl Lance {
    pub(super) fn new(task: &Task) -> Self {
        let rows = task.base.len() / task.dim;
        let metric = match task.metric.as_str() {
            "cosine" => DistanceType::Cosine,
            "l2" => DistanceType::L2,
            _ => DistanceType::Dot,
        };
        // A batch never spans a quarter's end, so there may be a few more of them.
        let batches = rows / task.batch + 8;
        let store = ArrowFixedSizeListVectorStore::try_new(rows, batches, task.dim, metric).expect("valid settings");
        let params = BuildParams::mem_wal_default().num_edges(task.m).ef_construction(task.ef_construction);
        let graph = HnswGraph::try_new(rows, params).expect("valid settings");
        Self { graph, store: Arc::new(store), dim: task.dim }
    }
}

impl Rival for Lance {
    fn insert(&mut self, base: &[f32], first: usize, end: usize) {
        let values = Float32Array::from(base[first * self.dim..end * self.dim].to_vec());
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let list = FixedSizeListArray::try_new(item, self.dim as i32, Arc::new(values), None).expect("whole rows");
        let ids = self.store.append_batch(Arc::new(list), first as u64).expect("room");
        self.graph.insert_batch_serial(ids, &self.store.snapshot()).expect("new ids");
    }

    fn search(&mut self, query: &[f32], k: usize, ef: usize) -> Vec<u32> {
        let found = self.graph.search(query, SearchParams::new(k, ef), &self.store.snapshot()).expect("a query");
        found.iter().map(|hit| hit.id).collect()
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.graph.resident_bytes())
    }
}
