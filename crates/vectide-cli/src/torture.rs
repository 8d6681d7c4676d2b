//! `vectide torture-worker`: the process that the crash harness kills. Only in builds with the feature `testing`.
//!
//! In: a directory or an `s3://` address, a layout, a seed, and fail points in `VECTIDE_FAILPOINTS`. Out, one line a fact on stdout, each in one
//! write, so that a pipe keeps them when the process is killed: `i` before a write begins, `a` once it was acknowledged, `e`
//! if it failed. `main` hands over before the command line is parsed. Invariant: a write is announced before the engine sees
//! it, and acknowledged here only after the engine acknowledged it.

mod rows;

use rows::{Op, Rng, TABLE};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use vectide::store::fault_fs::FaultFs;
use vectide::store::objects_only::ObjectsOnly;
use vectide::store::{DiskFs, LocalStore, Store};
use vectide::{ErrorKind, Table, Vectide, failpoint};

/// What the worker was asked to do.
struct Task {
    is_check: bool,
    /// A directory, or an address.
    at: String,
    layout: Layout,
    seed: u64,
    /// Versions of this run's writes begin here.
    version: u64,
    writers: u64,
    /// Ends in order after so long, and says which points were passed.
    stop_after_ms: Option<u64>,
}

/// Where the log lies.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Files,
    /// In objects that are files.
    Objects,
    /// In a bucket; how to get there is in the environment, as for any command.
    S3,
}

/// Runs the worker if the command line asks for it.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().map(String::as_str) != Some("torture-worker") {
        return None;
    }
    let done = Task::parse(&args[1..]).and_then(|task| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|e| e.to_string())?;
        runtime.block_on(task.run())
    });
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            say(&format!("bad {}", reason.replace('\n', " ")));
            ExitCode::FAILURE
        }
    })
}

/// One line in one write.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader may be gone; then nobody needs to know.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

impl Task {
    fn parse(args: &[String]) -> Result<Self, String> {
        let usage = "expected: torture-worker write|check DIR|URI files|objects|s3 [name=number]...";
        let [mode, at, layout, rest @ ..] = args else { return Err(usage.into()) };
        let number =
            |name: &str| rest.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
        Ok(Self {
            is_check: mode == "check",
            at: at.clone(),
            layout: match layout.as_str() {
                "files" => Layout::Files,
                "objects" => Layout::Objects,
                "s3" => Layout::S3,
                _ => return Err(usage.into()),
            },
            seed: number("seed").unwrap_or(0),
            version: number("version").unwrap_or(1),
            writers: number("writers").unwrap_or(4),
            stop_after_ms: number("stop_after_ms"),
        })
    }

    async fn run(self) -> Result<(), String> {
        let (db, table) = self.open().await.map_err(|e| format!("open: {e:?}"))?;
        if self.is_check {
            self.check(&table).await?;
        } else {
            self.write(&table).await?;
        }
        db.close().await.map_err(|e| format!("close: {e:?}"))?;
        drop((db, table));
        for (name, count) in failpoint::counts() {
            say(&format!("p {name} {count}"));
        }
        say("done");
        Ok(())
    }

    /// Opens the database; a directory with a fail point around every file call.
    async fn open(&self) -> vectide::Result<(Vectide, Table)> {
        let mut builder = Vectide::builder(self.at.as_str()).options(rows::options());
        if self.layout != Layout::S3 {
            let fs = FaultFs::new(DiskFs::shared());
            fs.set_hook(Arc::new(|point| failpoint::pass(&format!("{point}:{}", class(point.path)))));
            let store: Arc<dyn Store> = Arc::new(LocalStore::open(fs.shared(), Path::new(&self.at))?);
            builder = builder.store(if self.layout == Layout::Objects { Arc::new(ObjectsOnly(store)) } else { store });
        }
        let db = builder.open().await?;
        let table = match db.open_table(TABLE).await {
            Err(error) if error.kind() == ErrorKind::NotFound => db.create_table(TABLE, rows::schema()).await?,
            other => other?,
        };
        Ok((db, table))
    }

    /// Says what is there, after looking at it in every way.
    async fn check(&self, table: &Table) -> Result<(), String> {
        let found = rows::audit(table, &mut Rng(self.seed)).await?;
        for (key, version) in &found {
            say(&format!("r {key} {version}"));
        }
        let recovery = table.stats().recovery;
        say(&format!("recovered {} {} {}", recovery.rows, recovery.flushes, recovery.ms));
        say(&format!("count {}", found.len()));
        Ok(())
    }

    /// Writes, flushes and searches until killed, or until `stop_after_ms`.
    async fn write(&self, table: &Table) -> Result<(), String> {
        let found = rows::rows(table).await?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        say("ready");
        for writer in 0..self.writers {
            let first = writer as i64 * rows::KEYS_STRIDE;
            let present = found.range(first..first + rows::KEYS_STRIDE).map(|(&key, _)| key).collect();
            let rng = Rng(self.seed.wrapping_mul(31).wrapping_add(writer));
            let versions = (self.version + writer..).step_by(self.writers as usize);
            tasks.spawn(write_on(table.clone(), writer, versions, rng, present, stopped.clone()));
        }
        tasks.spawn(flush_on(table.clone(), Rng(self.seed ^ 0xf1), stopped.clone()));
        tasks.spawn(search_on(table.clone(), Rng(self.seed ^ 0x5e), stopped));
        if let Some(ms) = self.stop_after_ms {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            stop.send_replace(true);
        }
        while tasks.join_next().await.is_some() {}
        match self.stop_after_ms {
            Some(_) => table.flush().await.map_err(|e| format!("flush: {e:?}")),
            // Every writer met an error: nothing more happens until the harness kills.
            None => std::future::pending().await,
        }
    }
}

async fn write_on(
    table: Table,
    writer: u64,
    versions: impl Iterator<Item = u64>,
    mut rng: Rng,
    mut present: BTreeSet<i64>,
    stopped: watch::Receiver<bool>,
) {
    for version in versions {
        if *stopped.borrow() {
            return;
        }
        let op = Op::random(&mut rng, writer, version, &present);
        let keys: Vec<String> = op.keys.iter().map(i64::to_string).collect();
        say(&format!("i {writer} {version} {} {}", op.kind.as_str(), keys.join(",")));
        match op.run(&table).await {
            Ok(()) => say(&format!("a {writer} {version}")),
            Err(error) => return say(&format!("e {writer} {version} {} {error}", error.kind())),
        }
        op.note(&mut present);
    }
}

async fn flush_on(table: Table, mut rng: Rng, stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        tokio::time::sleep(Duration::from_millis(2 + rng.below(40))).await;
        if let Err(error) = table.flush().await {
            say(&format!("f {error}"));
        }
    }
}

async fn search_on(table: Table, mut rng: Rng, stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let query = rows::vector(rng.below(1_000) as i64, rng.next());
        let hits = match table.search(&query).k(10).await {
            Ok(hits) => hits,
            Err(error) => return say(&format!("bad search: {error:?}")),
        };
        match rows::read(&hits) {
            Ok(hits) if hits.iter().map(|hit| hit.0).collect::<BTreeSet<_>>().len() == hits.len() => {}
            Ok(hits) => say(&format!("bad search: a key came twice in {hits:?}")),
            Err(reason) => say(&format!("bad search: {reason}")),
        }
        tokio::time::sleep(Duration::from_millis(rng.below(5))).await;
    }
}

/// What a path of the database is, so that a point's name says on what it lies.
fn class(path: &Path) -> &'static str {
    let text = path.to_string_lossy();
    let is_dir = path.extension().is_none() && !text.ends_with("LOCK") && !text.ends_with("durable");
    let parts: [(&str, &str, &str); 5] = [
        ("/segments", "segment", "segment-dir"),
        ("/0/base", "links", "links-dir"),
        ("/wal", "log", "log-dir"),
        ("/manifest", "manifest", "manifest-dir"),
        ("/catalog", "catalog", "catalog-dir"),
    ];
    if text.ends_with("/durable") {
        return "mark";
    }
    if text.ends_with("/LOCK") {
        return "lock";
    }
    let part = parts.into_iter().find(|(folder, _, _)| text.contains(folder));
    part.map_or("root", |(_, file, dir)| if is_dir { dir } else { file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_by_its_place() {
        let told = |path: &str| class(Path::new(path));
        assert_eq!(told("/d/tables/ab/0/wal/00000000000000000001/00000000000000000000.log"), "log");
        assert_eq!(told("/d/tables/ab/0/wal/00000000000000000001"), "log-dir");
        assert_eq!(told("/d/tables/ab/0/wal/durable"), "mark");
        assert_eq!(told("/d/tables/ab/0/segments/1-1/.rows.arrow.7-1.tmp"), "segment");
        assert_eq!(told("/d/tables/ab/0/manifest/00000000000000000001.json"), "manifest");
        assert_eq!(told("/d/tables/ab/0/base/2-14.arrow"), "links");
        assert_eq!(told("/d/tables/ab/0/base"), "links-dir");
        assert_eq!(told("/d/LOCK"), "lock");
        assert_eq!(told("/d"), "root");
    }

    #[test]
    fn a_write_survives_its_line() {
        use rows::Kind;
        for kind in [Kind::Upsert, Kind::Insert, Kind::Delete] {
            assert_eq!(Kind::parse(kind.as_str()), Some(kind));
        }
    }
}
