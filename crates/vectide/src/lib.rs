//! vectide
pub mod clock;
pub mod error;
pub mod failpoint;
pub mod ids;
pub mod manifest;
pub mod store;
pub mod wal;
pub use error::{Error, ErrorKind, Result};
