//! Writes everything that a sealed memtable holds as the files of a segment.
//!
//! In: a memtable that is sealed, durable and in its graphs, and the end marks that its batches set on older row files.
//! Out: the segment's entry for the manifest, whose commit is the caller's. Invariant: nothing that exists is changed, so
//! a failure at any point leaves at most objects that nothing names.

use crate::error::{Error, Result};
use crate::ids::{PubNo, RowId};
use crate::manifest::SegmentMeta;
use crate::memtable::Memtable;
use crate::rows::RowSource;
use crate::segment::{Part, write_part};
use crate::store::Store;
use futures::future::try_join;
use std::sync::Arc;

/// Writes the parts of segment `id` into the folder `dir` (which ends in `/`), rows beside graphs, keys and marks.
///
/// Durable on return, visible to nobody. Encodes on blocking threads, at most two at a time; holds a few record batches
/// and one graph section. A memtable without rows gives a segment of marks alone.
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
    let ends = Part::Ends(older_marks.to_vec());
    let parts = if rows == 0 {
        vec![write_part(store, dir, ends, memtable).await?]
    } else {
        let graphs = (0..memtable.schema().vectors().len()).map(Part::Graph);
        let keys = memtable.schema().key().map(|_| Part::Keys);
        let others = async {
            let mut parts = Vec::new();
            for part in graphs.chain(keys).chain([ends]) {
                parts.push(write_part(store, dir, part, memtable).await?);
            }
            Ok(parts)
        };
        let (first, mut parts) = try_join(write_part(store, dir, Part::Rows, memtable), others).await?;
        parts.insert(0, first);
        parts
    };
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
