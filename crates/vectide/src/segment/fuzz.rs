//! Bytes of any content, read as the parts of a segment.
//!
//! [`crate::fuzzing`] calls it. A small good segment is built once; each input changes one of its parts, which is then
//! opened, searched and verified. Invariant: rows or a named damage come out, never a panic.

use super::Segment;
use crate::ends::Ends;
use crate::flush::build::build_segment;
use crate::fuzzing::{Edits, rows, table_schema};
use crate::ids::{PubNo, RowId, Seq};
use crate::keys::{KeyArray, KeyProbe};
use crate::manifest::SegmentMeta;
use crate::memtable::{Memtable, Prepared};
use crate::rows::{RowSource, VectorQuery, Visible};
use crate::schema::TableSchema;
use crate::store::sim::SimFs;
use crate::store::{LocalStore, Store};
use arrow::array::RecordBatch;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Runtime;

const DIR: &str = "segments/1-1/";
const ROWS: usize = 70;

/// A good segment and where its parts lie.
struct Sample {
    runtime: Runtime,
    schema: TableSchema,
    rows: RecordBatch,
    store: Arc<dyn Store>,
    meta: SegmentMeta,
    parts: Vec<Bytes>,
}

impl Sample {
    fn build() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let schema = table_schema();
        let rows = rows(&schema, 1, ROWS);
        let memtable = Memtable::new(schema.clone(), Arc::new(Ends::default()), RowId(10)).expect("a memtable");
        let keys = KeyArray::new(rows.column(0)).expect("keys");
        let hashes = keys.hashes();
        memtable.link(Prepared::new(&schema, vec![rows.clone()]).expect("prepares"), Seq(1), PubNo(1));
        memtable.cover(Seq(1), Seq(ROWS as u64), PubNo(1));
        memtable.index_keys(&keys, &hashes, 0, |_, _| {});
        while memtable.index_some(ROWS as u32) > 0 {}
        memtable.seal();
        let memtable = Arc::new(memtable);
        let disk = LocalStore::open(SimFs::new().shared(), "/fuzz").expect("an empty disk");
        let store: Arc<dyn Store> = Arc::new(disk.inline());
        let marks = [(RowId(3), PubNo(1))];
        let built = build_segment(&store, DIR, "1-1", &memtable, &marks);
        let meta = runtime.block_on(built).expect("builds");
        let read = |name: &str| runtime.block_on(store.get(&format!("{DIR}{name}"))).expect("just written");
        let parts = meta.parts.iter().map(|part| read(&part.name)).collect();
        Self { runtime, schema, rows, store, meta, parts }
    }

    /// Puts `bytes` in place of part number `at` and reads everything.
    fn try_part(&self, at: usize, bytes: Bytes) {
        let mut meta = self.meta.clone();
        meta.parts[at].len = bytes.len() as u64;
        let path = format!("{DIR}{}", meta.parts[at].name);
        self.runtime.block_on(async {
            self.store.put(&path, bytes).await.expect("the disk has room");
            self.read(&meta).await;
            self.store.put(&path, self.parts[at].clone()).await.expect("the disk has room");
        });
    }

    async fn read(&self, meta: &SegmentMeta) {
        let ends = Arc::new(Ends::default());
        let Ok(segment) = Segment::open(&self.store, DIR, meta, &self.schema).await else { return };
        let (count, keys) = (segment.rows(), KeyArray::new(self.rows.column(0)).expect("keys"));
        for (row, hash) in keys.hashes().into_iter().enumerate().step_by(9) {
            let _ = segment.find(&KeyProbe { keys: &keys, row, hash }, count);
        }
        let offsets = [0, count / 2, count - 1];
        let _ = segment.read(0..count, &[0, 1, 2]);
        let _ = segment.take(&offsets, &[0, 1, 2]);
        let _ = segment.seqs(&offsets);
        let _ = segment.marks();
        let visible = Visible { ends: &ends, at: PubNo(u64::MAX), below: count };
        let query = VectorQuery { column: 0, vector: &[40.0; 4], k: 7, ef: 20 };
        let _ = segment.search(&query, &visible);
        let _ = segment.scan_nearest(&query, &visible);
        let _ = segment.verify(meta);
    }
}

/// The first byte chooses a part, the second how the rest changes it: in its place, cut off, or as edits of it.
pub(crate) fn read(bytes: &[u8]) {
    static SAMPLE: OnceLock<Mutex<Sample>> = OnceLock::new();
    let [part, how, rest @ ..] = bytes else { return };
    let sample = SAMPLE.get_or_init(|| Mutex::new(Sample::build())).lock();
    let at = usize::from(*part) % sample.parts.len();
    let mut changed = sample.parts[at].to_vec();
    match how % 8 {
        0 => changed = rest.to_vec(),
        1 => {
            let cut = rest.iter().fold(0usize, |cut, byte| (cut << 8 | usize::from(*byte)) % changed.len());
            changed.truncate(cut);
        }
        _ => Edits(rest).for_each(|edit| edit.apply(&mut changed)),
    }
    sample.try_part(at, changed.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_whole() {
        let sample = Sample::build();
        let opened = sample.runtime.block_on(Segment::open(&sample.store, DIR, &sample.meta, &sample.schema));
        opened.expect("opens").verify(&sample.meta).expect("verifies");
    }
}
