//! Writes everything that a sealed memtable holds as the files of a segment.
//!
//! In: a memtable that is sealed, durable and in its graphs, and the end marks that its batches set on older row files.
//! Out: the segment's entry for the manifest, whose commit is the caller's. Invariant: nothing that exists is changed, so
//! a failure at any point leaves at most objects that nothing names.

use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId};
use crate::manifest::{PartMeta, SegmentMeta};
use crate::memtable::Memtable;
use crate::rows::RowSource;
use crate::segment::{Part, write_part};
use crate::store::Store;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::sync::Arc;

/// Parts that are written at the same time: their syncs then wait for the disk together instead of one after another.
const PARTS_AT_ONCE: usize = 4;

/// Writes the parts of segment `id` into the folder `dir` (which ends in `/`), rows beside graphs, keys and marks.
///
/// Durable on return, visible to nobody. Encodes on blocking threads, at most [`PARTS_AT_ONCE`] at a time; holds a few
/// record batches and as many graph sections. A memtable without rows gives a segment of marks alone.
///
/// # Errors
/// The store's, with everything written so far left unreferenced; `Internal` if the memtable still changes.
pub(crate) async fn build_segment(
    store: &Arc<dyn Store>,
    dir: &str,
    id: &str,
    memtable: &Arc<Memtable>,
    older_marks: &[(RowId, PubNo)],
) -> Result<SegmentMeta> {
    let rows = memtable.rows();
    if !memtable.is_sealed() || memtable.indexed() < rows {
        return Err(Error::internal(format!("segment {id} was to be built from a memtable that still changes")));
    }
    let mut parts = Vec::new();
    if rows > 0 {
        // The rows first: they take the longest.
        parts.push(Part::Rows);
        parts.extend((0..memtable.schema().vectors().len()).map(Part::Graph));
        parts.extend(memtable.schema().key().map(|_| Part::Keys));
    }
    parts.push(Part::Ends(older_marks.to_vec()));
    let write = async |(at, part)| write_part(store, dir, part, memtable).await.map(|written| (at, written));
    let written = stream::iter(parts.into_iter().enumerate()).map(write).buffer_unordered(PARTS_AT_ONCE);
    let mut parts: Vec<(usize, PartMeta)> = written.try_collect().await?;
    parts.sort_unstable_by_key(|(at, _)| *at);
    let parts = parts.into_iter().map(|(_, part)| part).collect();
    Ok(SegmentMeta {
        id: id.to_owned(),
        first_row: memtable.first_row(),
        rows,
        first_seq: memtable.first_seq(),
        last_seq: memtable.last_seq(),
        first_publication: memtable.first_publication(),
        last_publication: memtable.last_publication(),
        parts,
    })
}
