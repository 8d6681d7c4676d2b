//! Tables and chunks against the rows that went in.

use super::*;
use crate::error::GraphError;
use crate::params::Metric;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn rows(count: usize, dim: usize) -> Vec<f32> {
    (0..count * dim).map(|i| (i % 251) as f32 + 1.0).collect()
}

#[test]
fn rows_come_back_by_id_however_they_were_appended() {
    let table = VectorTable::new(3, Metric::Cosine).expect("a dimension");
    let all = rows(3_000, 3);
    let mut at = 0;
    for (n, size) in [1, 1, 700, 0, 1, 1_500, 796, 1].into_iter().enumerate() {
        let part = all[at * 3..(at + size) * 3].to_vec();
        let block = if n % 2 == 0 {
            VectorBlock::copied(part, 3, Metric::Cosine, None)
        } else {
            VectorBlock::borrowed(part, 3, Metric::Cosine, None)
        };
        let first = table.append(block.expect("whole rows")).expect("room");
        assert_eq!(first as usize, at);
        at += size;
    }
    assert_eq!(table.len(), 3_000);
    for id in 0..3_000u32 {
        let row = &all[id as usize * 3..][..3];
        assert_eq!(table.get(id), Some(row));
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        assert!((table.inv_norm(id) * norm - 1.0).abs() < 1e-6);
    }
    assert_eq!(table.get(3_000), None);
    assert_eq!(table.get(u32::MAX), None);
}

#[test]
fn a_null_row_has_an_id_and_no_vector() {
    let table = VectorTable::new(2, Metric::L2).expect("a dimension");
    for copied in [false, true] {
        let valid = |row: usize| row != 1;
        let values = vec![1.0f32, 2.0, f32::NAN, f32::NAN, 5.0, 6.0];
        let block = if copied {
            VectorBlock::copied(values, 2, Metric::L2, Some(&valid))
        } else {
            VectorBlock::borrowed(values, 2, Metric::L2, Some(&valid))
        };
        let first = table.append(block.expect("whole rows")).expect("room");
        assert_eq!(table.get(first), Some(&[1.0, 2.0][..]));
        assert_eq!(table.get(first + 1), None);
        assert_eq!(table.get(first + 2), Some(&[5.0, 6.0][..]));
    }
    assert_eq!(table.len(), 6);
}

#[test]
fn borrowed_rows_stay_where_they_are_and_keep_their_owner() {
    struct Owner(Vec<f32>, Arc<AtomicBool>);
    impl AsRef<[f32]> for Owner {
        fn as_ref(&self) -> &[f32] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let owner = Owner(rows(300, 4), Arc::clone(&dropped));
    let address = owner.0.as_ptr();
    let table = VectorTable::new(4, Metric::Dot).expect("a dimension");
    let block = VectorBlock::borrowed(owner, 4, Metric::Dot, None).expect("whole rows");
    table.append(block).expect("room");
    assert_eq!(table.get(0).map(<[f32]>::as_ptr), Some(address));
    assert_eq!(table.memory_bytes().arena, 0);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(table);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn single_rows_cost_little_more_than_themselves() {
    let dim = 100;
    let table = VectorTable::new(dim, Metric::Cosine).expect("a dimension");
    for row in rows(10_000, dim as usize).chunks(dim as usize) {
        let block = VectorBlock::copied(row.to_vec(), dim, Metric::Cosine, None);
        table.append(block.expect("a row")).expect("room");
    }
    let bytes = table.memory_bytes();
    let row_bytes = 10_000 * dim as usize * 4;
    assert!(bytes.bookkeeping <= 10_000 * 13, "{bytes:?}");
    assert!(bytes.arena >= row_bytes && bytes.arena <= row_bytes + (256 << 10) + row_bytes / 100);
    let one = VectorTable::<f32>::new(8, Metric::L2).expect("a dimension");
    let block = VectorBlock::copied(vec![0.0f32; 8], 8, Metric::L2, None);
    one.append(block.expect("a row")).expect("room");
    assert!(one.memory_bytes().arena <= 8 << 10, "a small table stays small");
}

#[test]
fn blocks_that_do_not_fit_the_table_are_refused() {
    let table = VectorTable::<f32>::new(4, Metric::L2).expect("a dimension");
    let block = VectorBlock::copied(vec![0.0f32; 8], 4, Metric::Dot, None).expect("two rows");
    let refused = table.append(block).expect_err("another metric").to_string();
    assert_eq!(refused, "the block of vectors has dimension 4, Dot, but the graph has dimension 4, L2");
    let ragged = VectorBlock::copied(vec![0.0f32; 7], 4, Metric::L2, None);
    assert!(matches!(ragged, Err(GraphError::Length { expected: 4, got: 7, .. })));
    assert_eq!(table.len(), 0);
}

#[test]
fn readers_see_whole_rows_while_the_table_grows() {
    let table = VectorTable::new(16, Metric::Cosine).expect("a dimension");
    let count = if cfg!(miri) { 40 } else { 20_000u32 };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while table.len() < count {
                    let len = table.len();
                    for id in len.saturating_sub(50)..len {
                        let row = table.row(id).expect("below the length");
                        assert!(row.values.iter().all(|v| *v == id as f32 + 1.0));
                        assert!((row.inv_norm * 4.0 * (id as f32 + 1.0) - 1.0).abs() < 1e-5);
                    }
                    std::thread::yield_now();
                }
            });
        }
        for id in 0..count {
            let row = vec![id as f32 + 1.0; 16];
            let block = VectorBlock::copied(row, 16, Metric::Cosine, None).expect("a row");
            table.append(block).expect("room");
        }
    });
}

#[test]
fn chunks_are_read_by_id_with_their_nulls_and_norms() {
    let all = rows(10, 3);
    let chunks = || all.chunks(4 * 3).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let norms: Vec<u8> = (0..10).flat_map(|id| (id as f32).to_le_bytes()).collect();
    let bitmap = vec![0b1111_1011u8, 0b11];
    for nulls in [Nulls::validity(bitmap), Nulls::ids(vec![2])] {
        let vectors = ChunkedVectors::new(3, 4, chunks(), nulls)
            .and_then(|vectors| vectors.with_inv_norms(norms.clone()))
            .expect("lengths that fit");
        assert_eq!((vectors.len(), vectors.dim()), (10, 3));
        for id in 0..10 {
            let row = (id != 2).then(|| &all[id as usize * 3..][..3]);
            assert_eq!(vectors.get(id), row);
            assert_eq!(vectors.inv_norm(id), if id == 2 { 0.0 } else { id as f32 });
        }
        assert_eq!(vectors.get(10), None);
    }
}

#[test]
fn chunks_of_wrong_length_are_refused() {
    let refuse = |chunks: Vec<Vec<f32>>, nulls| {
        ChunkedVectors::new(3, 4, chunks, nulls).err().expect("a wrong length").to_string()
    };
    assert_eq!(refuse(vec![rows(3, 3), rows(1, 3)], Nulls::none()), "expected 12 elements (a chunk of vectors), got 9");
    assert_eq!(
        refuse(vec![rows(4, 3), rows(5, 3)], Nulls::none()),
        "expected 12 elements (the last chunk of vectors), got 15"
    );
    assert_eq!(
        refuse(vec![rows(4, 3), rows(4, 3), rows(1, 3)], Nulls::validity(vec![0u8])),
        "expected 2 elements (the validity bitmap, in bytes), got 1"
    );
    let vectors = ChunkedVectors::new(3, 4, vec![rows(2, 3)], Nulls::none()).expect("two rows");
    assert!(vectors.with_inv_norms(vec![0u8; 7]).is_err());
}
