//! A local directory passed off as an object store.
//!
//! The crash harness kills processes that keep their log in objects, which then have to lie where a kill leaves them.
//! Invariant: as the store below it, but [`Store::local`] says no, so that nobody takes a lock or writes files beside it.

use super::{LocalDir, ObjectMeta, ObjectWriter, PutOutcome, Store, StoreStats};
use crate::error::Result;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct ObjectsOnly(pub Arc<dyn Store>);

#[async_trait]
impl Store for ObjectsOnly {
    async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.0.put(path, bytes).await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.0.put_if_absent(path, bytes).await
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.0.get(path).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.0.list(prefix).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.0.delete(path).await
    }

    async fn create(&self, path: &str) -> Result<Box<dyn ObjectWriter>> {
        self.0.create(path).await
    }

    async fn map(&self, path: &str, len: u64) -> Result<Bytes> {
        self.0.map(path, len).await
    }

    fn local(&self) -> Option<LocalDir> {
        None
    }

    fn stats(&self) -> StoreStats {
        self.0.stats()
    }
}
