//! A small S3 server for tests: real HTTP on loopback, objects in memory, and faults where a test wants them.
//!
//! In: requests as `object_store`'s S3 client sends them (path style). Out: what S3 answers, errors as XML included; or,
//! as a [`Faults`] says, an answer that is late, refused, cut off or never comes, with or without the effect. It runs on a
//! thread and a runtime of its own, so that it outlives every client and answers whatever they do.
//! Invariants: conditional puts are decided under one lock, so that any number of writers may fight; a request that
//! arrived whole takes effect even if its client is gone; what is answered as done is done.
//!
//! It checks who asks (the access key), not the signature, and keeps nothing on disk: it is for tests and nothing else.
#![allow(clippy::disallowed_methods, reason = "the server is real: a thread of its own, real delays")]

mod call;
mod faults;
mod line;
mod objects;
mod serve;
mod xml;

pub use faults::{Faults, Latency};
pub use line::{Line, Phase};

use objects::Buckets;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Keys in one page of a listing, as S3 gives them.
const LIST_PAGE: usize = 1_000;

/// A running server. Dropping it ends every connection and forgets all objects.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) buckets: Mutex<Buckets>,
    /// Who may ask, and what becomes of their requests.
    pub(crate) lines: Mutex<BTreeMap<String, Line>>,
    pub(crate) list_page: usize,
    pub(crate) is_careless: AtomicBool,
}

impl S3Server {
    /// Starts a server with these buckets, empty, on a port of its own on loopback.
    ///
    /// # Errors
    /// What binding the port or starting the runtime gives.
    pub fn start(buckets: &[&str]) -> io::Result<Self> {
        Self::with_list_page(buckets, LIST_PAGE)
    }

    /// The same with at most `list_page` keys in a page of a listing, so that few objects suffice for several pages.
    ///
    /// # Errors
    /// As [`S3Server::start`].
    pub fn with_list_page(buckets: &[&str], list_page: usize) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let shared = Arc::new(Shared {
            buckets: Mutex::new(Buckets::new(buckets)),
            lines: Mutex::default(),
            list_page: list_page.max(1),
            is_careless: AtomicBool::new(false),
        });
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("s3-server".to_owned())
            .spawn(move || runtime.block_on(serve::run(listener, serving, stopped)))?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The endpoint for a client: `http://127.0.0.1:<port>`, to be used path style.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets the holder of `access_key` in, without faults for now; the line to set them on. The same key gives the same
    /// line. Any secret will do.
    #[must_use]
    pub fn line(&self, access_key: &str) -> Line {
        self.shared.lines.lock().entry(access_key.to_owned()).or_default().clone()
    }

    /// From now on conditions of puts are not looked at, as by stores that do not know them.
    pub fn ignore_conditions(&self) {
        // ORDERING: Relaxed: requests sent from now on come later by far more than a store to memory takes.
        self.shared.is_careless.store(true, Ordering::Relaxed);
    }

    /// The keys in a bucket, sorted, and their sizes in bytes. Empty for a bucket that is not there.
    #[must_use]
    pub fn objects(&self, bucket: &str) -> Vec<(String, u64)> {
        self.shared.buckets.lock().sizes(bucket)
    }

    /// Writes a bucket's objects as files below `dir`, to be looked at.
    ///
    /// # Errors
    /// What making folders and writing files gives.
    pub fn save(&self, bucket: &str, dir: &Path) -> io::Result<()> {
        for (key, bytes) in self.shared.buckets.lock().contents(bucket) {
            let file = dir.join(key);
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(file, bytes)?;
        }
        Ok(())
    }

    /// Multipart uploads that were begun and neither completed nor aborted.
    #[must_use]
    pub fn unfinished_uploads(&self) -> usize {
        self.shared.buckets.lock().unfinished_uploads()
    }

    /// Forgets all multipart uploads, as a bucket's lifecycle rule does.
    pub fn abort_uploads(&self) {
        self.shared.buckets.lock().abort_uploads();
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
