//! What the log's tests share: a small table, a listener that remembers, a log and a replay over any file layer.

use super::fence::take_over;
use super::frame::{EncodedBatch, FrameKind, LogSchema};
use super::index::{LOCAL_GRAIN, OBJECT_GRAIN, SeqIndex};
use super::local::{LocalLog, LocalLogOptions};
use super::object::{ObjectLog, ObjectLogOptions};
use super::replay::{Recovered, Replay, ReplayBatch, ReplayPlan};
use super::{Admission, EpochEnd, Log, LogListener};
use crate::clock::SystemClock;
use crate::error::{Error, Result};
use crate::ids::{Epoch, LogPosition, PubNo, Seq, ShardId};
use crate::store::paths::ShardPaths;
use crate::store::{DirEntry, File, Fs, LocalDir, LockGuard, ObjectBackend, Store};
use arrow::array::{Array, ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use object_store::memory::InMemory;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

pub(super) const WAL_DIR: &str = "/db/t/0/wal";
pub(super) const DIM: usize = 4;

pub(super) fn table_schema() -> SchemaRef {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("vec", DataType::FixedSizeList(item, DIM as i32), true),
    ]))
}

pub(super) fn log_schema() -> Arc<LogSchema> {
    let put = table_schema();
    let delete = Arc::new(Schema::new(vec![put.field(0).clone()]));
    LogSchema::new(put, delete).expect("no dictionaries")
}

/// Rows with ids from `first` on; name and vector follow from the id.
pub(super) fn rows(schema: &SchemaRef, first: i64, count: usize) -> RecordBatch {
    let ids: Vec<i64> = (first..first + count as i64).collect();
    let names: StringArray = ids.iter().map(|id| (id % 3 != 0).then(|| format!("row {id}"))).collect();
    let values: Float32Array = ids.iter().flat_map(|&id| (0..DIM).map(move |d| Some(id as f32 + d as f32))).collect();
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, DIM as i32, Arc::new(values), None);
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(ids)), Arc::new(names), Arc::new(vectors)];
    RecordBatch::try_new(Arc::clone(schema), columns).expect("columns of the schema")
}

pub(super) fn put(schema: &Arc<LogSchema>, first: i64, count: usize) -> Arc<EncodedBatch> {
    let batch = rows(schema.of(FrameKind::Put), first, count);
    Arc::new(EncodedBatch::encode(schema, FrameKind::Put, &batch, None).expect("encodes"))
}

/// The ids in a replayed batch.
pub(super) fn ids(batch: &ReplayBatch) -> Vec<i64> {
    let column = |part: &RecordBatch| {
        let ids = part.column(0).as_any().downcast_ref::<Int64Array>().expect("ids");
        ids.values().to_vec()
    };
    batch.parts.iter().flat_map(column).collect()
}

/// Remembers what the log said.
#[derive(Debug, Default)]
pub(super) struct Heard {
    state: Mutex<(PubNo, Option<Error>)>,
    changed: Notify,
}

impl LogListener for Heard {
    fn durable(&self, upto: PubNo) {
        let mut state = self.state.lock();
        assert!(upto > state.0, "durability only goes forward");
        assert!(state.1.is_none(), "nothing follows a failure");
        state.0 = upto;
        drop(state);
        self.changed.notify_waiters();
    }

    fn failed(&self, error: Error) {
        assert!(self.state.lock().1.replace(error).is_none(), "a log fails once");
        self.changed.notify_waiters();
    }
}

impl Heard {
    pub(super) fn upto(&self) -> PubNo {
        self.state.lock().0
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.state.lock().1.clone()
    }

    pub(super) async fn wait(&self, publication: PubNo) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.lock();
                if state.0 >= publication {
                    return Ok(());
                }
                if let Some(error) = &state.1 {
                    return Err(error.clone());
                }
            }
            changed.await;
        }
    }
}

/// A log with the numbering that a table's publication section would do.
pub(super) struct Writer {
    pub(super) log: Box<dyn Log>,
    pub(super) heard: Arc<Heard>,
    pub(super) schema: Arc<LogSchema>,
    next: Mutex<(Seq, PubNo)>,
}

impl Writer {
    pub(super) fn new(log: Box<dyn Log>, heard: Arc<Heard>, next_seq: Seq, next_publication: PubNo) -> Self {
        Self { log, heard, schema: log_schema(), next: Mutex::new((next_seq, next_publication)) }
    }

    pub(super) fn local(fs: Arc<dyn Fs>, epoch: u64, next_seq: u64, options: LocalLogOptions) -> Self {
        Self::local_at(fs, PathBuf::from(WAL_DIR), epoch, next_seq, options)
    }

    pub(super) fn local_at(
        fs: Arc<dyn Fs>,
        wal_dir: PathBuf,
        epoch: u64,
        next_seq: u64,
        options: LocalLogOptions,
    ) -> Self {
        let heard = Arc::new(Heard::default());
        let index = SeqIndex::new(LOCAL_GRAIN, Seq(next_seq), LogPosition::default());
        let log = LocalLog::open(
            fs,
            wal_dir,
            Epoch(epoch),
            log_schema(),
            index,
            options,
            Arc::new(SystemClock::new()),
            Arc::clone(&heard) as _,
        );
        Self::new(Box::new(log.expect("opens")), heard, Seq(next_seq), PubNo(next_seq))
    }

    pub(super) fn objects(store: &Arc<dyn Store>, epoch: u64, next_seq: u64, options: ObjectLogOptions) -> Self {
        let heard = Arc::new(Heard::default());
        let index = SeqIndex::new(OBJECT_GRAIN, Seq(next_seq), LogPosition::default());
        let log = ObjectLog::open(
            Arc::clone(store),
            paths(),
            Epoch(epoch),
            log_schema(),
            index,
            options,
            Arc::new(SystemClock::new()),
            Arc::clone(&heard) as _,
        );
        Self::new(Box::new(log.expect("opens")), heard, Seq(next_seq), PubNo(next_seq))
    }

    /// Appends without waiting; the publication number to wait for.
    pub(super) async fn append(&self, batch: Arc<EncodedBatch>, admission: Admission) -> Result<PubNo> {
        let permit = self.log.admit(batch.rows(), batch.bytes(), admission).await?;
        let mut next = self.next.lock();
        let (seq, publication) = *next;
        *next = (seq.plus(batch.rows()), publication.plus(1));
        self.log.enqueue(permit, batch, seq, publication);
        Ok(publication)
    }

    /// Puts rows whose ids are their seqs and waits until they are durable.
    pub(super) async fn put(&self, count: usize) -> Result<()> {
        let publication = self.put_later(count).await?;
        self.heard.wait(publication).await
    }

    /// The same without waiting; the publication number to wait for.
    pub(super) async fn put_later(&self, count: usize) -> Result<PubNo> {
        let first = self.next.lock().0.0 as i64;
        self.append(put(&self.schema, first, count), Admission::Write).await
    }
}

pub(super) fn plan(from: LogPosition, seq: u64, current: u64, closed: Vec<EpochEnd>) -> ReplayPlan {
    ReplayPlan { from, seq: Seq(seq), current: Epoch(current), closed }
}

/// Everything since the start of epoch 1.
pub(super) fn from_start(current: u64) -> ReplayPlan {
    plan(LogPosition { epoch: Epoch(1), at: 0 }, 1, current, Vec::new())
}

pub(super) fn paths() -> ShardPaths {
    ShardPaths::new(&"0".repeat(32), ShardId(0)).expect("a table id")
}

pub(super) fn memory() -> Arc<dyn Store> {
    Arc::new(ObjectBackend::new(Arc::new(InMemory::new())))
}

/// What the writer of epoch `current` does first: shut the earlier ones out, then replay.
pub(super) async fn recover_objects(store: &Arc<dyn Store>, plan: ReplayPlan) -> Result<(Vec<ReplayBatch>, Recovered)> {
    let closed = take_over(store, &paths(), plan.from, &plan.closed, plan.current).await?;
    drain(Replay::objects(Arc::clone(store), paths(), log_schema(), ReplayPlan { closed, ..plan })).await
}

pub(super) async fn drain(mut replay: Replay) -> Result<(Vec<ReplayBatch>, Recovered)> {
    let mut batches = Vec::new();
    while let Some(batch) = replay.next().await? {
        batches.push(batch);
    }
    Ok((batches, replay.finish()?))
}

pub(super) async fn replay_local(fs: Arc<dyn Fs>, plan: ReplayPlan) -> Result<(Vec<ReplayBatch>, Recovered)> {
    let dir = LocalDir { root: PathBuf::from("/db"), fs };
    drain(Replay::local(dir, PathBuf::from(WAL_DIR), log_schema(), plan)).await
}

/// What a [`SkipFs`] was told to leave out: the path, and how many syncs of it came before.
pub(super) type Skip = fn(&Path, u64) -> bool;

/// A file layer that leaves out single syncs of files: which one, its `skip` says.
#[derive(Clone, Debug)]
pub(super) struct SkipFs {
    pub(super) inner: Arc<dyn Fs>,
    pub(super) skip: Skip,
}

#[derive(Debug)]
struct SkipFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    syncs: AtomicU64,
    skip: Skip,
}

impl SkipFs {
    fn wrap(&self, path: &Path, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(SkipFile { inner, path: path.to_owned(), syncs: AtomicU64::new(0), skip: self.skip })
    }
}

impl Fs for SkipFs {
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.inner.create_new(path).map(|file| self.wrap(path, file))
    }
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        self.inner.open(path, write).map(|file| self.wrap(path, file))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.hard_link(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.read_dir(path)
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }
    fn lock(&self, path: &Path, owner: &str) -> io::Result<Result<Box<dyn LockGuard>, String>> {
        self.inner.lock(path, owner)
    }
}

impl File for SkipFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }
    fn write_all_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(bufs, offset)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        // ORDERING: Relaxed: a counter that publishes nothing.
        let before = self.syncs.fetch_add(1, Ordering::Relaxed);
        if (self.skip)(&self.path, before) { Ok(()) } else { self.inner.sync_data() }
    }
    fn map(&self, len: u64) -> io::Result<bytes::Bytes> {
        self.inner.map(len)
    }
}
