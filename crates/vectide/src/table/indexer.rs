//! Index workers: the threads that insert published rows into the graphs, for all tables of a database.
//!
//! A writer wakes them after it has published ([`Indexer::wake`]); each takes a few rows at a time from the oldest
//! memtable that has any. Never on the path of an acknowledgement but through the tail's bound. Invariant: a shard that
//! has unindexed rows is looked at again after every wake.

use parking_lot::{Condvar, Mutex, RwLock};
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// A shard as the workers see it.
pub(crate) trait Indexed: Send + Sync + Debug {
    /// Inserts a few rows into the graphs; whether there were any.
    fn index_step(&self) -> bool;
}

#[derive(Debug, Default)]
struct Signal {
    wakes: u64,
    closing: bool,
}

#[derive(Debug, Default)]
struct Shared {
    shards: RwLock<Vec<Weak<dyn Indexed>>>,
    signal: Mutex<Signal>,
    woken: Condvar,
}

/// The pool. Dropping it stops the threads after the rows that they hold.
#[derive(Debug)]
pub(crate) struct Indexer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Indexer {
    /// Starts `threads` workers.
    pub(crate) fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let threads = (0..threads)
            .map(|n| {
                let shared = Arc::clone(&shared);
                crate::runtime::spawn_thread(format!("vectide-index-{n}"), move || work(&shared))
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Self { shared, threads })
    }

    /// Adds a shard.
    pub(crate) fn register(&self, shard: Weak<dyn Indexed>) {
        let mut shards = self.shared.shards.write();
        shards.retain(|s| s.strong_count() > 0);
        shards.push(shard);
        drop(shards);
        self.wake();
    }

    /// Says that there are rows to index.
    pub(crate) fn wake(&self) {
        self.shared.signal.lock().wakes += 1;
        self.shared.woken.notify_all();
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.shared.signal.lock().closing = true;
        self.shared.woken.notify_all();
        for thread in self.threads.drain(..) {
            // The pool may be dropped by one of its own threads, which held the last handle of a shard.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let seen = {
            let signal = shared.signal.lock();
            if signal.closing {
                return;
            }
            signal.wakes
        };
        let shards: Vec<_> = shared.shards.read().iter().filter_map(Weak::upgrade).collect();
        let mut busy = false;
        for shard in &shards {
            busy |= shard.index_step();
        }
        drop(shards);
        if busy {
            continue;
        }
        let mut signal = shared.signal.lock();
        while signal.wakes == seen && !signal.closing {
            shared.woken.wait(&mut signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug)]
    struct Rows(AtomicU32);

    impl Indexed for Rows {
        fn index_step(&self) -> bool {
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        }
    }

    #[test]
    fn workers_drain_every_shard_and_stop() {
        let indexer = Indexer::start(2).expect("threads");
        let shards: Vec<Arc<Rows>> = (0..3).map(|_| Arc::new(Rows(AtomicU32::new(100)))).collect();
        for shard in &shards {
            let weak: Weak<dyn Indexed> = Arc::downgrade(&(Arc::clone(shard) as Arc<dyn Indexed>));
            indexer.register(weak);
        }
        while shards.iter().any(|s| s.0.load(Ordering::SeqCst) > 0) {
            std::thread::yield_now();
        }
        shards[1].0.store(50, Ordering::SeqCst);
        indexer.wake();
        while shards[1].0.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        drop(indexer);
    }
}
