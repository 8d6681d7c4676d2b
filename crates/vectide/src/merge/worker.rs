//! The thread on which steps insert their rows, for all tables of a database: one, at low priority.
//!
//! `table/merging` hands it closures and awaits what they give. Invariant: writers, searches and flushes never wait for it.

use crate::error::{Error, Result};
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// How much lower than others its priority is, in the system's steps of niceness.
const NICENESS: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// See the module's description. Dropping it ends the thread after the closure that it runs.
#[derive(Debug)]
pub(crate) struct Worker {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if it gives out no thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (work, queue) = mpsc::channel::<Work>();
        let thread = crate::runtime::spawn_thread("vectide-merge".to_owned(), move || {
            lower_priority();
            while let Ok(work) = queue.recv() {
                work();
            }
        })?;
        Ok(Self { work: Some(work), thread: Some(thread) })
    }

    /// Runs `work` when it is its turn. Dropping the future does not end the work.
    ///
    /// # Errors
    /// `Internal` if it panicked.
    pub(crate) async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R> {
        let (done, result) = oneshot::channel();
        let work = move || {
            // Whoever asked may be gone.
            let _ = done.send(work());
        };
        let sent = self.work.as_ref().is_some_and(|queue| queue.send(Box::new(work)).is_ok());
        if !sent {
            return Err(Error::closed("the merge thread has stopped"));
        }
        result.await.map_err(|e| Error::internal("the merge thread panicked").with_source(e))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take()
            // The last handle may be dropped by what ran on it.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Lets others go first. Where the system refuses, nothing changes.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    // Linux keeps priorities by thread, and `None` is the calling one.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    #[cfg(not(target_os = "linux"))]
    let _ = NICENESS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_in_turn_and_a_panic_is_reported() {
        let worker = Worker::start().expect("a thread");
        assert_eq!(worker.run(|| 6 * 7).await.expect("runs"), 42);
        let panicked = worker.run(|| -> u32 { panic!("told to") }).await.expect_err("panicked");
        assert_eq!(panicked.kind(), crate::ErrorKind::Internal);
    }
}
