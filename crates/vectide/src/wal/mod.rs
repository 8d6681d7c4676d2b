//! The shard's log: encoded batches go in, acknowledgements come out.
//!
//! `table/writer` encodes and checksums a batch in the caller's thread (`frame`), then, inside the publication section,
//! hands it to `Log::enqueue`; one log thread (local files) or task (objects) writes groups in that order and tells
//! the `LogListener` how far the log is durable. `table/open` reads it back through `replay`. Invariant: the order of
//! `enqueue` calls is the order of the log, of seqs and of publication numbers; durability is a prefix of it.

mod assemble;
pub(crate) mod body;
mod durable;
pub(crate) mod fence;
#[cfg(test)]
mod fixture;
pub(crate) mod frame;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub(crate) mod fuzz;
pub(crate) mod index;
pub(crate) mod local;
pub(crate) mod object;
pub(crate) mod queue;
mod read_local;
mod read_object;
pub(crate) mod replay;
pub(crate) mod tail;

use crate::error::{Error, Result};
use crate::ids::{Epoch, LogPosition, PubNo, Seq};
pub use crate::manifest::EpochEnd;
use async_trait::async_trait;
pub(crate) use queue::LogPermit;
pub use queue::LogStats;
use std::fmt::Debug;
use std::sync::Arc;

/// How far the log has come, or that it cannot go on. Called by the log's own thread or task, in log order.
pub(crate) trait LogListener: Send + Sync {
    /// Every batch up to and including `upto` is durable.
    fn durable(&self, upto: PubNo);
    /// The log failed for good: what is queued has an unknown outcome and will never be reported durable. `Fenced` if
    /// another writer took over. Called at most once; nothing follows it.
    fn failed(&self, error: Error);
}

/// Who asks for log space: deletes may use a reserve that writes may not, so that a full disk can be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Inserts and upserts.
    Write,
    /// Deletes.
    Delete,
}

/// A shard's log in its writer's hands.
#[async_trait]
pub(crate) trait Log: Send + Sync + Debug {
    /// Room for a batch of `rows` rows and `bytes` log bytes if there is some at once, else `None`: then [`Log::admit`].
    fn try_admit(&self, rows: u64, bytes: u64, admission: Admission) -> Result<Option<LogPermit>>;

    /// Makes sure that a batch can be appended without running out of disk space or queue, waiting in line while the
    /// queue is full. Dropping the permit gives the room back.
    ///
    /// # Errors
    /// `Unavailable` if the disk is full: nothing was written, a later call may succeed. `Fenced`, `Closed` or the
    /// failure's kind once the log has failed.
    async fn admit(&self, rows: u64, bytes: u64, admission: Admission) -> Result<LogPermit>;

    /// Appends an admitted batch to the queue. O(1), never blocks: called inside the publication section. After the log
    /// has failed or was closed it does nothing: the batch is never reported durable.
    fn enqueue(&self, permit: LogPermit, batch: Arc<frame::EncodedBatch>, first_seq: Seq, publication: PubNo);

    /// A position at or before the first frame whose rows begin at `seq` or later: where a replay that skips everything
    /// below `seq` has to start. Exact enough that what lies before it may be trimmed.
    fn locate(&self, seq: Seq) -> LogPosition;

    /// Removes files or objects that lie wholly before `position`, of this and earlier epochs. Fences stay.
    async fn trim(&self, position: LogPosition) -> Result<()>;

    /// Waits until everything enqueued is durable, then stops the log. Returns where it ends.
    async fn close(&self) -> Result<EpochEnd>;

    /// Queue and throughput figures; costs a few atomic loads.
    fn stats(&self) -> LogStats;
}

/// The epochs whose logs a replay reads. Nobody writes as epoch 0: it is a new shard's replay point.
fn earlier_epochs(from: LogPosition, current: Epoch) -> impl Iterator<Item = Epoch> {
    (from.epoch.0.max(1)..current.0).map(Epoch)
}

/// An epoch's folder in the shard's `wal` folder.
pub(crate) fn epoch_name(epoch: Epoch) -> String {
    format!("{:020}", epoch.0)
}

/// The log file whose first byte stands at `start`, in its epoch's folder.
pub(crate) fn log_file_name(start: u64) -> String {
    format!("{start:020}.log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_fail_point_on_the_logs_path_is_listed_and_none_else() {
        let sources = [
            include_str!("durable.rs"),
            include_str!("fence.rs"),
            include_str!("local.rs"),
            include_str!("local/files.rs"),
            include_str!("object.rs"),
            include_str!("replay.rs"),
        ];
        let name = |rest: &'static str| rest.split('"').next().expect("split gives at least one");
        let used: BTreeSet<_> = sources.iter().flat_map(|s| s.split("hit(\"").skip(1).map(name)).collect();
        let listed = crate::failpoint::POINTS.iter().copied().filter(|name| name.starts_with("wal."));
        assert_eq!(used, listed.collect());
    }

    #[test]
    fn log_files_are_named_as_the_store_names_them() {
        use crate::store::paths::LogKind;
        let paths = fixture::paths();
        let own = format!("{}{}/{}", paths.wal_dir(), epoch_name(Epoch(7)), log_file_name(99));
        assert_eq!(own, paths.wal(Epoch(7), 99, LogKind::File));
    }
}
