use super::*;
use crate::store::{DiskFs, conformance};
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetResult, ListResult, ObjectMeta as Meta, PutMultipartOptions, PutOptions, PutResult, UploadPart,
};
use parking_lot::Mutex;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_every_promise() {
    conformance::run(Arc::new(ObjectBackend::new(Arc::new(InMemory::new())))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_behind_a_cache_keeps_every_promise() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = ObjectBackend::new(Arc::new(InMemory::new()));
    let store = store.with_cache(DiskFs::shared(), dir.path(), 64 << 20).expect("a cache");
    conformance::run(Arc::new(store)).await;
}

type Failing = (&'static str, fn() -> object_store::Error);

/// A memory store that writes down its requests and fails those whose note contains `failing`, or every part.
#[derive(Debug, Default)]
struct Spy {
    inner: InMemory,
    notes: Arc<Mutex<Vec<String>>>,
    failing: Mutex<Option<Failing>>,
}

impl std::fmt::Display for Spy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spy")
    }
}

impl Spy {
    fn note(&self, note: String) -> object_store::Result<()> {
        let failing = self.failing.lock().filter(|(what, _)| note.contains(what));
        self.notes.lock().push(note);
        failing.map_or(Ok(()), |(_, error)| Err(error()))
    }

    fn take_notes(&self) -> Vec<String> {
        let mut notes = std::mem::take(&mut *self.notes.lock());
        notes.sort();
        notes
    }

    fn fail(&self, what: &'static str, error: fn() -> object_store::Error) {
        *self.failing.lock() = Some((what, error));
    }
}

#[derive(Debug)]
struct SpyUpload {
    inner: Box<dyn MultipartUpload>,
    spy: Arc<Mutex<Vec<String>>>,
    fail_part: bool,
}

#[async_trait]
impl MultipartUpload for SpyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.spy.lock().push(format!("part {}", data.content_length()));
        let sent = self.inner.put_part(data);
        let fail = self.fail_part;
        Box::pin(async move { if fail { Err(generic()) } else { sent.await } })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.spy.lock().push("complete".to_owned());
        self.inner.complete().await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.spy.lock().push("abort".to_owned());
        self.inner.abort().await
    }
}

#[async_trait]
impl ObjectStore for Spy {
    async fn put_opts(&self, at: &ObjectPath, data: PutPayload, opts: PutOptions) -> object_store::Result<PutResult> {
        self.note(format!("put {at} {}", data.content_length()))?;
        self.inner.put_opts(at, data, opts).await
    }

    async fn put_multipart_opts(
        &self,
        at: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.note(format!("multipart {at}"))?;
        let inner = self.inner.put_multipart_opts(at, opts).await?;
        let fail_part = self.failing.lock().is_some_and(|(what, _)| what == "each part");
        Ok(Box::new(SpyUpload { inner, spy: self.notes.clone(), fail_part }))
    }

    async fn get_opts(&self, at: &ObjectPath, opts: GetOptions) -> object_store::Result<GetResult> {
        let range = opts.range.as_ref().map_or_else(String::new, |r| format!(" {r}"));
        self.note(format!("{} {at}{range}", if opts.head { "head" } else { "get" }))?;
        self.inner.get_opts(at, opts).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, object_store::Result<ObjectPath>>,
    ) -> BoxStream<'static, object_store::Result<ObjectPath>> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, object_store::Result<Meta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, opts: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, opts).await
    }
}

fn generic() -> object_store::Error {
    object_store::Error::Generic { store: "spy", source: "told to fail".into() }
}

async fn stream(store: &ObjectBackend, path: &str, pieces: usize, piece: usize) -> Result<Written> {
    let mut writer = store.create(path).await?;
    for _ in 0..pieces {
        writer.write(Bytes::from(vec![7; piece])).await?;
    }
    writer.finish().await
}

#[tokio::test]
async fn a_short_object_goes_up_in_one_request_and_a_long_one_in_equal_parts() {
    let spy = Arc::new(Spy::default());
    let store = ObjectBackend::new(spy.clone());
    stream(&store, "short", 8, 1 << 20).await.expect("written");
    assert_eq!(spy.take_notes(), [format!("put short {PART}")]);
    stream(&store, "long", 21, 1 << 20).await.expect("written");
    let parts = [PART, PART, 5 << 20].map(|n| format!("part {n}"));
    assert_eq!(spy.take_notes(), ["complete", "multipart long", &parts[2], &parts[0], &parts[1]]);
}

#[tokio::test]
async fn an_upload_that_fails_or_is_dropped_is_aborted_and_leaves_no_object() {
    let spy = Arc::new(Spy::default());
    let store = ObjectBackend::new(spy.clone());
    spy.fail("each part", generic);
    let error = stream(&store, "failed", 9, 1 << 20).await.expect_err("a part failed");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let mut writer = store.create("dropped").await.expect("create");
    writer.write(Bytes::from(vec![7; PART + 1])).await.expect("write");
    drop(writer);
    tokio::task::yield_now().await;
    assert_eq!(spy.take_notes().iter().filter(|n| *n == "abort").count(), 2);
    assert_eq!(store.list("").await.expect("list"), []);
}

#[tokio::test]
async fn a_conditional_put_is_sent_once_by_the_client_made_for_it() {
    let (often, once) = (Arc::new(Spy::default()), Arc::new(Spy::default()));
    let store = ObjectBackend::new(often.clone()).with_once(once.clone());
    store.put_if_absent("a", Bytes::from_static(b"x")).await.expect("put");
    assert_eq!((often.take_notes().len(), once.take_notes()), (0, vec!["put a 1".to_owned()]));
    once.fail("put", generic);
    let error = store.put_if_absent("b", Bytes::from_static(b"x")).await.expect_err("told to fail");
    assert_eq!((error.kind(), once.take_notes().len()), (ErrorKind::Unavailable, 1));
}

#[tokio::test]
async fn a_conflict_over_an_object_that_is_not_there_is_no_answer() {
    let spy = Arc::new(Spy::default());
    let store = ObjectBackend::new(spy.clone());
    spy.fail("put", || object_store::Error::AlreadyExists { path: String::new(), source: "409".into() });
    let error = store.put_if_absent("a", Bytes::from_static(b"x")).await.expect_err("nothing is there");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    spy.inner.put(&ObjectPath::from("a"), PutPayload::from_static(b"theirs")).await.expect("put");
    let outcome = store.put_if_absent("a", Bytes::from_static(b"x")).await.expect("there");
    assert_eq!(outcome, PutOutcome::Exists);
    spy.fail("put", || object_store::Error::Precondition { path: String::new(), source: "412".into() });
    let outcome = store.put_if_absent("a", Bytes::from_static(b"x")).await.expect("there");
    assert_eq!(outcome, PutOutcome::Exists);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mapping_fetches_each_range_once_however_many_ask() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let spy = Arc::new(Spy::default());
    let store = ObjectBackend::new(spy.clone()).with_cache(DiskFs::shared(), dir.path(), 64 << 20).expect("a cache");
    let len = PART * 2 + 5;
    let whole: Bytes = (0..len).map(|i| (i / 1000) as u8).collect();
    store.put("a", whole.clone()).await.expect("put");
    spy.take_notes();
    let callers = (0..8).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.map("a", len as u64).await.expect("mapped") })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert!(caller.await.expect("no panic") == whole);
    }
    let ends = [(0, PART), (PART * 2, len), (PART, PART * 2)];
    assert_eq!(spy.take_notes(), ends.map(|(from, to)| format!("get a bytes={from}-{}", to - 1)));
}

#[tokio::test]
async fn errors_keep_their_kind_their_path_and_their_source() {
    let spy = Arc::new(Spy::default());
    let store = ObjectBackend::new(spy.clone());
    spy.fail("get", generic);
    let error = store.get("a/b").await.expect_err("told to fail");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("a/b") && std::error::Error::source(&error).is_some(), "{error:?}");
    spy.fail("get", || object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() });
    assert_eq!(store.get("a").await.expect_err("never will").kind(), ErrorKind::Invalid);
}
