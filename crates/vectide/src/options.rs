//! What a database is opened with: plain data with defaults, checked once, never repaired.
//!
//! Read by `database` and handed down as values; a component that needs more than data (store, clock) gets it from
//! [`Builder`](crate::Builder). Invariant: an `Options` that passed [`Options::validate`] makes sense to every tier.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Acknowledged = durable and visible: a power cut loses nothing acknowledged, and no reader sees what could be lost.
    #[default]
    Durable,
    /// Acknowledged = visible; `wait_durable` waits for the log. A crash may lose the newest rows, whole batches at a time.
    Buffered,
    /// Acknowledged = visible, and there is no log: rows are durable once they are flushed, a clean close flushes them, and
    /// a crash loses what is in memtables. `wait_durable` flushes. Readers in other processes see flushed rows only.
    None,
}

/// When others see a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Once it and all batches before it may be acknowledged: durable (unless the table is not), and with no more than
    /// `tail_rows` rows beside the graph. What a snapshot shows cannot be lost.
    #[default]
    Ordered,
    /// When it is linked, whatever earlier batches wait for; its acknowledgement comes no sooner than in an ordered
    /// table. A snapshot is still exact (whole batches, a prefix of them, the newest version of each key, and the same
    /// at every read), but in a durable table it may show rows that a crash or a failure of the log then takes back, and
    /// a search may have to scan more than `tail_rows` rows: those of all writes that wait.
    Unordered,
}

/// The log's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalOptions {
    /// Size at which a local log file is replaced, in bytes; the first ones are smaller. Default 64 MiB.
    pub file_bytes: u64,
    /// Rows appended and not durable yet, at most; writers wait at it. Default 1,048,576.
    pub queue_rows: u64,
    /// Their bytes, at most. Default 64 MiB.
    pub queue_bytes: u64,
    /// Size at which a log object is put although more is queued (object stores), in bytes. Default 8 MiB.
    pub object_bytes: u64,
    /// Log objects being put at once (object stores). Default 8.
    pub puts_in_flight: usize,
    /// The least time between the starts of two PUTs whose objects are not full (object stores), in milliseconds: bounds
    /// what requests cost, and a durable write waits for it. Default 0: an idle log puts at once, a busy one about twice
    /// in the time that a PUT takes.
    pub put_interval_ms: u64,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            queue_rows: 1 << 20,
            queue_bytes: 64 << 20,
            object_bytes: 8 << 20,
            puts_in_flight: 8,
            put_interval_ms: 0,
        }
    }
}

/// What a step of a merge takes out of the node cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Invalidation {
    /// The nodes whose rows it changed.
    #[default]
    Dirty,
    /// All nodes whose rows it read. Only to be measured against.
    Touched,
    /// Everything. Only to be measured against.
    All,
}

/// How segments are merged into the base (decision 0009).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MergeOptions {
    /// Whether segments are merged at all. Default true.
    pub enabled: bool,
    /// Segments that a table without a base has before one is begun. Default 2.
    pub segments: usize,
    /// Rows that a step inserts at least; one inserts half a per cent of the base. Default 256.
    pub step_rows: u32,
    /// Share of one core's time that merging takes at most, in per cent. Default 50.
    pub core_pct: u32,
    /// Dead rows among a base's, in per cent, from which on a base without them is built. Default 50.
    pub dead_pct: u32,
    /// Bytes of deltas, in per cent of the base file, from which on they are folded into a new one. Default 100.
    pub fold_pct: u32,
    /// Manifest versions whose files stay for readers that are behind, at least. Default 16.
    pub kept_versions: u64,
    /// Memory for rows of links, for all tables together, in bytes. Default 64 MiB, at least 64 KiB.
    pub node_cache_bytes: u64,
    /// What a step takes out of the node cache. Default `dirty`.
    pub invalidation: Invalidation,
    /// Whether a step's new rows are put into the node cache. Default true; false only to measure the other policies.
    pub publish: bool,
    /// Time that loading a row of links takes at least, in microseconds: stands in for a store that is far away, only to
    /// measure with. Default 0.
    pub load_delay_us: u64,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            segments: 2,
            step_rows: 256,
            core_pct: 50,
            dead_pct: 50,
            fold_pct: 100,
            kept_versions: 16,
            node_cache_bytes: 64 << 20,
            invalidation: Invalidation::Dirty,
            publish: true,
            load_delay_us: 0,
        }
    }
}

impl MergeOptions {
    fn validate(&self) -> Result<()> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(format!("option `merge.{name}` is {value}; it must be {least} to {most}")))
        };
        within("segments", self.segments as u64, 1, 1_000)?;
        within("step_rows", self.step_rows.into(), 1, 1 << 24)?;
        within("core_pct", self.core_pct.into(), 1, 100)?;
        within("dead_pct", self.dead_pct.into(), 1, 100)?;
        within("fold_pct", self.fold_pct.into(), 1, 10_000)?;
        within("kept_versions", self.kept_versions, 1, 1 << 20)?;
        within("load_delay_us", self.load_delay_us, 0, 1_000_000)?;
        within("node_cache_bytes", self.node_cache_bytes, 64 << 10, 1 << 50)
    }
}

/// A database's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// What an acknowledgement means. Default `durable`.
    pub durability: Durability,
    /// When others see a batch. Default `ordered`.
    pub visibility: Visibility,
    /// Memory for the memtables of all tables together, graphs and key indexes included, in bytes. Writers are slowed
    /// from three quarters of it on and wait at its end. Default 1 GiB, at least 1 MiB.
    pub memory_bytes: u64,
    /// A memtable of this many bytes is sealed and flushed. Default 256 MiB.
    pub memtable_bytes: u64,
    /// A memtable of this many rows is sealed and flushed. Default 1,000,000.
    pub memtable_rows: u32,
    /// A memtable whose log holds this many objects is sealed (object stores only). Default 1,000.
    pub memtable_log_objects: u64,
    /// A memtable whose oldest row is this old is sealed although it is small, so that an idle table's log is trimmed
    /// too. Default 600,000 (ten minutes); 0 never.
    pub flush_interval_ms: u64,
    /// How long a writer waits at the end of `memory_bytes` before it gets `Unavailable`. Default 60,000.
    pub stall_timeout_ms: u64,
    /// Visible rows that the graph does not hold yet are scanned by every search; a batch becomes visible only once no
    /// more than this many are left. Default 1,024.
    pub tail_rows: u32,
    /// Threads that insert rows into the graphs, for all tables together; 0 takes one per core but one. Default 0.
    pub index_threads: usize,
    /// Beam width of a search that names none, at least `k` being taken. Default 64.
    pub ef_search: usize,
    /// Largest batch, as encoded for the log, in bytes. Default 256 MiB.
    pub batch_bytes: u64,
    /// Snapshots that may be held at once, per table; reading one that is over the limit gives `Unavailable`. Default 10,000.
    pub snapshots: usize,
    /// How often a read-only handle looks for news at most, in milliseconds. Default 50.
    pub refresh_interval_ms: u64,
    /// Shards per table. Only 1 until distribution comes.
    pub shards: u32,
    /// The log.
    pub wal: WalOptions,
    /// Merging.
    pub merge: MergeOptions,
    /// The store behind everything.
    pub store: crate::store::StoreOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Durable,
            visibility: Visibility::Ordered,
            memory_bytes: 1 << 30,
            memtable_bytes: 256 << 20,
            memtable_rows: 1_000_000,
            memtable_log_objects: 1_000,
            flush_interval_ms: 600_000,
            stall_timeout_ms: 60_000,
            tail_rows: 1_024,
            index_threads: 0,
            ef_search: 64,
            batch_bytes: 256 << 20,
            snapshots: 10_000,
            refresh_interval_ms: 50,
            shards: 1,
            wal: WalOptions::default(),
            merge: MergeOptions::default(),
            store: crate::store::StoreOptions::default(),
        }
    }
}

impl Options {
    /// Refuses settings that make no sense, naming the field, its limits and what came.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn validate(&self) -> Result<()> {
        let at_least = |name: &str, value: u64, least: u64| {
            if value >= least {
                return Ok(());
            }
            Err(Error::invalid(format!("option `{name}` is {value}; it must be at least {least}")))
        };
        if self.shards != 1 {
            return Err(Error::invalid(format!(
                "option `shards` is {}; only 1 is supported until tables are distributed",
                self.shards
            )));
        }
        at_least("memory_bytes", self.memory_bytes, 1 << 20)?;
        at_least("memtable_bytes", self.memtable_bytes, 4 << 10)?;
        at_least("memtable_rows", u64::from(self.memtable_rows), 1)?;
        at_least("memtable_log_objects", self.memtable_log_objects, 1)?;
        at_least("tail_rows", u64::from(self.tail_rows), 1)?;
        at_least("ef_search", self.ef_search as u64, 1)?;
        at_least("batch_bytes", self.batch_bytes, 4 << 10)?;
        at_least("snapshots", self.snapshots as u64, 1)?;
        if self.memtable_rows > u32::MAX / 2 {
            return Err(Error::invalid(format!(
                "option `memtable_rows` is {}; at most {}",
                self.memtable_rows,
                u32::MAX / 2
            )));
        }
        if self.index_threads > 1_024 {
            return Err(Error::invalid(format!("option `index_threads` is {}; at most 1024", self.index_threads)));
        }
        at_least("wal.file_bytes", self.wal.file_bytes, 64 << 10)?;
        at_least("wal.queue_rows", self.wal.queue_rows, 1)?;
        at_least("wal.queue_bytes", self.wal.queue_bytes, 4 << 10)?;
        at_least("wal.object_bytes", self.wal.object_bytes, 4 << 10)?;
        at_least("wal.puts_in_flight", self.wal.puts_in_flight as u64, 1)?;
        self.merge.validate()?;
        if self.wal.put_interval_ms > 60_000 {
            let ms = self.wal.put_interval_ms;
            return Err(Error::invalid(format!("option `wal.put_interval_ms` is {ms}; at most 60000")));
        }
        self.store.validate()
    }

    /// The index threads to start: what was asked for, or one per core but one (at least one).
    pub(crate) fn index_threads(&self) -> usize {
        match self.index_threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1)).max(1),
            n => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merging(merge: MergeOptions) -> Options {
        Options { merge, ..Options::default() }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        assert!(Options::default().validate().is_ok());
        let refused = [
            (Options { shards: 2, ..Options::default() }, "shards"),
            (Options { memory_bytes: 0, ..Options::default() }, "memory_bytes"),
            (Options { memtable_rows: 0, ..Options::default() }, "memtable_rows"),
            (Options { tail_rows: 0, ..Options::default() }, "tail_rows"),
            (Options { index_threads: 4_096, ..Options::default() }, "index_threads"),
            (merging(MergeOptions { core_pct: 0, ..MergeOptions::default() }), "merge.core_pct"),
            (merging(MergeOptions { node_cache_bytes: 1, ..MergeOptions::default() }), "merge.node_cache_bytes"),
            (
                Options { wal: WalOptions { put_interval_ms: 60_001, ..WalOptions::default() }, ..Options::default() },
                "wal.put_interval_ms",
            ),
        ];
        for (options, name) in refused {
            let message = options.validate().expect_err("refused").to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let defaults = Options::default();
        assert_eq!(defaults.memory_bytes, 1024 * 1024 * 1024);
        assert_eq!(defaults.memtable_bytes, 256 * 1024 * 1024);
        assert_eq!((defaults.tail_rows, defaults.ef_search, defaults.snapshots), (1_024, 64, 10_000));
        let merge = &defaults.merge;
        assert_eq!((merge.enabled, merge.segments, merge.step_rows, merge.core_pct), (true, 2, 256, 50));
        assert_eq!((merge.dead_pct, merge.fold_pct, merge.kept_versions), (50, 100, 16));
        assert_eq!((merge.node_cache_bytes, merge.invalidation, merge.publish), (64 << 20, Invalidation::Dirty, true));
        assert_eq!((defaults.wal.puts_in_flight, defaults.wal.put_interval_ms), (8, 0));
        let text = serde_json::to_string(&defaults).expect("serialises");
        assert_eq!(serde_json::from_str::<Options>(&text).expect("reads back"), defaults);
    }
}
