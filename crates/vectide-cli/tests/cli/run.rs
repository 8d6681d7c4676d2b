//! Runs `vectide` in a directory of its own, and makes files for it to read.

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Float32Type;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// A temporary directory: the database stands in `db`, files beside it.
pub(crate) struct World {
    dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vectide"));
        command.args(args).current_dir(self.dir.path()).env("XDG_STATE_HOME", self.path("state")).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(args, &self.command(args).output().expect("the binary runs"))
    }

    /// Runs a command that must succeed; its stdout.
    pub(crate) fn text(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{ran}");
        ran.stdout
    }

    /// Runs a command with `--json` that must succeed; the object it printed.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.text(&[args, &["--json"]].concat());
        assert_eq!(text.lines().count(), 1, "{args:?}: one object on one line, got {text}");
        serde_json::from_str(&text).expect("stdout is JSON")
    }

    /// Runs a command that must fail: the error object that `--json` prints, and the exit code.
    pub(crate) fn error(&self, args: &[&str]) -> (Value, i32) {
        let ran = self.run(&[args, &["--json"]].concat());
        assert!(ran.stdout.is_empty(), "{ran}");
        let object = serde_json::from_str(ran.stderr.trim()).unwrap_or_else(|e| panic!("{e}: {ran}"));
        (object, ran.code.unwrap_or(-1))
    }

    /// Starts a command and leaves it running.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { args: args.join(" "), child: Some(command.spawn().expect("the binary starts")) }
    }

    /// The rows of `db`'s table, as another process counts them; none while there is no table.
    pub(crate) fn count(&self, table: &str) -> u64 {
        let ran = self.run(&["count", "db", table, "--json"]);
        let object: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        object["rows"].as_u64().unwrap_or(0)
    }

    /// Writes rows 0.. as JSON lines: `id`, `name`, `vec` (2-d).
    pub(crate) fn json_lines(&self, name: &str, rows: u64) -> PathBuf {
        let path = self.path(name);
        let lines: String = (0..rows)
            .map(|id| {
                let [x, y] = vector(id);
                format!("{{\"id\":{id},\"name\":\"row {id}\",\"vec\":[{x},{y}]}}\n")
            })
            .collect();
        std::fs::write(&path, lines).expect("writes");
        path
    }
}

/// Row `id`'s vector: a point on the unit circle, no two alike.
pub(crate) fn vector(id: u64) -> [f32; 2] {
    let angle = 1.0 / (id as f32 + 1.0);
    [angle.cos(), angle.sin()]
}

/// Rows `ids` as a batch: `id` Int64, `name` Utf8, `vec` 2-d f32.
pub(crate) fn batch(ids: std::ops::Range<i64>) -> RecordBatch {
    let vectors = ids.clone().map(|id| Some(vector(id.unsigned_abs()).map(Some)));
    let names: StringArray = ids.clone().map(|id| Some(format!("row {id}"))).collect();
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef),
        ("name", Arc::new(names) as _),
        ("vec", Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 2)) as _),
    ])
    .expect("a batch")
}

/// Writes a Parquet file.
pub(crate) fn parquet(path: &Path, batch: &RecordBatch) {
    let file = std::fs::File::create(path).expect("creates");
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).expect("opens");
    writer.write(batch).expect("writes");
    writer.close().expect("closes");
}

/// What a command did.
pub(crate) struct Ran {
    args: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn of(args: &[&str], output: &Output) -> Self {
        Self::new(args.join(" "), output)
    }

    fn new(args: String, output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { args, code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { args, code, stdout, stderr } = self;
        write!(f, "vectide {args}: exit {code:?}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// A command that runs; killed when the test is over.
pub(crate) struct Running {
    args: String,
    child: Option<Child>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it is waited for once").id()
    }

    /// Whether it has not ended by itself.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.as_mut().expect("it is waited for once").try_wait().expect("can be asked").is_none()
    }

    /// SIGKILL: no chance to clean up.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().expect("it is waited for once");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    /// Ctrl-C, and what it says then.
    pub(crate) fn interrupt(mut self) -> Ran {
        let child = self.child.take().expect("it is waited for once");
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        Ran::new(std::mem::take(&mut self.args), &child.wait_with_output().expect("it ends"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
