//! An engine for vector tables that never stop being written to.
//!
//! A row is durable, visible and searchable the moment its write is acknowledged: while the log flushes, while a segment
//! is written, with no index rebuild in between.
//!
//! ```
//! use arrow::array::{FixedSizeListArray, Int64Array, RecordBatch, StringArray};
//! use arrow::datatypes::Float32Type;
//! use std::sync::Arc;
//! use vectide::{Options, Vectide, arrow, keys, schema};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> vectide::Result<()> {
//! let db = Vectide::open("memory://", Options::default()).await?; // or a path, or s3://bucket/prefix
//! let table = db.create_table("docs", schema! { key id: Int64, name: Utf8, vector vec: [f32; 2] cosine }).await?;
//!
//! let vectors = [Some(vec![Some(1.0), Some(0.0)]), Some(vec![Some(0.0), Some(1.0)])];
//! let batch = RecordBatch::try_from_iter([
//!     ("id", Arc::new(Int64Array::from(vec![17, 42])) as _),
//!     ("name", Arc::new(StringArray::from(vec!["east", "north"])) as _),
//!     ("vec", Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 2)) as _),
//! ])?;
//! let ack = table.upsert(batch).await?; // durable and visible from here on
//! assert_eq!((ack.inserted, ack.updated), (2, 0));
//!
//! let hits = table.search(&[0.9, 0.1]).k(1).columns(["name"]).await?;
//! assert_eq!(hits.column(0).as_ref(), &StringArray::from(vec!["east"]) as &dyn arrow::array::Array);
//!
//! table.delete(keys![17]).await?;
//! assert_eq!(table.count().await?, 1);
//! db.close().await
//! # }
//! ```
//!
//! Modules in the order of a row's path; each imports only those before it.

#![warn(unreachable_pub)]

pub use arrow;

mod base;
mod batch;
// Time.
pub mod clock;
mod database;
mod ends;
// What went wrong and what to do about it.
pub mod error;
// Named places where tests stop, fail or kill.
pub mod failpoint;
mod flush;
// Decoders against any bytes.
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzzing;
// Numbers that name things.
pub mod ids;
mod keys;
// What a shard consists of.
pub mod manifest;
mod memtable;
mod merge;
// Settings.
pub mod options;
mod rows;
#[cfg(test)]
mod rows_conformance;
mod runtime;
// What rows look like.
pub mod schema;
// Reads.
pub mod search;
mod segment;
// Figures.
pub mod stats;
// Where bytes live.
pub mod store;
mod sync;
// Tables.
pub mod table;
mod vectors;
// The log.
pub mod wal;

pub use database::{Builder, IntoTableSchema, ReadOnly, TableInfo, Vectide};
pub use error::{Error, ErrorKind, Result};
pub use ids::Token;
pub use keys::Keys;
pub use options::{Durability, Invalidation, MergeOptions, Options, Visibility, WalOptions};
pub use schema::{Metric, TableSchema};
pub use stats::{DatabaseStats, Staleness, TableStats, VerifyReport};
pub use table::{Appender, CommitEvery, ReadTable, Snapshot, Table, Value, WriteAck};

/// README's example, compiled and run as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
