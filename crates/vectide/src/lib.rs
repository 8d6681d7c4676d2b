//! vectide
pub use arrow;
pub mod error;
pub mod ids;
pub mod schema;
pub mod store;
pub use error::{Error, ErrorKind, Result};
pub use schema::{Metric, TableSchema};
