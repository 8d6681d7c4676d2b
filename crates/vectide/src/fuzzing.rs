//! What the fuzzers call: bytes of any content go into the decoders of everything that is stored.
//!
//! Only in builds with the feature `testing` (or `--cfg fuzzing`). The same bodies run in the tests below over mutations of
//! their own, so that they are exercised where no fuzzer can run. Invariant: none of these functions panics.

use crate::manifest::model::{decode, encode};
use crate::manifest::{Catalog, Document, ShardManifest};
use crate::schema::TableSchema;
use arrow::array::{Array, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field};
use std::sync::Arc;

/// Any bytes as a log file, a log object and frames.
pub fn frame(bytes: &[u8]) {
    crate::wal::fuzz::read(bytes);
}

/// Any bytes as a manifest and as a catalog, with the checksum that they have and with the right one.
pub fn manifest(bytes: &[u8]) {
    let mut whole = format!("{{\"crc32c\":\"{:08x}\",", crc32c::crc32c(bytes)).into_bytes();
    whole.extend_from_slice(bytes);
    for bytes in [bytes, &whole] {
        read_back::<ShardManifest>(bytes);
        read_back::<Catalog>(bytes);
    }
}

/// Any bytes in one of a segment's parts: the first byte chooses which, the second how.
pub fn segment(bytes: &[u8]) {
    crate::segment::fuzz::read(bytes);
}

/// What decodes has to encode to the same document.
fn read_back<T: Document + PartialEq>(bytes: &[u8]) {
    let Ok(found) = decode::<T>("fuzzed.json", bytes) else { return };
    let again = encode(&found.document, &found.commit).expect("what was read can be written");
    let again = decode::<T>("again.json", &again).expect("what was written can be read");
    assert_eq!(again.document, found.document);
}

/// `key id: Int64, name: Utf8, vector vec: [f32; 4] l2`.
pub(crate) fn table_schema() -> TableSchema {
    crate::schema! { key id: Int64, name: Utf8, vector vec: [f32; 4] l2 }.expect("a schema")
}

/// Rows with ids from `first` on, in the stored schema.
pub(crate) fn rows(schema: &TableSchema, first: i64, count: usize) -> RecordBatch {
    let ids: Vec<i64> = (first..first + count as i64).collect();
    let names: StringArray = ids.iter().map(|id| (id % 3 != 0).then(|| format!("row {id}"))).collect();
    let values: Float32Array = ids.iter().flat_map(|&id| (0..4).map(move |d| Some((id * 7 + d) as f32))).collect();
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, 4, Arc::new(values), None);
    let columns: Vec<Arc<dyn Array>> = vec![Arc::new(Int64Array::from(ids)), Arc::new(names), Arc::new(vectors)];
    RecordBatch::try_new(Arc::clone(schema.stored()), columns).expect("the stored columns")
}

/// A change of one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    at: usize,
    flip: u8,
}

impl Edit {
    pub(crate) fn apply(self, bytes: &mut [u8]) {
        let len = bytes.len();
        if let Some(byte) = bytes.get_mut(self.at % len.max(1)) {
            *byte ^= self.flip;
        }
    }
}

/// A fuzzer's bytes as edits: three bytes each, a place and a mask.
pub(crate) struct Edits<'a>(pub(crate) &'a [u8]);

impl Iterator for Edits<'_> {
    type Item = Edit;

    fn next(&mut self) -> Option<Edit> {
        let (edit, rest) = self.0.split_first_chunk::<3>()?;
        self.0 = rest;
        Some(Edit { at: usize::from(u16::from_le_bytes([edit[0], edit[1]])), flip: edit[2] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_oneof, proptest};
    use proptest::strategy::Strategy;

    /// Mostly few edits: many at once are refused at the first.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![4 => vec(any::<u8>(), 0..13), 1 => vec(any::<u8>(), 0..400)]
    }

    proptest! {
        #[test]
        fn a_mutated_log_is_read_or_refused(bytes in bytes()) {
            frame(&bytes);
        }

        #[test]
        fn a_mutated_segment_is_read_or_refused(part in 0u8..4, how in 0u8..8, bytes in bytes()) {
            segment(&[&[part, how], &bytes[..]].concat());
        }

        #[test]
        fn a_mutated_manifest_is_read_or_refused(bytes in bytes()) {
            let mut shard = ShardManifest::empty();
            shard.set_epoch(Epoch(3));
            let encoded = encode(&shard, "w-1").expect("encodes");
            let mut covered = encoded[22..].to_vec();
            Edits(&bytes).for_each(|edit| edit.apply(&mut covered));
            manifest(&covered);
            manifest(&bytes);
        }
    }
}
