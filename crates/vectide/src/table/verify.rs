//! Checks a table's stored parts against one another.
//!
//! In: the newest manifest and a pinned reader. Every segment's parts are read back and checked (`segment`), then every
//! live row's key is met once, and the live rows are counted. Called by `Table::verify` and `ReadTable::verify`.

use super::shard::{Ground, Shard};
use crate::base::Base;
use crate::error::{Error, ErrorKind, Result};
use crate::keys::KeyArray;
use crate::manifest::ShardManifest;
use crate::search::Reader;
use crate::segment::Segment;
use crate::stats::VerifyReport;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keeps the files that a writer's manifest names from being collected, for as long as it is held.
pub(crate) struct KeepsFiles<'a>(&'a Shard);

impl<'a> KeepsFiles<'a> {
    /// To be called before the manifest is loaded.
    pub(crate) fn new(shard: &'a Shard) -> Self {
        // ORDERING: SeqCst: raised before the manifest is loaded; see where garbage is collected.
        shard.verifying.fetch_add(1, Ordering::SeqCst);
        Self(shard)
    }
}

impl Drop for KeepsFiles<'_> {
    fn drop(&mut self) {
        self.0.verifying.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A file that the manifest names and that is not there is damage.
pub(crate) fn missing_is_damage(error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound { error.with_kind(ErrorKind::Corrupt) } else { error }
}

/// Reads and checks everything; `Corrupt` at the first damage, `NotFound` at a missing file.
pub(crate) async fn verify(ground: &Ground, manifest: &ShardManifest, reader: Reader) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let mut segments = Vec::with_capacity(manifest.segments.len());
    for meta in &manifest.segments {
        let dir = ground.paths.segment_dir(&meta.id);
        // A fresh mapping: what is checked is what the disk says.
        let segment = Arc::new(Segment::open(&ground.store, &dir, meta, &ground.schema).await?);
        segments.push(Arc::clone(&segment));
        let meta = meta.clone();
        let checked = tokio::task::spawn_blocking(move || segment.verify(&meta)).await;
        let checked = checked.map_err(|e| Error::internal("verifying a segment").with_source(e))??;
        report.segments += 1;
        report.parts += checked.parts;
        report.bytes += checked.bytes;
        report.rows += checked.rows;
        report.reachable_nodes += checked.reachable_nodes;
    }
    for base in manifest.base.iter().chain(&manifest.next_base) {
        let find = |id: &str| segments.iter().find(|segment| segment.id() == id).cloned();
        let base = Base::open(&ground.base_ground(), base, &find, None).await?;
        let checked = tokio::task::spawn_blocking(move || base.verify()).await;
        let (parts, bytes, nodes) = checked.map_err(|e| Error::internal("verifying the base").with_source(e))??;
        report.parts += parts;
        report.bytes += bytes;
        report.base_nodes += nodes;
    }
    let (live_rows, keys) = tokio::task::spawn_blocking(move || count_live(&reader))
        .await
        .map_err(|e| Error::internal("verifying the rows").with_source(e))??;
    report.live_rows = live_rows;
    report.keys = keys;
    Ok(report)
}

/// Counts the live rows and makes sure that no key has two.
fn count_live(reader: &Reader) -> Result<(u64, u64)> {
    let key = reader.schema.key().map(|key| key.index);
    let projection: Vec<usize> = key.into_iter().collect();
    let mut seen: HashMap<u64, Vec<(usize, usize)>> = HashMap::new();
    let mut chunks: Vec<KeyArray> = Vec::new();
    let mut live = 0u64;
    for source in 0..reader.pinned.view.sources.len() {
        let mut from = 0;
        while let Some((batch, next)) = reader.scan_chunk(source, from, &projection)? {
            from = next;
            live += batch.num_rows() as u64;
            if key.is_none() {
                continue;
            }
            let keys = KeyArray::new(batch.column(0))?;
            for (row, hash) in keys.hashes().into_iter().enumerate() {
                let same = seen.entry(hash).or_default();
                if same.iter().any(|&(chunk, other)| keys.equals(row, chunks.get(chunk).unwrap_or(&keys), other)) {
                    return Err(Error::corrupt(format!("key {} has two live rows", keys.display(row))));
                }
                same.push((chunks.len(), row));
            }
            chunks.push(keys);
        }
    }
    let counted = reader.pinned.cut.live;
    if live != counted {
        return Err(Error::corrupt(format!("{live} rows live, the table counts {counted}")));
    }
    Ok((live, if key.is_some() { live } else { 0 }))
}
