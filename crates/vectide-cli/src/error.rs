//! What a failed command says: a kind, a message, what to do next, and the exit code.
//!
//! Every command returns [`Outcome`]; `output` prints it. Engine errors keep their kind and message; the hint says which
//! command or flag helps. Invariant: a failure that a user can do something about has a hint.

use serde::Serialize;
use std::borrow::Cow;
use vectide::ErrorKind;

/// Exit code of errors.
pub(crate) const EXIT_ERROR: u8 = 1;
/// Exit code of wrong usage.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code of damaged data.
pub(crate) const EXIT_DAMAGE: u8 = 3;
/// Exit code after Ctrl-C, as shells have it.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// A command's result.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a command failed. Serializes as the object that `--json` prints on stderr.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failure {
    /// An [`ErrorKind`]'s name, or `usage`, `io`, `interrupted`, `check_failed`.
    pub(crate) kind: &'static str,
    /// What happened, naming file, column and row.
    pub(crate) message: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<Cow<'static, str>>,
    #[serde(skip)]
    pub(crate) exit: u8,
}

impl Failure {
    fn new(kind: &'static str, exit: u8, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, exit }
    }

    /// Wrong arguments.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", EXIT_USAGE, message)
    }

    /// Wrong input: a file, a row, a key.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid.as_str(), EXIT_ERROR, message)
    }

    /// Something that does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound.as_str(), EXIT_ERROR, message)
    }

    /// Stored bytes are damaged.
    pub(crate) fn damage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt.as_str(), EXIT_DAMAGE, message)
    }

    /// Ctrl-C came.
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self::new("interrupted", EXIT_INTERRUPTED, message)
    }

    /// A check of the command's own did not hold.
    pub(crate) fn check_failed(message: impl Into<String>) -> Self {
        Self::new("check_failed", EXIT_ERROR, message)
    }

    /// The same failure with what to do next, in place of the kind's own hint.
    pub(crate) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure, its message led by what it concerns: a file, a table.
    pub(crate) fn context(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Whether the engine, or this command, gave it `kind`.
    pub(crate) fn is(&self, kind: ErrorKind) -> bool {
        self.kind == kind.as_str()
    }

    /// Whether Ctrl-C is the reason.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.exit == EXIT_INTERRUPTED
    }

    /// Whether stdout was closed by its reader, as `| head` does: nothing to report.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.kind == CLOSED_PIPE
    }
}

const CLOSED_PIPE: &str = "closed_pipe";

impl From<vectide::Error> for Failure {
    fn from(error: vectide::Error) -> Self {
        let kind = error.kind();
        let exit = if kind == ErrorKind::Corrupt { EXIT_DAMAGE } else { EXIT_ERROR };
        Self { kind: kind.as_str(), message: error.message().to_owned(), hint: hint_for(kind).map(Cow::Borrowed), exit }
    }
}

fn hint_for(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::Invalid => "nothing was written; correct the input and run the command again",
        ErrorKind::NotFound => "`vectide tables URI` lists the tables; `vectide create` or `vectide ingest` makes one",
        ErrorKind::Fenced => "another writer has taken this table over; run the command again once it is done",
        ErrorKind::Closed => "an earlier failure closed the table; the log above says why. Run the command again",
        ErrorKind::Unavailable => {
            "check free space, permissions and the connection, then run the command again; ingest resumes where it stopped"
        }
        ErrorKind::Corrupt => "`vectide verify URI` names every damaged object; restore those from a copy",
        ErrorKind::Expired => "the writer has collected what this read stood on; run the command again",
        ErrorKind::Internal => "this is a bug in Vectide: please report it with the output of VECTIDE_LOG=debug",
        _ => return None,
    })
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::new(CLOSED_PIPE, 0, "the reader of stdout went away");
        }
        Self::new("io", EXIT_ERROR, error.to_string())
    }
}

impl From<arrow::error::ArrowError> for Failure {
    fn from(error: arrow::error::ArrowError) -> Self {
        match error {
            arrow::error::ArrowError::IoError(_, source) => Self::from(source),
            // Arrow wraps what a reader or writer of its own threw; take it apart again.
            arrow::error::ArrowError::ExternalError(source) => match source.downcast::<std::io::Error>() {
                Ok(io) => Self::from(*io),
                Err(other) => Self::invalid(other.to_string()),
            },
            other => Self::invalid(other.to_string()),
        }
    }
}

impl From<parquet::errors::ParquetError> for Failure {
    fn from(error: parquet::errors::ParquetError) -> Self {
        match error {
            parquet::errors::ParquetError::External(source) => match source.downcast::<std::io::Error>() {
                Ok(io) => Self::from(*io),
                Err(other) => Self::invalid(other.to_string()),
            },
            other => Self::invalid(other.to_string()),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() {
            return Self::from(std::io::Error::from(error));
        }
        Self::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_has_its_own_exit_code_and_every_engine_kind_says_what_to_do() {
        let damage = Failure::from(vectide::Error::corrupt("part rows.arrow of segment 3"));
        assert_eq!(damage.exit, EXIT_DAMAGE);
        for error in [vectide::Error::invalid("x"), vectide::Error::unavailable("x"), vectide::Error::fenced("x")] {
            let failure = Failure::from(error);
            assert!(failure.hint.is_some() && failure.exit == EXIT_ERROR, "{failure:?}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let io = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(Failure::from(io()).is_closed_pipe());
        assert!(Failure::from(arrow::error::ArrowError::ExternalError(Box::new(io()))).is_closed_pipe());
    }
}
