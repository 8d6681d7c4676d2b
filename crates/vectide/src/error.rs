//! One error type for every public call: what kind it is, what happened and what to do about it.
//!
//! The kind is coarse and is what a caller matches on; the message names path, offset, column and row; the source keeps
//! what the layer below said. Errors are cheap to clone because one failed log write answers every writer in its group.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is wrong; nothing was written. Correct it and call again.
    Invalid,
    /// The table, object or path does not exist.
    NotFound,
    /// The key, table or lock is already there, or an expected token no longer holds.
    Conflict,
    /// Another writer has taken the shard over. This handle can never acknowledge again: open anew.
    Fenced,
    /// The handle was closed, or an earlier failure poisoned it. Open anew.
    Closed,
    /// The store cannot serve now (full, unreachable, timed out). Try again later.
    Unavailable,
    /// Stored bytes are damaged. The message names object and offset.
    Corrupt,
    /// A token from beyond what its writer's log held when it was recovered: the write did not survive.
    Lost,
    /// The reader came too late: what its snapshot names has been collected. Take a new snapshot.
    Expired,
    /// A broken invariant inside Vectide. Please report it.
    Internal,
}

impl ErrorKind {
    /// The kind's name as it stands in messages, JSON and metrics: lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Closed => "closed",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error: a [kind](ErrorKind), a message that says what to do, and the cause.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// A result with Vectide's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        $(
            #[doc = concat!("An error of kind [`ErrorKind::", stringify!($kind), "`].")]
            pub fn $name(message: impl Into<String>) -> Self {
                Self::new(ErrorKind::$kind, message)
            }
        )*
    };
}

impl Error {
    /// An error of `kind` with a message for a person.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    constructors! {
        invalid => Invalid,
        not_found => NotFound,
        conflict => Conflict,
        fenced => Fenced,
        closed => Closed,
        unavailable => Unavailable,
        corrupt => Corrupt,
        lost => Lost,
        expired => Expired,
        internal => Internal,
    }

    /// The same error with the cause attached.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let mut inner = (*self.0).clone();
        inner.source = Some(Arc::from(source.into()));
        Self(Arc::new(inner))
    }

    /// The same error, its message led by what was being done: `"{doing}: {message}"`.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        let mut inner = (*self.0).clone();
        inner.message = format!("{doing}: {}", inner.message);
        Self(Arc::new(inner))
    }

    /// The same message under another kind.
    #[must_use]
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        let mut inner = (*self.0).clone();
        inner.kind = kind;
        Self(Arc::new(inner))
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without its causes.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// An I/O error on `path`: out of space and the like are `Unavailable`, a missing file is `NotFound`.
    pub fn io(doing: impl fmt::Display, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::Conflict,
            Io::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("{doing}: {source}")).with_source(source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        let mut source = self.source();
        while let Some(cause) = source {
            write!(f, "; caused by: {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn StdError + 'static))
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(source: arrow::error::ArrowError) -> Self {
        Self::internal(format!("arrow: {source}")).with_source(source)
    }
}

impl From<vectide_graph::GraphError> for Error {
    fn from(source: vectide_graph::GraphError) -> Self {
        Self::corrupt(format!("graph: {source}")).with_source(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_kept_and_shown() {
        let error = Error::io("writing wal/3", std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(format!("{error:?}").contains("caused by"), "{error:?}");
        let led = error.context("upsert into docs");
        assert!(led.message().starts_with("upsert into docs: writing wal/3"), "{led}");
    }
}
