//! Where a command's words go: results to stdout, errors to stderr, as text or as JSON.
//!
//! Every command gets one [`Out`]. Invariant: with `--json`, stdout gets exactly one JSON object, and nothing at all if
//! the command fails before it has a result.

use crate::error::{Failure, Outcome};
use serde::Serialize;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    /// Text, or JSON with `--json`.
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether `--json` was given.
    pub(crate) const fn json(self) -> bool {
        self.json
    }

    /// Prints the result: the object with `--json`, else the text.
    pub(crate) fn result(self, object: &impl Serialize, text: impl fmt::Display) -> Outcome {
        if self.json { self.object(object) } else { self.line(text) }
    }

    /// Prints the result's object.
    pub(crate) fn object(self, object: &impl Serialize) -> Outcome {
        let mut line = serde_json::to_vec(object)?;
        line.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&line)?;
        Ok(stdout.flush()?)
    }

    /// Prints a line for a person; nothing with `--json`.
    pub(crate) fn line(self, text: impl fmt::Display) -> Outcome {
        if self.json {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{text}")?;
        Ok(stdout.flush()?)
    }

    /// Tells a person something that is not the result, on stderr; nothing with `--json`.
    pub(crate) fn note(self, text: impl fmt::Display) {
        if !self.json {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Prints a failure and gives its exit code.
    pub(crate) fn fail(self, failure: &Failure) -> ExitCode {
        if failure.is_closed_pipe() {
            return ExitCode::SUCCESS;
        }
        let text = if self.json {
            serde_json::to_string(failure).unwrap_or_else(|_| failure.message.clone())
        } else {
            let hint = failure.hint.as_ref().map(|hint| format!("\n  next: {hint}")).unwrap_or_default();
            format!("error: {}{hint}", failure.message)
        };
        // The exit code still tells if stderr is closed.
        let _ = writeln!(std::io::stderr(), "{text}");
        ExitCode::from(failure.exit)
    }
}
