//! What a table and a database say about themselves: plain data, serialisable, names with units last.
//!
//! Filled by `table` from counters that the tiers keep; read by callers, the CLI and later the metrics endpoint.

use serde::{Deserialize, Serialize};

/// A table's figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStats {
    /// The table's name.
    pub name: String,
    /// The writer's epoch.
    pub epoch: u64,
    /// Rows that a search sees now.
    pub live_rows: u64,
    /// Rows held by any tier although they were replaced or deleted.
    pub dead_rows: u64,
    /// Publication number up to which everything is visible.
    pub visible_publication: u64,
    /// The oldest write that is not acknowledged yet: in an ordered table all later ones become visible after it. `None`
    /// if nothing waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back: Option<HeldBackStats>,
    /// The memtable that takes writes.
    pub memtable: MemtableStats,
    /// Sealed memtables that wait to be flushed.
    pub sealed: SealedStats,
    /// Segments on disk.
    pub segments: SegmentStats,
    /// The log.
    pub wal: crate::wal::LogStats,
    /// Flushes since the table was opened.
    pub flush: FlushStats,
    /// The graph that segments are merged into.
    pub base: BaseStats,
    /// Merging since the table was opened.
    pub merge: MergeStats,
    /// The cache of rows of links that all tables of the database share.
    pub node_cache: NodeCacheStats,
    /// Writers that were slowed.
    pub stalls: StallStats,
    /// Searches since the table was opened.
    pub searches: SearchStats,
    /// Batches written since the table was opened.
    pub writes: WriteStats,
    /// What opening the table had to recover.
    pub recovery: RecoveryStats,
    /// What closing it had to wait for; zeros before. Apart from the steady state's figures.
    pub drain: DrainStats,
    /// The most rows that were visible and not in the graph at once, as a percentage of all rows written.
    pub tail_max_pct: f64,
    /// Whether everything works.
    pub health: Health,
}

/// The write that holds the watermark back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldBackStats {
    /// Its publication number.
    pub publication: u64,
    /// Its rows and those of all writes behind it.
    pub rows: u64,
    /// How long ago it was published, in milliseconds.
    pub for_ms: f64,
    /// What it waits for.
    pub waits_for: WaitsFor,
}

/// What a write that is not acknowledged waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitsFor {
    /// The log has not made it durable.
    Log,
    /// More than `tail_rows` rows up to it are not in the graph.
    Graph,
}

/// Bytes of a memtable by part. Each is exact at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemtableStats {
    /// Rows, dead ones included.
    pub rows: u64,
    /// The rows' own bytes.
    pub rows_bytes: u64,
    /// Links, link distances and levels.
    pub graph_bytes: u64,
    /// Compact codes that the graphs walk on.
    pub code_bytes: u64,
    /// The key index.
    pub key_bytes: u64,
    /// Row directories, end marks and the like.
    pub bookkeeping_bytes: u64,
    /// Visible rows that the graph does not hold yet, in all memtables.
    pub tail_rows: u64,
    /// The most there ever were.
    pub tail_rows_max: u64,
}

/// Sealed memtables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedStats {
    /// How many.
    pub count: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes, all parts.
    pub bytes: u64,
}

/// Segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentStats {
    /// How many.
    pub count: u64,
    /// Their rows, dead ones included.
    pub rows: u64,
    /// Their bytes on disk, all parts.
    pub bytes: u64,
}

/// Flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlushStats {
    /// Segments committed.
    pub done: u64,
    /// Attempts that failed and were or will be tried again.
    pub failed: u64,
    /// Bytes written to segments.
    pub bytes: u64,
    /// Duration of the last one, in milliseconds.
    pub last_ms: f64,
    /// Duration of the longest one, in milliseconds.
    pub max_ms: f64,
}

/// The base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseStats {
    /// Which base; empty if there is none.
    pub id: String,
    /// Steps that made it what it is.
    pub version: u64,
    /// Segments whose rows are found through it.
    pub segments: u64,
    /// Nodes of its graph, dead ones included.
    pub nodes: u64,
    /// Deltas behind its base file.
    pub deltas: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Memory of its tables and upper levels, in bytes.
    pub memory_bytes: u64,
    /// Links that searches passed over because they lead nowhere: more than 0 means damage.
    pub bad_links: u64,
}

/// Merging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MergeStats {
    /// Steps committed.
    pub steps: u64,
    /// Attempts that failed and were or will be tried again.
    pub failed: u64,
    /// Rows inserted.
    pub rows: u64,
    /// Segments that became part of the base.
    pub segments: u64,
    /// Bases that took the place of another.
    pub bases: u64,
    /// Segments whose space was given back because all of their rows were dead.
    pub retired: u64,
    /// Base files written in place of deltas.
    pub folds: u64,
    /// Segments that wait to be merged, the one under way included.
    pub backlog_segments: u64,
    /// Their rows that are not in yet.
    pub backlog_rows: u64,
    /// For how long there has been a backlog, in milliseconds.
    pub backlog_ms: u64,
    /// Nodes whose rows were read, changed or not, by all steps.
    pub nodes_touched: u64,
    /// Nodes whose rows were changed or are new.
    pub nodes_dirty: u64,
    /// Nodes that were taken out of the node cache.
    pub nodes_invalidated: u64,
    /// The same of the last step.
    pub last_touched: u64,
    /// The same of the last step.
    pub last_dirty: u64,
    /// Bytes written: deltas and base files.
    pub bytes_written: u64,
    /// Bytes written for each byte of links that the merged rows take.
    pub bytes_written_per_byte: f64,
    /// Objects removed because nothing named them any more.
    pub collected: u64,
    /// Time that inserting took, pauses excluded, in milliseconds.
    pub busy_ms: f64,
    /// Duration of the last step, in milliseconds.
    pub last_ms: f64,
    /// Duration of the longest, in milliseconds.
    pub max_ms: f64,
}

/// The node cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCacheStats {
    /// Bytes that it may take.
    pub capacity_bytes: u64,
    /// Bytes that it takes, bookkeeping included.
    pub bytes: u64,
    /// Rows that it holds.
    pub rows: u64,
    /// Reads that found their row.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Rows read from files.
    pub loads: u64,
    /// Reads by snapshots older than the rows that are kept: they go past the cache.
    pub past: u64,
    /// Rows that left to make room.
    pub evictions: u64,
    /// Rows that a step put in.
    pub published: u64,
    /// Nodes that a step took out.
    pub invalidated: u64,
}

/// Writers that were slowed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StallStats {
    /// Batches that were delayed or waited because the memory budget ran low.
    pub memory: u64,
    /// The time that took, over all writers, in milliseconds.
    pub memory_ms: f64,
    /// Batches refused because the wait at the end of the budget took too long.
    pub refused: u64,
}

/// Searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchStats {
    /// Queries answered.
    pub queries: u64,
    /// Rows whose distance was computed by scanning a tail.
    pub tail_rows_scanned: u64,
    /// Sources searched by exact scan because their graph gave too few rows or scanning was cheaper.
    pub exact_scans: u64,
    /// Queries that came back with fewer than `k` rows because there are no more.
    pub short_results: u64,
    /// Snapshots held now.
    pub snapshots_held: u64,
}

/// Batches written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteStats {
    /// Batches published.
    pub batches: u64,
    /// Rows written.
    pub rows: u64,
    /// Keys deleted.
    pub deletes: u64,
}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecoveryStats {
    /// Batches replayed from the log.
    pub batches: u64,
    /// Rows replayed from the log.
    pub rows: u64,
    /// Memtables flushed on the way because the log outgrew memory.
    pub flushes: u64,
    /// How long opening took, in milliseconds.
    pub ms: f64,
}

/// What was still under way when a table was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainStats {
    /// Rows that the log had not made durable.
    pub queue_rows: u64,
    /// Visible rows that the graph did not hold.
    pub tail_rows: u64,
    /// How long it took until everything was durable (without a log: flushed), in milliseconds.
    pub ms: f64,
}

/// Whether a table works as promised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`, `degraded` (something is being retried) or `failed` (the writer must be opened anew).
    pub status: HealthStatus,
    /// What is wrong, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For how long it has been so, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

/// See [`Health`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// Everything works.
    #[default]
    Ok,
    /// Something fails and is being retried; reads and, while there is room, writes go on.
    Degraded,
    /// The writer has stopped for good.
    Failed,
}

/// A database's figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DatabaseStats {
    /// Memory used by all memtables, in bytes.
    pub memory_used_bytes: u64,
    /// The budget they share, in bytes.
    pub memory_budget_bytes: u64,
    /// Requests to the store by operation.
    pub store: serde_json::Value,
    /// The open tables.
    pub tables: Vec<TableStats>,
}

/// How far a read-only handle is behind the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// Time since the handle last looked for news, in milliseconds.
    pub refreshed_ms_ago: u64,
    /// Publication number that the handle has applied.
    pub applied_publication: u64,
    /// Whether the last look reached the end of what the writer had made durable.
    pub caught_up: bool,
}

/// What `verify` looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Segments whose every part was read and checked.
    pub segments: u64,
    /// Files or objects read.
    pub parts: u64,
    /// Bytes read and checksummed.
    pub bytes: u64,
    /// Rows in them, dead ones included.
    pub rows: u64,
    /// Rows that live.
    pub live_rows: u64,
    /// Keys found to be unique among the live rows.
    pub keys: u64,
    /// Graph nodes found reachable.
    pub reachable_nodes: u64,
    /// Nodes of the base found reachable.
    pub base_nodes: u64,
}
