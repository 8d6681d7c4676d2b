//! What can go wrong in a bench: wrong arguments, or data that is not there.

use std::path::PathBuf;

/// A bench's result.
pub type Outcome<T = ()> = Result<T, Error>;

/// Why a bench did not run. The text says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is out of range or contradicts another.
    #[error("{0}")]
    Argument(String),
    /// A data file is missing, is no Arrow or Parquet file, or has no vector column.
    #[error("{path}: {reason}")]
    Data {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A result could not be written.
    #[error("writing {path}: {source}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// The system's word on it.
        source: std::io::Error,
    },
    /// The engine failed.
    #[error("{0}")]
    Engine(String),
    /// The graph refused a setting or a row.
    #[error(transparent)]
    Graph(#[from] vectide_graph::GraphError),
}

impl Error {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::Argument(text.into())
    }

    pub(crate) fn data(path: &std::path::Path, reason: impl std::fmt::Display) -> Self {
        Self::Data { path: path.to_owned(), reason: reason.to_string() }
    }
}
