//! A base over real segments: what it finds, what a reopened one finds, and what damage does to it.

use super::*;
use crate::ids::RowId;
use crate::manifest::SegmentMeta;
use crate::memtable::{Memtable, Prepared};
use crate::rows::RowSource;
use crate::store::{StoreOptions, open_uri};
use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use std::collections::BTreeSet;

const DIM: usize = 16;
const ROWS: u32 = 900;

fn schema() -> TableSchema {
    let made = crate::schema! { key id: Int64, vector vec: [f32; 16] l2 };
    made.expect("valid")
}

fn vector(row: u64) -> Vec<f32> {
    let mut state = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..DIM)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 24) as f32
        })
        .collect()
}

fn ground() -> BaseGround {
    let store = open_uri("memory://", &StoreOptions::default()).expect("memory");
    let paths = ShardPaths::new("00112233445566778899aabbccddeeff", crate::ids::ShardId(0)).expect("an id");
    BaseGround { store, paths, schema: schema(), cache: NodeCache::new(1 << 20) }
}

/// Segment `n`, whose rows are numbered from `n * ROWS` on.
async fn segment(ground: &BaseGround, n: u64) -> (SegmentMeta, Arc<Segment>) {
    let first = n * u64::from(ROWS);
    let memtable = Arc::new(Memtable::new(schema(), Arc::default(), RowId(first)).expect("valid"));
    let ids: Int64Array = (first..first + u64::from(ROWS)).map(|id| id as i64).collect();
    let values: Vec<f32> = (first..first + u64::from(ROWS)).flat_map(vector).collect();
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let list = FixedSizeListArray::new(item, DIM as i32, Arc::new(Float32Array::from(values)), None);
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(list)];
    let rows = RecordBatch::try_new(Arc::clone(schema().stored()), columns).expect("in the schema");
    let prepared = Prepared::new(&schema(), vec![rows]).expect("prepared");
    memtable.link(prepared, crate::ids::Seq(first + 1), PubNo(n + 1));
    memtable.index_some(ROWS);
    memtable.seal();
    let id = format!("1-{}", n + 1);
    let dir = ground.paths.segment_dir(&id);
    let meta = crate::flush::build::build_segment(&ground.store, &dir, &id, &memtable, &[]).await.expect("builds");
    let opened = Segment::open(&ground.store, &dir, &meta, &schema()).await.expect("opens");
    (meta, Arc::new(opened))
}

async fn begun(ground: &BaseGround, segment: &Arc<Segment>) -> Base {
    let new = write_seed(ground, "1-100", Arc::clone(segment)).await.expect("writes");
    let adopted = AdoptedMeta {
        id: segment.id().to_owned(),
        first_node: 0,
        horizon: PubNo(0),
        inserted: segment.rows(),
        is_complete: true,
    };
    let meta = BaseMeta {
        id: "1-100".into(),
        version: 0,
        folded: 0,
        file: Some(new.meta),
        deltas: Vec::new(),
        segments: vec![adopted],
    };
    Base::open(ground, &meta, &|_| Some(Arc::clone(segment)), None).await.expect("opens")
}

/// Merges a whole segment in steps of `step`.
async fn merged(ground: &BaseGround, base: Base, segment: &Arc<Segment>, step: usize) -> Base {
    let adopted = AdoptedMeta {
        id: segment.id().to_owned(),
        first_node: base.next_first(),
        horizon: PubNo(0),
        inserted: 0,
        is_complete: false,
    };
    let mut base = base.with_segment(&adopted, Arc::clone(segment)).expect("fits");
    let order = Base::order(segment, 1, &|_| false);
    assert_eq!(order[0].iter().collect::<BTreeSet<_>>().len(), segment.rows() as usize);
    for rows in order[0].chunks(step) {
        let changes = base.step(&[rows], &mut || Ok(())).expect("inserts");
        let id = format!("1-{}", 101 + base.meta.version);
        let new = write_delta(ground, &id, Arc::new(changes.clone())).await.expect("writes");
        base = base.after_step(new.meta, new.file, &changes);
        base.publish(&changes);
        let last = base.meta.segments.last_mut().expect("adopted");
        last.inserted += rows.len() as u32;
        last.is_complete = last.inserted == segment.rows();
    }
    base
}

/// The rows nearest to `vector(of)`, by number.
fn nearest(base: &Base, of: u64, accept: &dyn Fn(usize, u32) -> bool) -> Vec<u64> {
    let query = VectorQuery { column: 0, vector: &vector(of), k: 10, ef: 100 };
    let hits = base.search(&query, accept).expect("searches");
    hits.iter().map(|hit| hit.part as u64 * u64::from(ROWS) + u64::from(hit.offset)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_finds_its_own_rows_whatever_came_after_it_and_a_reopened_one_finds_the_same() {
    let ground = ground();
    let segments = [segment(&ground, 0).await.1, segment(&ground, 1).await.1, segment(&ground, 2).await.1];
    let find = |id: &str| segments.iter().find(|segment| segment.id() == id).cloned();
    let first = begun(&ground, &segments[0]).await;
    let second = merged(&ground, first.clone(), &segments[1], 120).await;
    let third = merged(&ground, second.clone(), &segments[2], 200).await;
    let all = |_: usize, _: u32| true;
    for (base, parts) in [(&first, 1), (&second, 2), (&third, 3)] {
        let rows = parts * u64::from(ROWS);
        assert_eq!(base.verify().expect("sound").2, rows);
        let found = (0..rows).step_by(7).filter(|&row| nearest(base, row, &all).first() == Some(&row)).count() as u64;
        assert!(found * 100 >= rows.div_ceil(7) * 99, "{found} of {rows}");
        assert!(nearest(base, rows + 5, &all).iter().all(|&row| row < rows), "a row that came later");
        let only = |part: usize, offset: u32| part == 0 && offset.is_multiple_of(2);
        assert!(nearest(base, 3, &only).iter().all(|&row| row % 2 == 0 && row < u64::from(ROWS)));
    }
    let reopened = Base::open(&ground, &third.meta, &find, None).await.expect("opens");
    let followed = Base::open(&ground, &third.meta, &find, Some(&Arc::new(first.clone()))).await.expect("opens");
    let new = write_fold(&ground, "1-200", Arc::new(third.clone())).await.expect("writes");
    let folded = third.after_fold(new.meta, new.file, third.meta.version);
    let unfolded = Base::open(&ground, &folded.meta, &find, None).await.expect("opens");
    assert!(folded.meta.deltas.is_empty());
    for base in [&reopened, &followed, &folded, &unfolded] {
        assert_eq!(base.verify().expect("sound").2, 3 * u64::from(ROWS));
        assert_eq!(base.nodes(), 3 * u64::from(ROWS));
        for row in 0..100 {
            assert_eq!(nearest(base, row * 31, &all), nearest(&third, row * 31, &all));
        }
    }
    let stats = ground.cache.stats();
    assert!(stats.hits > stats.loads && stats.bytes <= stats.capacity_bytes, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_dirties_what_it_changes_and_following_loads_nothing_else() {
    let ground = ground();
    let segments = [segment(&ground, 0).await.1, segment(&ground, 1).await.1];
    let find = |id: &str| segments.iter().find(|segment| segment.id() == id).cloned();
    let first = Arc::new(begun(&ground, &segments[0]).await);
    // Another process, with a cache of its own, all of whose rows are warm.
    let other = BaseGround { cache: NodeCache::new(1 << 20), ..ground.clone() };
    let theirs = Arc::new(Base::open(&other, &first.meta, &find, None).await.expect("opens"));
    let all = |_: usize, _: u32| true;
    (0..300).for_each(|row| drop(nearest(&theirs, row, &all)));
    let after = merged(&ground, Base::clone(&first), &segments[1], 10_000).await;
    let loads = other.cache.stats().loads;
    let followed = Base::open(&other, &after.meta, &find, Some(&theirs)).await.expect("follows");
    (0..300).for_each(|row| assert_eq!(nearest(&followed, row, &all), nearest(&after, row, &all)));
    let stats = other.cache.stats();
    assert!(stats.loads - loads < 100, "{} rows loaded again", stats.loads - loads);
    assert_eq!(stats.invalidated, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_of_links_are_told_from_sound_ones_and_never_panic() {
    let ground = ground();
    let (_, one) = segment(&ground, 0).await;
    let (_, two) = segment(&ground, 1).await;
    let base = merged(&ground, begun(&ground, &one).await, &two, 300).await;
    let find = |id: &str| [&one, &two].into_iter().find(|segment| segment.id() == id).cloned();
    for file in base.meta.files() {
        let path = format!("{}{}", ground.paths.base_dir(), ShardPaths::links_name(&file.id));
        let sound = ground.store.get(&path).await.expect("is there");
        for at in (0..sound.len()).step_by(sound.len() / 60 + 1) {
            let mut bytes = sound.to_vec();
            bytes[at] ^= 0x55;
            ground.store.put(&path, bytes.into()).await.expect("puts");
            match Base::open(&ground, &base.meta, &find, None).await {
                Err(error) => assert!([crate::ErrorKind::Corrupt, crate::ErrorKind::Invalid].contains(&error.kind())),
                Ok(damaged) => {
                    drop(nearest(&damaged, 17, &|_, _| true));
                    let error = damaged.verify().expect_err("a checksum");
                    assert!(error.message().contains(&path), "{error}");
                }
            }
        }
        ground.store.put(&path, sound).await.expect("puts");
    }
    base.verify().expect("sound again");
    let short = BaseMeta { version: base.meta.version - 1, ..base.meta.clone() };
    assert!(!base.leads_to(&short));
}
