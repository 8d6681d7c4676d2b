//! vectide
pub mod error;
pub mod ids;
pub mod manifest;
pub mod store;
pub use error::{Error, ErrorKind, Result};
