//! The log's queue seen from outside: how much may wait in it, how much does, and what came of it.
//!
//! Writers reserve room here before they publish ([`Queue::reserve`]), the log reports what it wrote, and
//! `table.stats()` reads [`LogStats`]. Invariant: rows and bytes reserved never exceed the limits (but for one batch
//! larger than a limit, which then waits for an empty queue), and every reservation is given back exactly once.

use crate::clock::Clock;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, TryAcquireError};

/// Byte permits count in units of this size, so that a limit fits a semaphore.
const BYTE_UNIT: u64 = 64;

/// Figures of one shard's log since it was opened: what lance#6795 reports, over the whole shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogStats {
    /// Rows appended but not yet durable.
    pub queue_rows: u64,
    /// Log bytes appended but not yet durable.
    pub queue_bytes: u64,
    /// Age of the oldest of them in microseconds; 0 if there is none.
    pub queue_age_us: u64,
    /// The largest `queue_rows` so far.
    pub queue_rows_max: u64,
    /// The largest `queue_bytes` so far.
    pub queue_bytes_max: u64,
    /// The longest that a row waited to become durable, in microseconds.
    pub queue_age_max_us: u64,
    /// Rows made durable.
    pub rows_written: u64,
    /// Log bytes made durable, headers of frames included.
    pub bytes_written: u64,
    /// `queue_rows_max` as a percentage of all rows appended.
    pub wal_queue_max_pct: f64,
    /// Group commits.
    pub groups: u64,
    /// `fdatasync` calls on log files, or PUTs of log objects.
    pub syncs: u64,
    /// Rows made durable per sync or PUT.
    pub rows_per_sync: f64,
    /// Writes that had to wait for room in the queue.
    pub stalls: u64,
    /// How long they waited in all, in microseconds.
    pub stalled_us: u64,
    /// Log files or objects written since the log was opened and not yet trimmed.
    pub objects: u64,
}

/// How much may be appended but not yet durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    /// Log bytes.
    pub(crate) bytes: u64,
    /// Rows.
    pub(crate) rows: u64,
}

/// The queue's bounds and counters, shared by writers, log and stats.
#[derive(Debug)]
pub(crate) struct Queue {
    clock: Arc<dyn Clock>,
    byte_units: Semaphore,
    row_units: Semaphore,
    total_byte_units: u32,
    total_row_units: u32,
    failure: OnceLock<Error>,
    closed: AtomicBool,
    rows: AtomicU64,
    bytes: AtomicU64,
    rows_max: AtomicU64,
    bytes_max: AtomicU64,
    rows_appended: AtomicU64,
    /// When the oldest batch in the queue was appended, in nanoseconds plus one; 0 if the queue is empty.
    oldest: AtomicU64,
    age_max_us: AtomicU64,
    rows_written: AtomicU64,
    bytes_written: AtomicU64,
    groups: AtomicU64,
    syncs: AtomicU64,
    stalls: AtomicU64,
    stalled_us: AtomicU64,
    objects: AtomicU64,
}

// ORDERING: every counter below is Relaxed: each is a figure of its own that publishes no other memory. What orders a
// batch's bytes against the thread that writes them is the log's inbox lock.

impl Queue {
    pub(crate) fn new(limits: QueueLimits, clock: Arc<dyn Clock>) -> Arc<Self> {
        let total_byte_units = units(limits.bytes.div_ceil(BYTE_UNIT));
        let total_row_units = units(limits.rows);
        Arc::new(Self {
            clock,
            byte_units: Semaphore::new(total_byte_units as usize),
            row_units: Semaphore::new(total_row_units as usize),
            total_byte_units,
            total_row_units,
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            rows_max: AtomicU64::new(0),
            bytes_max: AtomicU64::new(0),
            rows_appended: AtomicU64::new(0),
            oldest: AtomicU64::new(0),
            age_max_us: AtomicU64::new(0),
            rows_written: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            stalled_us: AtomicU64::new(0),
            objects: AtomicU64::new(0),
        })
    }

    /// Room for a batch, at once or not at all (`None`).
    pub(crate) fn try_reserve(self: &Arc<Self>, rows: u64, bytes: u64) -> Result<Option<LogPermit>> {
        self.check()?;
        let (byte_units, row_units) = self.units_of(rows, bytes);
        match self.byte_units.try_acquire_many(byte_units) {
            Ok(units) => units.forget(),
            Err(TryAcquireError::NoPermits) => return Ok(None),
            Err(TryAcquireError::Closed) => return Err(self.stopped()),
        }
        match self.row_units.try_acquire_many(row_units) {
            Ok(units) => units.forget(),
            Err(_) => {
                self.byte_units.add_permits(byte_units as usize);
                return self.check().map(|()| None);
            }
        }
        Ok(Some(self.permit(rows, bytes, byte_units, row_units)))
    }

    /// Room for a batch, waiting in line while the queue is full; a wait is counted as a stall.
    ///
    /// # Errors
    /// Why the log stopped, if it did.
    pub(crate) async fn reserve(self: &Arc<Self>, rows: u64, bytes: u64) -> Result<LogPermit> {
        if let Some(permit) = self.try_reserve(rows, bytes)? {
            return Ok(permit);
        }
        let since = self.clock.now();
        self.stalls.fetch_add(1, Relaxed);
        let (byte_units, row_units) = self.units_of(rows, bytes);
        let bytes_held = self.byte_units.acquire_many(byte_units).await.map_err(|_| self.stopped())?;
        let rows_held = self.row_units.acquire_many(row_units).await.map_err(|_| self.stopped())?;
        bytes_held.forget();
        rows_held.forget();
        self.stalled_us.fetch_add(micros(self.clock.now().saturating_sub(since)), Relaxed);
        Ok(self.permit(rows, bytes, byte_units, row_units))
    }

    fn units_of(&self, rows: u64, bytes: u64) -> (u32, u32) {
        (units(bytes.div_ceil(BYTE_UNIT)).min(self.total_byte_units), units(rows).min(self.total_row_units))
    }

    fn permit(self: &Arc<Self>, rows: u64, bytes: u64, byte_units: u32, row_units: u32) -> LogPermit {
        LogPermit { queue: Arc::clone(self), rows, bytes, byte_units, row_units, space: None }
    }

    /// The time by which ages are measured.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Counts a batch as appended at `now`.
    pub(crate) fn appended(&self, rows: u64, bytes: u64, now: Duration) {
        let rows_now = self.rows.fetch_add(rows, Relaxed) + rows;
        let bytes_now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.rows_max.fetch_max(rows_now, Relaxed);
        self.bytes_max.fetch_max(bytes_now, Relaxed);
        self.rows_appended.fetch_add(rows, Relaxed);
        let _ = self.oldest.compare_exchange(0, stamp(now), Relaxed, Relaxed);
    }

    /// Counts a group as durable. `since` is when its oldest batch was appended, `next` when the oldest that is left was.
    pub(crate) fn written(&self, rows: u64, bytes: u64, since: Duration, next: Option<Duration>) {
        self.rows.fetch_sub(rows, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
        self.rows_written.fetch_add(rows, Relaxed);
        self.bytes_written.fetch_add(bytes, Relaxed);
        self.groups.fetch_add(1, Relaxed);
        self.age_max_us.fetch_max(micros(self.clock.now().saturating_sub(since)), Relaxed);
        self.oldest.store(next.map_or(0, stamp), Relaxed);
    }

    /// Counts a sync of a log file, or a PUT.
    pub(crate) fn synced(&self) {
        self.syncs.fetch_add(1, Relaxed);
    }

    /// Counts a log file or object that came into being.
    pub(crate) fn object_created(&self) {
        self.objects.fetch_add(1, Relaxed);
    }

    /// Counts files or objects of this log that were trimmed.
    pub(crate) fn objects_trimmed(&self, count: u64) {
        let _ = self.objects.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(count)));
    }

    /// Ends the queue: whoever waits, and whoever comes, gets `error`. The first failure stays.
    pub(crate) fn fail(&self, error: Error) {
        let _ = self.failure.set(error);
        self.byte_units.close();
        self.row_units.close();
    }

    /// Ends the queue in peace: later reservations are `Closed`.
    pub(crate) fn close(&self) {
        // ORDERING: Relaxed: a reservation that races with a close may fall on either side of it.
        self.closed.store(true, Relaxed);
        self.byte_units.close();
        self.row_units.close();
    }

    /// Why nothing more may be appended, if so.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(error) => Err(error.clone()),
            None if self.closed.load(Relaxed) => Err(self.stopped()),
            None => Ok(()),
        }
    }

    fn stopped(&self) -> Error {
        self.failure.get().cloned().unwrap_or_else(|| Error::closed("the log was closed: open the table anew"))
    }

    /// All figures; a few atomic loads.
    pub(crate) fn stats(&self) -> LogStats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let (appended, syncs, written) = (get(&self.rows_appended), get(&self.syncs), get(&self.rows_written));
        let oldest = get(&self.oldest);
        let age = match oldest {
            0 => 0,
            stamped => micros(self.clock.now().saturating_sub(Duration::from_nanos(stamped - 1))),
        };
        LogStats {
            queue_rows: get(&self.rows),
            queue_bytes: get(&self.bytes),
            queue_age_us: age,
            queue_rows_max: get(&self.rows_max),
            queue_bytes_max: get(&self.bytes_max),
            queue_age_max_us: get(&self.age_max_us).max(age),
            rows_written: written,
            bytes_written: get(&self.bytes_written),
            wal_queue_max_pct: ratio(100 * get(&self.rows_max), appended),
            groups: get(&self.groups),
            syncs,
            rows_per_sync: ratio(written, syncs),
            stalls: get(&self.stalls),
            stalled_us: get(&self.stalled_us),
            objects: get(&self.objects),
        }
    }
}

/// Room in the log for one batch: taken before publication, spent by `Log::enqueue`, given back when dropped unspent.
#[must_use = "dropping a permit gives the room back"]
#[derive(Debug)]
pub(crate) struct LogPermit {
    queue: Arc<Queue>,
    rows: u64,
    bytes: u64,
    byte_units: u32,
    row_units: u32,
    space: Option<SpaceHold>,
}

impl LogPermit {
    /// Adds reserved disk space to the room.
    pub(super) fn with_space(mut self, space: SpaceHold) -> Self {
        self.space = Some(space);
        self
    }

    /// Rows there is room for.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Log bytes there is room for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks the disk space as used: it now belongs to the frame in the queue. What remains is dropped when the batch is
    /// durable.
    pub(super) fn spend_space(&mut self) {
        if let Some(space) = &mut self.space {
            space.bytes = 0;
        }
    }
}

impl Drop for LogPermit {
    fn drop(&mut self) {
        self.queue.byte_units.add_permits(self.byte_units as usize);
        self.queue.row_units.add_permits(self.row_units as usize);
    }
}

/// Disk space that was preallocated and not yet promised to anybody; may be below zero never.
#[derive(Debug, Default)]
pub(super) struct Space(AtomicU64);

impl Space {
    /// Takes `bytes` if at least `bytes + reserve` are left.
    pub(super) fn take(self: &Arc<Self>, bytes: u64, reserve: u64) -> Option<SpaceHold> {
        // ORDERING: Relaxed: only the amount matters; the space itself belongs to the log's thread.
        self.0
            .fetch_update(Relaxed, Relaxed, |free| (free >= bytes.saturating_add(reserve)).then(|| free - bytes))
            .ok()
            .map(|_| SpaceHold { space: Arc::clone(self), bytes })
    }

    pub(super) fn add(&self, bytes: u64) {
        // ORDERING: Relaxed: see `take`.
        self.0.fetch_add(bytes, Relaxed);
    }

    pub(super) fn free(&self) -> u64 {
        // ORDERING: Relaxed: see `take`.
        self.0.load(Relaxed)
    }

    /// Takes everything, if `all` is what is left: that is, if nobody holds or has queued any.
    pub(super) fn take_all(&self, all: u64) -> bool {
        // ORDERING: Relaxed: see `take`.
        self.0.compare_exchange(all, 0, Relaxed, Relaxed).is_ok()
    }
}

/// Space taken from [`Space`]; dropping it gives the space back.
#[derive(Debug)]
pub(super) struct SpaceHold {
    space: Arc<Space>,
    bytes: u64,
}

impl Drop for SpaceHold {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.space.add(self.bytes);
        }
    }
}

fn units(n: u64) -> u32 {
    // A semaphore holds at most usize::MAX >> 3 permits; u32::MAX >> 3 is the same bound everywhere.
    u32::try_from(n.clamp(1, u64::from(u32::MAX >> 3))).expect("clamped to 29 bits")
}

fn stamp(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX - 1).saturating_add(1)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::error::ErrorKind;

    fn queue(bytes: u64, rows: u64) -> (Arc<Queue>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Queue::new(QueueLimits { bytes, rows }, Arc::clone(&clock) as _), clock)
    }

    #[tokio::test]
    async fn a_full_queue_makes_the_next_writer_wait_and_counts_it() {
        let (queue, _) = queue(1024, 10);
        let first = queue.reserve(1, 1000).await.expect("room");
        assert!(queue.try_reserve(1, 100).expect("open").is_none(), "bytes are bounded");
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.reserve(1, 100).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        drop(first);
        waiting.await.expect("no panic").expect("room came free");
        assert_eq!(queue.stats().stalls, 1);
        let rows = queue.reserve(10, 10).await.expect("room");
        assert!(queue.try_reserve(1, 1).expect("open").is_none(), "rows are bounded");
        drop(rows);
        assert!(
            queue.try_reserve(99, 1 << 30).expect("open").is_some(),
            "a batch above the limits gets an empty queue"
        );
    }

    #[tokio::test]
    async fn a_failure_wakes_waiters_and_stays() {
        let (queue, _) = queue(64, 1);
        let held = queue.reserve(1, 64).await.expect("room");
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.reserve(1, 1).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        queue.fail(Error::fenced("epoch 2 took over"));
        queue.fail(Error::unavailable("later"));
        assert_eq!(waiting.await.expect("no panic").expect_err("failed").kind(), ErrorKind::Fenced);
        assert_eq!(queue.try_reserve(1, 1).expect_err("failed").kind(), ErrorKind::Fenced);
        drop(held);
    }

    #[test]
    fn figures_follow_the_clock_and_the_largest_queue() {
        let (queue, clock) = queue(1 << 20, 1 << 20);
        queue.appended(30, 3000, clock.now());
        clock.advance(Duration::from_millis(5));
        queue.appended(10, 1000, clock.now());
        assert_eq!(queue.stats().queue_age_us, 5_000);
        queue.synced();
        queue.written(40, 4000, Duration::ZERO, None);
        queue.appended(160, 1, clock.now());
        let stats = queue.stats();
        assert_eq!((stats.queue_rows, stats.queue_rows_max, stats.queue_bytes_max), (160, 160, 4000));
        assert_eq!((stats.rows_written, stats.queue_age_max_us, stats.queue_age_us), (40, 5_000, 0));
        assert_eq!((stats.wal_queue_max_pct, stats.rows_per_sync), (80.0, 40.0));
    }

    #[test]
    fn space_keeps_a_reserve_and_takes_back_what_was_not_used() {
        let space = Arc::new(Space::default());
        space.add(1000);
        assert!(space.take(900, 200).is_none(), "a write leaves the reserve alone");
        let hold = space.take(900, 0).expect("a delete may use it");
        assert!(!space.take_all(1000), "some of it is promised");
        drop(hold);
        assert!(space.take_all(1000));
    }
}
