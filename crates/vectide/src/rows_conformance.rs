//! One suite for every [`RowSource`]: the same rows, asked the same questions, compared with a plain model.
//!
//! [`Case`] holds the rows as one batch plus what each publication did; a tier's tests put them into their source and
//! call [`check`]. Any Arrow type that a table may carry along is among the columns.

use crate::ends::Ends;
use crate::ids::{PubNo, RowId, Seq};
use crate::keys::{KeyArray, KeyProbe};
use crate::memtable::{Memtable, Prepared};
use crate::rows::{Hit, RowSource, VectorQuery, Visible};
use crate::schema::{Metric, TableSchema};
use arrow::array::builder::*;
use arrow::array::*;
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type, Int32Type, Schema};
use arrow::record_batch::RecordBatch;
use half::f16;
use std::sync::Arc;

/// Rows, and how they were published.
pub(crate) struct Case {
    pub(crate) schema: TableSchema,
    /// All rows in the stored schema.
    pub(crate) rows: RecordBatch,
    pub(crate) seqs: Vec<Seq>,
    /// Row counts after each publication.
    pub(crate) limits: Vec<u32>,
    pub(crate) ends: Arc<Ends>,
}

/// What the row file's first row is called.
pub(crate) const FIRST_ROW: RowId = RowId(1000);

/// A generator (splitmix64): the same seed gives the same case.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }
}

fn strings(n: usize, random: &mut Random) -> Vec<Option<String>> {
    let word = |random: &mut Random| format!("µ{}", "x".repeat(random.below(40)));
    (0..n).map(|_| (random.below(5) > 0).then(|| word(random))).collect()
}

fn vectors<T>(n: usize, dim: i32, random: &mut Random, of: impl Fn(f32) -> T::Native) -> ArrayRef
where
    T: arrow::datatypes::ArrowPrimitiveType,
    PrimitiveBuilder<T>: ArrayBuilder,
{
    let mut builder = FixedSizeListBuilder::new(PrimitiveBuilder::<T>::new(), dim);
    for _ in 0..n {
        let valid = random.below(9) > 0;
        for _ in 0..dim {
            builder.values().append_value(of(random.unit() + 0.001));
        }
        builder.append(valid);
    }
    Arc::new(builder.finish())
}

fn nested(n: usize, random: &mut Random) -> Vec<(&'static str, ArrayRef)> {
    let mut list = ListBuilder::new(Int32Builder::new());
    let mut view_list = LargeListBuilder::new(StringViewBuilder::new());
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    let point = || {
        let fields = vec![Field::new("x", DataType::Int32, true), Field::new("name", DataType::Utf8, true)];
        StructBuilder::from_fields(fields, 0)
    };
    let push = |builder: &mut StructBuilder, random: &mut Random| {
        let value = random.below(3) > 0;
        let x = builder.field_builder::<Int32Builder>(0).expect("x");
        x.append_option(value.then_some(random.below(100) as i32));
        let name = builder.field_builder::<StringBuilder>(1).expect("name");
        name.append_value("n".repeat(random.below(9)));
        builder.append(random.below(4) > 0);
    };
    let mut structs = point();
    let mut deep = ListBuilder::new(point());
    for _ in 0..n {
        for _ in 0..random.below(4) {
            list.values().append_option(Some(random.below(1000) as i32));
            view_list.values().append_value("v".repeat(random.below(30)));
            map.keys().append_value(format!("k{}", random.below(50)));
            map.values().append_value(random.below(50) as i32);
            push(deep.values(), random);
        }
        list.append(random.below(4) > 0);
        view_list.append(random.below(4) > 0);
        map.append(random.below(4) > 0).expect("keys and values in step");
        deep.append(random.below(4) > 0);
        push(&mut structs, random);
    }
    vec![
        ("list", Arc::new(list.finish())),
        ("view_list", Arc::new(view_list.finish())),
        ("map", Arc::new(map.finish())),
        ("struct", Arc::new(structs.finish())),
        ("deep", Arc::new(deep.finish())),
    ]
}

fn riders(n: usize, random: &mut Random) -> Vec<(&'static str, ArrayRef)> {
    let texts = strings(n, random);
    let ints: Vec<Option<i64>> = (0..n).map(|_| (random.below(6) > 0).then(|| random.next() as i64 >> 20)).collect();
    let bytes: Vec<Option<&[u8]>> = texts.iter().map(|t| t.as_ref().map(|t| t.as_bytes())).collect();
    let decimal = Decimal128Array::from_iter(ints.iter().map(|v| v.map(i128::from)));
    let decimal = decimal.with_precision_and_scale(30, 4).expect("fits");
    let mut runs = StringRunBuilder::<Int32Type>::new();
    (0..n).for_each(|row| runs.append_value(format!("run {}", row / 3)));
    let fixed =
        FixedSizeBinaryArray::try_from_sparse_iter_with_size(ints.iter().map(|v| v.map(|v| v.to_le_bytes())), 8);
    let mut columns: Vec<(&'static str, ArrayRef)> = vec![
        ("int", Arc::new(Int64Array::from(ints.clone()))),
        ("small", Arc::new(Int8Array::from_iter(ints.iter().map(|v| v.map(|v| v as i8))))),
        ("flag", Arc::new(BooleanArray::from_iter(ints.iter().map(|v| v.map(|v| v % 2 == 0))))),
        ("text", Arc::new(StringArray::from(texts.clone()))),
        ("large", Arc::new(LargeStringArray::from(texts.clone()))),
        ("view", Arc::new(StringViewArray::from_iter(texts.iter().map(|t| t.as_deref())))),
        ("bytes", Arc::new(BinaryArray::from(bytes.clone()))),
        ("bytes_view", Arc::new(BinaryViewArray::from_iter(bytes.iter().copied()))),
        ("fixed", Arc::new(fixed.expect("eight bytes"))),
        ("time", Arc::new(TimestampMicrosecondArray::from(ints.clone()).with_timezone("UTC"))),
        ("decimal", Arc::new(decimal)),
        ("nothing", Arc::new(NullArray::new(n))),
        ("runs", Arc::new(runs.finish())),
    ];
    columns.extend(nested(n, random));
    columns
}

impl Case {
    /// `n` rows in batches of mixed sizes; keys repeat, so that most rows get replaced in the long run.
    pub(crate) fn new(seed: u64, n: usize, string_keys: bool) -> Self {
        let mut random = Random(seed);
        let ids: Vec<i64> = (0..n).map(|_| random.below(n) as i64).collect();
        let key: ArrayRef = if string_keys {
            Arc::new(StringArray::from_iter_values(ids.iter().map(|id| format!("key {id}"))))
        } else {
            Arc::new(Int64Array::from(ids))
        };
        let mut columns = vec![
            ("id", key),
            ("a", vectors::<Float32Type>(n, 8, &mut random, |v| v)),
            ("b", vectors::<Float16Type>(n, 5, &mut random, f16::from_f32)),
            ("c", vectors::<Float32Type>(n, 4, &mut random, |v| v)),
        ];
        columns.extend(riders(n, &mut random));
        let fields: Vec<Field> =
            columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), *name != "id")).collect();
        let schema = TableSchema::builder(Schema::new(fields))
            .key("id")
            .vector("a", Metric::L2)
            .vector("b", Metric::Cosine)
            .vector("c", Metric::Dot)
            .build()
            .expect("valid");
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        let rows = RecordBatch::try_new(Arc::clone(schema.stored()), columns).expect("in the schema");
        let mut limits = vec![0];
        while *limits.last().expect("not empty") < n as u32 {
            let size = [1, 1, 3, 40, 300][random.below(5)];
            limits.push((limits.last().expect("not empty") + size).min(n as u32));
        }
        // Deletes between the batches take seqs as well.
        let mut seqs = Vec::new();
        let mut next = 5;
        for pair in limits.windows(2) {
            next += random.below(3) as u64;
            seqs.extend((0..pair[1] - pair[0]).map(|row| Seq(next + u64::from(row))));
            next += u64::from(pair[1] - pair[0]);
        }
        let ends = Arc::new(Ends::default());
        Self { schema, rows, seqs, limits, ends }
    }

    /// The keys of all rows.
    pub(crate) fn keys(&self) -> KeyArray {
        KeyArray::new(self.rows.column(0)).expect("a key column")
    }

    /// A memtable that the case was written to; the rows below `indexed` are in its graphs.
    pub(crate) fn memtable(&self, indexed: u32) -> Memtable {
        let memtable = Memtable::new(self.schema.clone(), Arc::clone(&self.ends), FIRST_ROW).expect("valid");
        for (publication, pair) in (1..).zip(self.limits.windows(2)) {
            let size = (pair[1] - pair[0]) as usize;
            let part = self.rows.slice(pair[0] as usize, size);
            let prepared = Prepared::new(&self.schema, vec![part]).expect("in the schema");
            let first = memtable.link(prepared, self.seqs[pair[0] as usize], PubNo(publication));
            assert_eq!(first, pair[0]);
            let keys = KeyArray::new(self.rows.column(0).slice(pair[0] as usize, size).as_ref()).expect("a key column");
            memtable.index_keys(&keys, &keys.hashes(), first, |_, older| {
                if let Some(older) = older {
                    self.ends.set(older, PubNo(publication));
                }
            });
            memtable.pack_if_due().expect("packs");
            let room = indexed.saturating_sub(memtable.indexed());
            memtable.index_some(room);
        }
        memtable
    }
}

pub(crate) fn probe(keys: &KeyArray, row: usize) -> KeyProbe<'_> {
    KeyProbe { keys, row, hash: keys.hash(row) }
}

/// Asks a source everything and compares with the case.
pub(crate) fn check(source: &dyn RowSource, case: &Case) {
    let n = case.rows.num_rows() as u32;
    assert_eq!(source.rows(), n);
    check_find(source, case);
    check_rows(source, case);
    for (publication, &below) in case.limits.iter().enumerate() {
        if publication % (case.limits.len() / 4 + 1) == 1 || below == n {
            let at = PubNo(publication as u64);
            let visible = Visible { ends: &case.ends, at, below };
            (0..3).for_each(|column| check_search(source, case, column, &visible));
        }
    }
}

fn check_find(source: &dyn RowSource, case: &Case) {
    let keys = case.keys();
    let n = source.rows();
    for row in (0..n as usize).step_by(n as usize / 200 + 1) {
        for below in [0, row as u32, row as u32 + 1, n / 2, n] {
            let found = source.find(&probe(&keys, row), below).expect("finds");
            let newest = (0..below).rev().find(|&at| keys.equals(at as usize, &keys, row));
            assert_eq!(found, newest, "key of row {row} below {below}");
        }
    }
    let absent: ArrayRef = match case.rows.column(0).data_type() {
        DataType::Utf8 => Arc::new(StringArray::from_iter_values((0..500).map(|i| format!("absent {i}")))),
        _ => Arc::new(Int64Array::from_iter_values((0..500).map(|i| -1 - i))),
    };
    let absent = KeyArray::new(&absent).expect("keys");
    for row in 0..absent.len() {
        assert_eq!(source.find(&probe(&absent, row), n).expect("looks"), None);
    }
}

fn check_rows(source: &dyn RowSource, case: &Case) {
    let n = source.rows() as usize;
    let mut random = Random(7);
    let all: Vec<usize> = (0..case.rows.num_columns()).collect();
    let one = [case.rows.num_columns() - 1, 2];
    for projection in [&all[..], &one, &[]] {
        let expected = case.rows.project(projection).expect("in range");
        for count in [0, 1, 10, 300] {
            let offsets: Vec<u32> = (0..count).map(|_| random.below(n) as u32).collect();
            let taken = source.take(&offsets, projection).expect("takes");
            assert_eq!(taken.schema(), expected.schema());
            assert_eq!(taken.num_rows(), count);
            for (at, &offset) in offsets.iter().enumerate() {
                assert_rows_equal(&taken.slice(at, 1), &expected.slice(offset as usize, 1), offset);
            }
            let seqs: Vec<_> = offsets.iter().map(|&o| case.seqs[o as usize]).collect();
            assert_eq!(source.seqs(&offsets).expect("has seqs"), seqs);
        }
        for (from, to) in [(0, n), (n / 2, n / 2), (n / 3, n / 2), (n - 1, n)] {
            let read = source.read(from as u32..to as u32, projection).expect("reads");
            assert_eq!(read.num_rows(), to - from);
            assert_rows_equal(&read, &expected.slice(from, to - from), from as u32);
        }
    }
    assert!(source.take(&[n as u32], &all).is_err(), "no row behind the last");
    assert!(source.seqs(&[n as u32]).is_err());
    assert!(source.read(0..n as u32 + 1, &all).is_err());
}

fn assert_rows_equal(got: &RecordBatch, expected: &RecordBatch, row: u32) {
    for (at, field) in expected.schema().fields().iter().enumerate() {
        let (got, expected) = (got.column(at), expected.column(at));
        assert_eq!(got.as_ref(), expected.as_ref(), "column {} at row {row}", field.name());
    }
}

/// The visible rows nearest to `query` by a plain scan in f64.
fn brute_force(case: &Case, column: usize, query: &[f32], visible: &Visible<'_>) -> Vec<(f64, u32)> {
    let vector = &case.schema.vectors()[column];
    let list = case.rows.column(vector.index).as_fixed_size_list();
    let elements = arrow::compute::cast(list.values(), &DataType::Float64).expect("floats");
    let elements = elements.as_primitive::<Float64Type>().values();
    let mut all = Vec::new();
    for row in (0..visible.below).filter(|&row| visible.sees(row) && list.is_valid(row as usize)) {
        let values = &elements[row as usize * query.len()..][..query.len()];
        let pairs = || values.iter().zip(query).map(|(a, b)| (*a, f64::from(*b)));
        let dot: f64 = pairs().map(|(a, b)| a * b).sum();
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
        let distance = match vector.metric {
            Metric::L2 => pairs().map(|(a, b)| (a - b) * (a - b)).sum(),
            Metric::Dot => 1.0 - dot,
            Metric::Cosine => 1.0 - dot / norm(&mut values.iter().copied()) / norm(&mut pairs().map(|p| p.1)),
        };
        all.push((distance, row));
    }
    all.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
    all
}

fn check_search(source: &dyn RowSource, case: &Case, column: usize, visible: &Visible<'_>) {
    let dim = case.schema.vectors()[column].dim as usize;
    let n = case.rows.num_rows();
    let mut random = Random(visible.at.0);
    for k in [1, 10, n] {
        let vector: Vec<f32> = (0..dim).map(|_| random.unit() + 0.001).collect();
        let expected = brute_force(case, column, &vector, visible);
        let query = VectorQuery { column, vector: &vector, k, ef: n };
        let scanned = source.scan_nearest(&query, visible).expect("scans");
        assert_near(&scanned, &expected, k);
        let (found, _) = source.search(&query, visible).expect("searches");
        // A beam as wide as the table finds everything.
        assert_eq!(found, scanned, "graph against scan, column {column}, k {k}");
    }
}

fn assert_near(hits: &[Hit], expected: &[(f64, u32)], k: usize) {
    assert_eq!(hits.len(), k.min(expected.len()));
    for (hit, (distance, _)) in hits.iter().zip(expected) {
        // By distance, not by row: close rows may change places in f32.
        assert!((f64::from(hit.distance) - distance).abs() < 1e-3, "{hit:?} against {distance}");
        assert!(expected.iter().any(|e| e.1 == hit.id), "row {} is not visible", hit.id);
    }
}
