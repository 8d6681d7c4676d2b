use super::*;
use crate::rows_conformance::{Case, FIRST_ROW, check};
use arrow::array::{Float32Array, Int64Array, StringArray};
use std::sync::atomic::AtomicUsize;

#[test]
fn a_memtable_is_a_row_source() {
    for (seed, string_keys, indexed) in [(1, false, u32::MAX), (2, true, 700), (3, true, 0)] {
        let case = Case::new(seed, 1500, string_keys);
        check(&case.memtable(indexed), &case);
    }
}

fn plain_schema() -> TableSchema {
    crate::schema! { key id: Int64, text: Utf8, vector v: [f32; 4] l2 }.expect("valid")
}

fn batch(schema: &TableSchema, first: i64, rows: usize) -> RecordBatch {
    let ids = Int64Array::from_iter_values(first..first + rows as i64);
    let texts = StringArray::from_iter_values((0..rows).map(|row| format!("text {row}")));
    let values = (0..rows * 4).map(|i| (first * 4) as f32 + i as f32);
    let DataType::FixedSizeList(item, dim) = schema.stored().field(2).data_type() else { panic!("vectors") };
    let values = Arc::new(Float32Array::from_iter_values(values));
    let vectors = arrow::array::FixedSizeListArray::new(Arc::clone(item), *dim, values, None);
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(texts), Arc::new(vectors)];
    RecordBatch::try_new(Arc::clone(schema.stored()), columns).expect("in the schema")
}

fn write(memtable: &Memtable, first: i64, rows: usize) {
    let schema = memtable.schema().clone();
    let prepared = Prepared::new(&schema, vec![batch(&schema, first, rows)]).expect("prepares");
    memtable.link(prepared, Seq(first as u64 + 1), PubNo(first as u64 + 1));
    memtable.pack_if_due().expect("packs");
}

fn memtable() -> Memtable {
    Memtable::new(plain_schema(), Arc::default(), FIRST_ROW).expect("valid")
}

#[test]
fn rows_that_come_singly_are_packed_into_chunks() {
    let memtable = memtable();
    (0..10_000).for_each(|row| write(&memtable, row, 1));
    let blocks = memtable.blocks.directory.read().blocks.len();
    assert!(blocks < 2 + 64 + 64, "{blocks} blocks hold 10,000 rows");
    let read = memtable.read(0..10_000, &[0]).expect("reads");
    assert_eq!(read, batch(memtable.schema(), 0, 10_000).project(&[0]).expect("one column"));
    let seqs = memtable.seqs(&[0, 4_095, 4_096, 9_999]).expect("has seqs");
    assert_eq!(seqs, [Seq(1), Seq(4_096), Seq(4_097), Seq(10_000)]);
}

/// Fills columns of `{ id: Int64, text: Utf8 }` as an appender does.
fn fill(columns: &mut [ColumnBuffer], first: i64, rows: i64) {
    for id in first..first + rows {
        columns[0].push(&id.to_le_bytes());
        match id % 5 {
            0 => columns[1].push_null(),
            _ => columns[1].push(format!("text {id}").as_bytes()),
        }
    }
}

/// What [`fill`] makes of the ids.
fn filled(ids: std::ops::Range<i64>) -> [ArrayRef; 2] {
    let texts = StringArray::from_iter(ids.clone().map(|id| (id % 5 != 0).then(|| format!("text {id}"))));
    [Arc::new(Int64Array::from_iter_values(ids)), Arc::new(texts)]
}

fn two_columns() -> [ColumnBuffer; 2] {
    let pool = Arc::new(ChunkPool::new(0));
    [Layout::Fixed(8), Layout::Offsets32].map(|layout| ColumnBuffer::new(layout, 1 << 20, &pool))
}

/// Rows of `{ id: Int64, text: Utf8 }` as an appender commits them.
fn appended(schema: &TableSchema, columns: &mut [ColumnBuffer], first: i64, rows: i64) -> Prepared {
    fill(columns, first, rows);
    let split = columns.iter_mut().map(|column| Some(column.split())).collect();
    Prepared::of_appender(schema, rows as u32, split, None).expect("prepares")
}

#[test]
fn appended_batches_are_packed_once_if_they_are_small_and_stay_if_they_are_not() {
    let schema = crate::schema! { id: Int64, text: Utf8 }.expect("valid");
    let memtable = Memtable::new(schema.clone(), Arc::default(), FIRST_ROW).expect("valid");
    let mut columns = two_columns();
    let sizes = std::iter::repeat_n(1, 1_500).chain([100, 3, 16, 1, 1]);
    let mut first = 0;
    for rows in sizes {
        memtable.link(appended(&schema, &mut columns, first, rows), Seq(first as u64 + 1), PubNo(first as u64 + 1));
        memtable.pack_if_due().expect("packs");
        first += rows;
    }
    let sizes: Vec<_> = memtable.blocks.directory.read().blocks.iter().map(|block| block.rows).collect();
    assert_eq!(sizes, [512, 512, 476, 100, 3, 16, 1, 1]);
    let all = memtable.read(0..first as u32, &[0, 1]).expect("reads");
    assert_eq!(all.columns(), filled(0..first));
    let seqs = memtable.seqs(&[0, 511, 512, 1_499, 1_500, 1_620]).expect("has seqs");
    assert_eq!(seqs, [1, 512, 513, 1_500, 1_501, 1_621].map(Seq));
    let data: u64 = memtable.blocks.directory.read().blocks.iter().map(|block| block.bytes.data).sum();
    assert_eq!(memtable.blocks.memory().data, data, "what was packed is let go");
}

#[test]
fn small_commits_gather_in_one_block_until_somebody_reads() {
    let schema = crate::schema! { id: Int64, text: Utf8 }.expect("valid");
    let memtable = Memtable::new(schema.clone(), Arc::default(), FIRST_ROW).expect("valid");
    let mut columns = two_columns();
    let mut first = 0;
    let sizes = || memtable.blocks.directory.read().blocks.iter().map(|block| block.rows).collect::<Vec<_>>();
    let gather = |first: &mut i64, columns: &mut [ColumnBuffer], rows: i64| {
        fill(columns, *first, rows);
        memtable.gather(columns, rows as u32, Seq(*first as u64 + 1), PubNo(*first as u64 + 1));
        columns.iter_mut().for_each(ColumnBuffer::clear);
        *first += rows;
    };
    // A chunk's worth in commits of one row and a few, then some that nobody reads.
    while first < 4_200 {
        let rows = 1 + first % 3;
        gather(&mut first, &mut columns, rows);
    }
    assert_eq!(sizes(), [4_096], "full, and the rest gathers");
    assert_eq!(memtable.read(0..4_096, &[0, 1]).expect("reads").columns(), filled(0..4_096));
    assert_eq!(sizes(), [4_096], "nobody asked for the rest");
    let last = first as u32 - 1;
    let wanted: ArrayRef = Arc::new(Int64Array::from(vec![i64::from(last), 7]));
    assert_eq!(memtable.take(&[last, 7], &[0]).expect("takes").columns(), [wanted]);
    assert_eq!(sizes(), [4_096, last + 1 - 4_096]);
    // A batch that is linked follows those that were copied before it.
    gather(&mut first, &mut columns, 2);
    memtable.link(appended(&schema, &mut columns, first, 20), Seq(first as u64 + 1), PubNo(first as u64 + 1));
    first += 20;
    gather(&mut first, &mut columns, 3);
    memtable.seal();
    assert_eq!(sizes()[2..], [2, 20, 3]);
    assert_eq!(memtable.read(0..first as u32, &[0, 1]).expect("reads").columns(), filled(0..first));
    let seqs = memtable.seqs(&[0, 4_095, 4_096, first as u32 - 4, first as u32 - 1]).expect("has seqs");
    assert_eq!(seqs, [1, 4_096, 4_097, first as u64 - 3, first as u64].map(Seq));
    let counted: u64 = memtable.blocks.directory.read().blocks.iter().map(|block| block.bytes.data).sum();
    let held = memtable.blocks.memory().data;
    assert!(held >= counted && held <= counted + (2 << 20), "{held} counted for {counted} and what chunks leave over");
}

#[test]
fn small_batches_between_big_ones_are_packed_as_well() {
    let memtable = memtable();
    let mut rows = 0;
    for size in [1, 1, 300, 2, 256, 256, 5, 1, 400] {
        write(&memtable, rows, size);
        rows += size as i64;
    }
    let directory = memtable.blocks.directory.read();
    let sizes: Vec<_> = directory.blocks.iter().map(|b| b.rows).collect();
    assert_eq!(sizes, [2, 300, 2, 256, 256, 6, 400]);
    assert_eq!(directory.due(), None);
}

#[test]
fn a_packed_block_lets_its_frames_go() {
    let memtable = memtable();
    let before = |memtable: &Memtable| memtable.blocks.memory().data;
    let schema = memtable.schema().clone();
    // One allocation holds a wide frame of which the row needs a few bytes.
    let wide = batch(&schema, 0, 50_000);
    for row in 0..64 {
        let part = wide.slice(row, 1);
        let prepared = Prepared::new(&schema, vec![part]).expect("prepares");
        memtable.link(prepared, Seq(row as u64 + 1), PubNo(row as u64 + 1));
    }
    assert!(before(&memtable) > 1 << 20, "views pin what they view");
    memtable.pack_if_due().expect("packs");
    assert!(before(&memtable) < 16 << 10, "{} bytes", before(&memtable));
}

#[test]
fn index_workers_share_the_rows() {
    let memtable = memtable();
    (0..4).for_each(|n| write(&memtable, n * 500, 500));
    assert_eq!(memtable.indexed(), 0);
    let inserted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    match memtable.index_some(7) {
                        0 => break,
                        n => inserted.fetch_add(n as usize, Ordering::Relaxed),
                    };
                }
            });
        }
    });
    assert_eq!(inserted.into_inner(), 2000);
    assert_eq!(memtable.indexed(), 2000);
}

#[test]
fn a_memtable_without_vectors_is_indexed_as_it_is() {
    let schema = crate::schema! { key id: Int64, n: Int32 }.expect("valid");
    let memtable = Memtable::new(schema.clone(), Arc::default(), FIRST_ROW).expect("valid");
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(vec![1, 2])), Arc::new(arrow::array::Int32Array::from(vec![3, 4]))];
    let rows = RecordBatch::try_new(Arc::clone(schema.stored()), columns).expect("in the schema");
    let prepared = Prepared::new(&schema, vec![rows]).expect("prepares");
    memtable.link(prepared, Seq(1), PubNo(1));
    assert_eq!((memtable.indexed(), memtable.index_some(10)), (2, 0));
}

#[test]
fn the_span_covers_rows_and_deletes() {
    let memtable = memtable();
    memtable.cover(Seq(3), Seq(4), PubNo(2));
    let prepared = Prepared::new(memtable.schema(), vec![batch(memtable.schema(), 0, 3)]);
    memtable.link(prepared.expect("prepares"), Seq(5), PubNo(3));
    memtable.cover(Seq(8), Seq(8), PubNo(4));
    assert_eq!((memtable.first_seq(), memtable.last_seq()), (Seq(3), Seq(8)));
    let publications = (memtable.first_publication(), memtable.last_publication());
    assert_eq!(publications, (PubNo(2), PubNo(4)));
}

#[test]
fn reads_see_whole_rows_while_rows_are_written_and_packed() {
    let memtable = memtable();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..5_000).for_each(|row| write(&memtable, row, 1)));
        for _ in 0..2 {
            scope.spawn(|| {
                while memtable.rows() < 5_000 {
                    let rows = memtable.rows();
                    let read = memtable.read(0..rows, &[0, 2]).expect("reads");
                    let expected = batch(memtable.schema(), 0, rows as usize);
                    assert_eq!(read, expected.project(&[0, 2]).expect("two columns"));
                    memtable.index_some(50);
                }
            });
        }
    });
}
