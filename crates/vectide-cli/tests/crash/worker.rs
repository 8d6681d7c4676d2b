//! One run of `vectide torture-worker`: started, read line by line, killed.
//!
//! Invariant: a worker never outlives its handle.

use crate::rows::{Kind, Op};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than any run takes: a worker that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where workers keep their table.
pub struct Place {
    /// Where the log lies: in `files`, in `objects` that are files, or in objects behind HTTP (`s3`).
    pub layout: &'static str,
    /// A directory, or an `s3://` address.
    pub at: String,
    /// What else they have to know, as a user would tell it: in the environment.
    pub environment: Vec<(&'static str, String)>,
    /// The directory, if it is one: removed with its place.
    pub dir: Option<tempfile::TempDir>,
}

/// A running worker.
pub struct Worker {
    child: Child,
    lines: Receiver<String>,
    pub report: Report,
}

/// What a worker said.
#[derive(Debug, Default)]
pub struct Report {
    pub is_ready: bool,
    /// It ended in order.
    pub is_done: bool,
    pub acknowledged: Vec<Op>,
    /// Writes that began and were not acknowledged, by writer.
    pub under_way: BTreeMap<u64, Op>,
    /// Writes that failed: their outcome is unknown.
    pub failed: Vec<(Op, String)>,
    /// Rows of a check.
    pub rows: BTreeMap<i64, u64>,
    /// How often each point was passed.
    pub points: BTreeMap<String, u64>,
    /// What must not be.
    pub bad: Vec<String>,
}

impl Worker {
    /// Starts a worker; `mode` is `write` or `check`, `points` goes into `VECTIDE_FAILPOINTS`.
    pub fn start(mode: &str, place: &Place, points: &str, numbers: &[(&str, u64)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vectide"));
        command.args(["torture-worker", mode, &place.at, place.layout]).envs(place.environment.iter().cloned());
        command.args(numbers.iter().map(|(name, value)| format!("{name}={value}")));
        command.env("VECTIDE_FAILPOINTS", points).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (send, lines) = channel();
        std::thread::Builder::new()
            .name("worker-lines".into())
            .spawn(move || {
                let mut lines = out.split(b'\n');
                while let Some(Ok(line)) = lines.next() {
                    let _ = send.send(String::from_utf8_lossy(&line).into_owned());
                }
            })
            .expect("a thread");
        Self { child, lines, report: Report::default() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads what it says until `enough`, its end, or the end of `time`; whether it still runs.
    pub fn read(&mut self, time: Duration, enough: impl Fn(&Report) -> bool) -> bool {
        let until = Instant::now() + time.min(PATIENCE);
        while !enough(&self.report) {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.report.take(&line),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    /// SIGKILL, if it still runs; then everything that it had said.
    pub fn kill(mut self) -> Report {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while let Ok(line) = self.lines.recv() {
            self.report.take(&line);
        }
        std::mem::take(&mut self.report)
    }

    /// Waits for its end; one that hangs is killed and said to be bad.
    pub fn finish(mut self) -> Report {
        let runs = self.read(PATIENCE, |_| false);
        let mut report = self.kill();
        if runs {
            report.bad.push(format!("nothing happened for {PATIENCE:?}"));
        }
        report
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Report {
    fn take(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let fields: Vec<&str> = rest.split(' ').collect();
        match (what, &fields[..]) {
            ("ready", _) => self.is_ready = true,
            ("done", _) => self.is_done = true,
            ("i", [writer, version, kind, keys]) => {
                let keys = keys.split(',').map(parse).collect();
                let op = Op { kind: Kind::parse(kind).expect("a kind"), version: parse(version), keys };
                let earlier = self.under_way.insert(parse(writer), op);
                assert!(earlier.is_none(), "a writer does one thing at a time");
            }
            ("a", [writer, _]) => {
                self.acknowledged.push(self.under_way.remove(&parse(writer)).expect("announced"));
            }
            ("e", [writer, ..]) => {
                let op = self.under_way.remove(&parse(writer)).expect("announced");
                if rest.contains(" conflict ") {
                    self.bad.push(format!("{op:?} met a conflict: {rest}"));
                }
                self.failed.push((op, rest.to_owned()));
            }
            ("r", [key, version]) => drop(self.rows.insert(parse(key), parse(version))),
            ("p", [name, count]) => drop(self.points.insert((*name).to_owned(), parse(count))),
            ("bad", _) => self.bad.push(rest.to_owned()),
            // `f`, a flush that failed; `recovered`, `count`: for people.
            _ => {}
        }
    }

    /// All writes whose outcome a reopen has to show.
    pub fn undecided(&self) -> Vec<Op> {
        self.under_way.values().chain(self.failed.iter().map(|(op, _)| op)).cloned().collect()
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}
