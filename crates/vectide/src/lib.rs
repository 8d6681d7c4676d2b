//! vectide
pub use arrow;
mod batch;
mod ends;
pub mod error;
pub mod ids;
mod keys;
mod memtable;
mod rows;
#[cfg(test)]
mod rows_conformance;
pub mod schema;
pub mod store;
mod vectors;
pub use error::{Error, ErrorKind, Result};
pub use keys::Keys;
pub use schema::{Metric, TableSchema};
