//! vectide
pub use arrow;
mod batch;
mod ends;
pub mod error;
pub mod ids;
mod keys;
mod rows;
pub mod schema;
pub mod store;
pub use error::{Error, ErrorKind, Result};
pub use keys::Keys;
pub use schema::{Metric, TableSchema};
