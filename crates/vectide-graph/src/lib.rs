//! A concurrent HNSW graph (Malkov & Yashunin, 2018) over vectors that it does
//! not own: rows are inserted and searched at the same time, from any number of
//! threads.
//!
//! It does no I/O, spawns no thread and knows nothing of tables, logs or files.
//! Its caller owns the rows, decides who inserts when, and scans the rows that
//! are not in the graph yet ([`exact()`] from [`Graph::prefix`] on).
//!
//! - **Nothing is preallocated.** Graph and table grow in segments of 1,024 rows
//!   that never move; readers take no lock.
//! - **No row is lost.** Every node is attached to the graph by links that no
//!   pruning drops (see `insert.rs`), so all are reachable at any moment, however
//!   the data lies.
//! - **Filters act inside the traversal**: rows that are not accepted are walked
//!   through and take no place among the results ([`search()`]).
//! - **One traversal** serves live graphs ([`Graph`]) and stored ones
//!   ([`MappedGraph`]), whose bytes are checked as they are walked.
//!
//! ```
//! use vectide_graph::{Graph, Metric, Params, Query, Scratch, VectorBlock, VectorTable, search};
//!
//! let table = VectorTable::new(2, Metric::L2)?;
//! table.append(VectorBlock::copied(vec![0.0f32, 0.0, 3.0, 4.0, 6.0, 8.0], 2, Metric::L2, None)?)?;
//!
//! let graph = Graph::new(Params::new(2, Metric::L2))?;
//! let mut scratch = Scratch::new();
//! for id in 0..3 {
//!     graph.insert(&table, id, &mut scratch)?;
//! }
//!
//! let query = Query::new(Metric::L2, 2, &[3.0, 3.0])?;
//! let not_the_first = |id| id != 0;
//! let hits = search(&graph, &table, &query, 2, 64, &not_the_first, &mut scratch);
//! assert_eq!((hits[0].id, hits[0].distance), (1, 1.0));
//! assert_eq!((hits[1].id, hits[1].distance), (2, 34.0));
//! # Ok::<(), vectide_graph::GraphError>(())
//! ```

// The parts, in the order in which a row meets them.
mod error;
mod sync;

// Distances and their kernels.
mod distance;
// Distance and id in one order.
mod hit;
// Settings, metrics and levels.
mod params;

// A checked query.
mod query;
// Lists that grow under their readers.
mod segments;
// Memory of any owner.
mod shared;
// Compact codes of rows.
mod codes;
// What distances are measured with.
mod space;
// Where rows' vectors are.
mod vectors;

// Length and entry point.
mod entry;
// The live graph.
mod graph;
// Nodes' levels and upper rows.
mod levels;
// Distances in 16 bits.
mod link_distance;
// Rows of links, their locks and their readers.
mod links;
// Which ids are done.
mod progress;

// Candidates of a traversal.
mod beam;
// Exact scans.
mod exact;
// Adding a node.
mod insert;
// Selection and pruning.
mod neighbors;
// A thread's buffers.
mod scratch;
// The traversal.
mod search;
// How far codes are off.
mod spread;
// Nodes that a traversal has seen.
mod visited;

// Writing a graph out.
mod freeze;
// A stored graph.
mod mapped;
// Reachability.
mod repair;

// One graph over many stored ones.
mod base;

// Entry points compiled here.
mod compiled;

// What the fuzzer calls.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(all(test, loom))]
mod loom_tests;

pub use base::{BaseChanges, BaseGraph, BaseLinks, BaseRows, BaseSeed, BaseWriter, NoLinks, row_words, walk_order};
pub use codes::Codes;
pub use compiled::Compiled;
pub use distance::{Element, Isa};
pub use error::GraphError;
pub use exact::{exact, exact_of, pairwise};
pub use freeze::{Frozen, FrozenHeader, HEADER_BYTES, Section};
pub use graph::Graph;
pub use hit::Hit;
pub use mapped::{GraphSections, MappedGraph};
pub use params::{Metric, Params};
pub use query::Query;
pub use repair::{RepairReport, unreachable};
pub use scratch::Scratch;
pub use search::{GraphView, search};
pub use vectors::{ChunkedVectors, Nulls, VectorBlock, VectorRow, VectorTable, VectorTableBytes, Vectors};
