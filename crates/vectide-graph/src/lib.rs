//! vectide-graph
mod beam;
mod distance;
mod entry;
mod error;
mod exact;
mod graph;
mod hit;
mod insert;
mod levels;
mod link_distance;
mod links;
mod neighbors;
mod params;
mod progress;
mod query;
mod repair;
mod scratch;
mod search;
mod segments;
mod shared;
mod space;
mod sync;
mod vectors;
mod visited;

pub use distance::{Element, Isa};
pub use error::GraphError;
pub use exact::{exact, exact_of, pairwise};
pub use graph::Graph;
pub use hit::Hit;
pub use params::{Metric, Params};
pub use query::Query;
pub use repair::{RepairReport, unreachable};
pub use scratch::Scratch;
pub use search::{GraphView, search};
pub use vectors::{
    ChunkedVectors, Nulls, VectorBlock, VectorRow, VectorTable, VectorTableBytes, Vectors,
};
