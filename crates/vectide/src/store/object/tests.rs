use super::*;
use crate::store::{DiskFs, conformance};
use object_store::memory::InMemory;

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
