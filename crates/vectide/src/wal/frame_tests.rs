//! Frames and bodies: round trips, and any bytes at all.

use super::*;
use crate::wal::fixture::{DIM, log_schema, rows, table_schema};
use arrow::array::{
    Array, ArrayRef, Decimal128Array, FixedSizeListArray, Float32Array, Int64Array, ListBuilder, NullArray,
    StringViewArray, StructArray, UInt8Builder,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema};
use proptest::prelude::*;

fn place(at: u64) -> Place {
    Place { epoch: Epoch(3), at, first_seq: Seq(10), publication: PubNo(4), synced_to: at }
}

/// All frames of a batch, one after the other, from log position 64 on.
fn bytes_of(batch: &EncodedBatch) -> Vec<u8> {
    let mut out = Vec::new();
    for part in 0..batch.part_count() {
        batch.seal_header(part, &Place { synced_to: 64, ..place(64 + out.len() as u64) }, &mut out);
        out.extend_from_slice(batch.part_body(part));
    }
    out
}

fn encode(schema: &Arc<LogSchema>, batch: &RecordBatch, key: Option<&[u8]>) -> EncodedBatch {
    EncodedBatch::encode(schema, FrameKind::Put, batch, key).expect("encodes")
}

#[test]
fn a_batch_comes_back_from_its_frames_with_its_key() {
    let schema = log_schema();
    for count in [1, 3, 255, 256, 5000] {
        let batch = rows(&table_schema(), 7, count);
        let encoded = encode(&schema, &batch, Some(b"retry-17"));
        let bytes = bytes_of(&encoded);
        assert_eq!(bytes.len() as u64, encoded.bytes(), "{count} rows take what was announced");
        let Parsed::Frame { frame, len } = parse(&bytes, Epoch(3), 64) else { panic!("{count} rows") };
        assert_eq!(len, bytes.len());
        assert_eq!(&*frame.header.key, b"retry-17");
        assert_eq!((frame.header.first_seq, frame.header.publication), (Seq(10), PubNo(4)));
        assert_eq!(frame.decode(&schema).expect("decodes"), batch);
    }
}

#[test]
fn a_slice_is_encoded_without_its_parent() {
    let schema = log_schema();
    let parent = rows(&table_schema(), 0, 10_000);
    let whole = encode(&schema, &rows(&table_schema(), 4321, 2), None);
    let slice = encode(&schema, &parent.slice(4321, 2), None);
    assert_eq!(slice.bytes(), whole.bytes());
    assert_eq!(slice.decode_parts().expect("decodes"), whole.decode_parts().expect("decodes"));
}

#[test]
fn a_huge_batch_is_split_and_its_parts_number_their_seqs() {
    let schema = log_schema();
    let batch = rows(&table_schema(), 0, 150_000);
    let encoded = encode(&schema, &batch, None);
    assert_eq!((encoded.part_count(), encoded.rows()), (3, 150_000));
    let bytes = bytes_of(&encoded);
    let (mut at, mut seq, mut seen) = (0, 10, 0);
    while let Parsed::Frame { frame, len } = parse(&bytes[at..], Epoch(3), 64 + at as u64) {
        assert_eq!((frame.header.part, frame.header.parts, frame.header.first_seq), (seen, 3, Seq(seq)));
        let rows = frame.decode(&schema).expect("decodes");
        assert_eq!(rows, batch.slice(seq as usize - 10, rows.num_rows()));
        (at, seq, seen) = (at + len, seq + u64::from(frame.header.rows), seen + 1);
    }
    assert_eq!((at, seen), (bytes.len(), 3));
}

#[test]
fn decoded_parts_are_views_on_the_encoded_bytes() {
    let schema = log_schema();
    for count in [1, 300] {
        let encoded = encode(&schema, &rows(&table_schema(), 1, count), None);
        let body = encoded.part_body(0);
        let range = body.as_ptr() as usize..body.as_ptr() as usize + body.len();
        let parts = encoded.decode_parts().expect("decodes");
        let vectors = parts[0].column(2).as_any().downcast_ref::<FixedSizeListArray>().expect("vectors");
        let values = vectors.values().as_any().downcast_ref::<Float32Array>().expect("floats").values();
        assert_eq!(values.len(), count * DIM);
        assert!(range.contains(&(values.as_ptr() as usize)), "{count} rows: the vector was copied");
        if count >= 256 {
            assert_eq!(values.as_ptr() as usize % 64, 0, "wide parts align their columns to a cache line");
        }
    }
}

#[test]
fn a_row_of_one_costs_no_kilobyte() {
    let encoded = encode(&log_schema(), &rows(&table_schema(), 1, 1), None);
    assert!(encoded.bytes() < 600, "{} bytes", encoded.bytes());
}

#[test]
fn what_cannot_be_logged_is_refused_with_the_reason() {
    let schema = log_schema();
    let batch = rows(&table_schema(), 1, 1);
    let message = |result: Result<EncodedBatch>| result.expect_err("refused").message().to_owned();
    let long_key = [7; 65];
    assert!(message(EncodedBatch::encode(&schema, FrameKind::Put, &batch, Some(&long_key))).contains("65 bytes"));
    assert!(message(EncodedBatch::encode(&schema, FrameKind::Delete, &batch, None)).contains("columns"));
    assert!(message(EncodedBatch::encode(&schema, FrameKind::Put, &batch.slice(0, 0), None)).contains("empty"));
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let field = Field::new("tags", DataType::List(Arc::new(Field::new("item", dictionary, true))), true);
    let refused = LogSchema::new(Arc::new(Schema::new(vec![field])), table_schema()).expect_err("refused");
    assert!(refused.message().contains("`tags`"), "{refused}");
}

#[test]
fn many_types_ride_along() {
    let views = StringViewArray::from(vec![Some("short"), None, Some("one that does not fit into a view itself")]);
    let decimals = Decimal128Array::from(vec![1, -2, i128::MAX]);
    let ints = Int64Array::from(vec![Some(1), None, Some(3)]);
    let fields: Vec<Field> = vec![Field::new("v", DataType::Utf8View, true), Field::new("i", DataType::Int64, true)];
    let nested = StructArray::new(
        fields.into(),
        vec![Arc::new(views.clone()) as ArrayRef, Arc::new(ints) as ArrayRef],
        Some(vec![true, false, true].into()),
    );
    let mut lists = ListBuilder::new(UInt8Builder::new());
    for list in [vec![1_u8, 2], vec![], vec![3]] {
        lists.values().append_slice(&list);
        lists.append(true);
    }
    let fixed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        vec![Some(vec![Some(1.0), Some(2.0)]), None, Some(vec![Some(5.0), None])],
        2,
    );
    let runs = arrow::array::RunArray::<Int32Type>::from_iter(["a", "a", "b"]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("views", Arc::new(views)),
        ("decimals", Arc::new(decimals)),
        ("nested", Arc::new(nested)),
        ("lists", Arc::new(lists.finish())),
        ("fixed", Arc::new(fixed)),
        ("nothing", Arc::new(NullArray::new(3))),
        ("runs", Arc::new(runs)),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).expect("batch");
    let schema = LogSchema::new(batch.schema(), table_schema()).expect("no dictionaries");
    for batch in [batch.clone(), batch.slice(1, 2)] {
        let encoded = encode(&schema, &batch, None);
        assert_eq!(encoded.decode_parts().expect("decodes"), vec![batch]);
    }
}

#[test]
fn a_view_column_takes_its_own_bytes_only() {
    let long = "x".repeat(1000);
    let parent = StringViewArray::from_iter_values((0..1000).map(|i| format!("{i} {long}")));
    let batch = RecordBatch::try_from_iter([("v", Arc::new(parent) as ArrayRef)]).expect("batch");
    let schema = LogSchema::new(batch.schema(), table_schema()).expect("no dictionaries");
    assert!(encode(&schema, &batch.slice(10, 1), None).bytes() < 4096);
}

#[test]
fn a_frame_counts_only_where_it_was_sealed_for() {
    let bytes = bytes_of(&encode(&log_schema(), &rows(&table_schema(), 1, 1), None));
    assert!(matches!(parse(&bytes, Epoch(3), 64), Parsed::Frame { .. }));
    assert!(matches!(parse(&bytes, Epoch(2), 64), Parsed::Bad(_)), "another epoch");
    assert!(matches!(parse(&bytes, Epoch(3), 72), Parsed::Bad(_)), "another position");
}

#[test]
fn every_cut_and_every_flipped_byte_is_seen() {
    let bytes = bytes_of(&encode(&log_schema(), &rows(&table_schema(), 1, 2), Some(b"key")));
    for cut in 0..bytes.len() {
        assert!(!matches!(parse(&bytes[..cut], Epoch(3), 64), Parsed::Frame { .. }), "cut at {cut}");
    }
    let padding = HEADER_BYTES + 3..HEADER_BYTES + 8;
    for at in (0..bytes.len()).filter(|at| !padding.contains(at)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(!matches!(parse(&damaged, Epoch(3), 64), Parsed::Frame { .. }), "flip at {at}");
    }
    assert!(matches!(parse(&[0; 200], Epoch(3), 64), Parsed::End));
    assert!(matches!(parse(&[], Epoch(3), 64), Parsed::End));
}

#[test]
fn a_file_header_names_its_place_and_schema() {
    let schema = log_schema();
    let mut bytes = schema.file_header(Epoch(3), 4096);
    let len = bytes.len();
    bytes.extend_from_slice(&[9; 100]);
    assert_eq!(schema.parse_file_header(&bytes, Epoch(3), 4096), FileHeader::Whole { len });
    assert!(matches!(schema.parse_file_header(&bytes, Epoch(3), 0), FileHeader::Foreign(_)));
    let other = LogSchema::new(Arc::new(Schema::new(vec![Field::new("id", DataType::Utf8, false)])), table_schema());
    let read = other.expect("no dictionaries").parse_file_header(&bytes, Epoch(3), 4096);
    assert!(matches!(&read, FileHeader::Foreign(why) if why.contains("schema")), "{read:?}");
    for cut in 0..len {
        assert!(matches!(schema.parse_file_header(&bytes[..cut], Epoch(3), 4096), FileHeader::Short(_)), "{cut}");
    }
    bytes[60] ^= 1;
    assert!(matches!(schema.parse_file_header(&bytes, Epoch(3), 4096), FileHeader::Bad(_)));
}

/// A batch of many shapes, so that mutations meet every branch of the decoder.
fn varied() -> (Arc<LogSchema>, Buffer, u32) {
    let batch = rows(&table_schema(), 1, 5);
    let views = StringViewArray::from_iter_values((0..5).map(|i| format!("a view that is out of line, number {i}")));
    let nested = StructArray::new(
        vec![Field::new("v", DataType::Utf8View, true)].into(),
        vec![Arc::new(views) as ArrayRef],
        Some(vec![true, false, true, true, true].into()),
    );
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        columns.push((field.name().clone(), Arc::clone(column)));
    }
    columns.push(("nested".into(), Arc::new(nested)));
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).expect("batch");
    let schema = LogSchema::new(batch.schema(), table_schema()).expect("no dictionaries");
    let encoded = encode(&schema, &batch, None);
    let body = encoded.part_body(0).clone();
    (schema, body, 5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checksums keep damage out; this is what a decoder sees if they did not.
    #[test]
    fn a_mutated_body_is_an_error_and_never_a_panic(
        changes in prop::collection::vec((0_usize..4096, any::<u8>()), 1..6), cut in 0_usize..8,
    ) {
        let (schema, body, rows) = varied();
        let mut bytes = body.to_vec();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - cut * 8);
        if let Ok(batch) = crate::wal::body::decode(&aligned(&bytes), schema.of(FrameKind::Put), rows as usize) {
            prop_assert_eq!(batch.num_rows(), 5);
        }
    }

    #[test]
    fn any_bytes_parse_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&FRAME_MAGIC);
        }
        let _ = parse(&bytes, Epoch(3), 64);
        let _ = log_schema().parse_file_header(&bytes, Epoch(3), 64);
    }
}
