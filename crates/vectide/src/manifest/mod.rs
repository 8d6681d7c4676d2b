//! What a database consists of: edits go in, numbered versions come out.
//!
//! [`model`] is the data (a shard's manifest, the catalog of tables) and its bytes; [`commit`] is the log of versions in a
//! store. `table/open`, `flush` and `merge` commit through it. Invariant: the highest number is the truth, a version is
//! never changed once it is there, and no writer that was shut out can add one.

pub mod commit;
pub mod model;

pub use commit::Versioned;
pub use model::{
    AdoptedMeta, BaseMeta, Catalog, Document, EpochEnd, LinksMeta, PartMeta, SegmentMeta, ShardManifest, TableEntry,
};
