//! What the crash proofs write and read back: a row follows from its key and version, so that every bit can be checked.
//!
//! Shared by the worker that is killed, by the harness that kills it, and by the power cuts. Invariant: two rows of
//! different key or version differ in payload and vector.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vectide::arrow::array::{
    ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use vectide::arrow::datatypes::{DataType, Field, Float32Type, Int64Type, UInt64Type};
use vectide::{MergeOptions, Options, Table, TableSchema, WalOptions};

/// Dimension of the vectors.
pub const DIM: usize = 8;
/// The one table's name.
pub const TABLE: &str = "t";
/// Keys of one writer: `writer * KEYS_STRIDE ..  + KEYS`.
pub const KEYS: i64 = 160;
/// Distance between the first keys of two writers.
pub const KEYS_STRIDE: i64 = 1_000;

/// A small generator (SplitMix64), so that a seed replays.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What one write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Upsert,
    Insert,
    Delete,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Upsert => "u",
            Self::Insert => "n",
            Self::Delete => "d",
        }
    }

    /// Read by the harness, which includes this file; the worker itself only writes.
    #[allow(dead_code, reason = "used where the crash harness includes this file")]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Upsert, Self::Insert, Self::Delete].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// One write: all its keys get `version`, or go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub kind: Kind,
    pub version: u64,
    pub keys: Vec<i64>,
}

impl Op {
    /// The next write of `writer`, which knows the keys that it has `present`.
    pub fn random(rng: &mut Rng, writer: u64, version: u64, present: &BTreeSet<i64>) -> Self {
        let first = writer as i64 * KEYS_STRIDE;
        let roll = rng.below(100);
        let (kind, count) = match roll {
            0..55 => (Kind::Upsert, 1 + rng.below(24)),
            55..60 => (Kind::Upsert, 1 + rng.below(KEYS as u64)),
            60..85 => (Kind::Delete, 1 + rng.below(30)),
            _ => (Kind::Insert, 1 + rng.below(12)),
        };
        let mut keys: Vec<i64> = (0..count).map(|_| first + rng.below(KEYS as u64) as i64).collect();
        keys.sort_unstable();
        keys.dedup();
        if kind == Kind::Insert {
            keys.retain(|key| !present.contains(key));
        }
        let kind = if keys.is_empty() { Kind::Upsert } else { kind };
        if keys.is_empty() {
            keys.push(first);
        }
        Self { kind, version, keys }
    }

    /// Writes it; on return it is durable and visible.
    pub async fn run(&self, table: &Table) -> vectide::Result<()> {
        match self.kind {
            Kind::Upsert => table.upsert(batch(&self.keys, self.version)).await.map(drop),
            Kind::Insert => table.insert(batch(&self.keys, self.version)).await.map(drop),
            Kind::Delete => table.delete(self.keys.clone()).await.map(drop),
        }
    }

    /// Applies it to a writer's set of present keys.
    pub fn note(&self, present: &mut BTreeSet<i64>) {
        for &key in &self.keys {
            match self.kind {
                Kind::Delete => drop(present.remove(&key)),
                Kind::Upsert | Kind::Insert => drop(present.insert(key)),
            }
        }
    }
}

/// `key id: Int64, version: UInt64, payload: Utf8, vector vec: [f32; 8] l2`.
pub fn schema() -> vectide::Result<TableSchema> {
    vectide::schema! { key id: Int64, version: UInt64, payload: Utf8, vector vec: [f32; 8] l2 }
}

/// Everything tiny, so that files are replaced, memtables sealed and segments written all the time.
pub fn options() -> Options {
    Options {
        memtable_rows: 300,
        memtable_bytes: 256 << 10,
        memtable_log_objects: 40,
        tail_rows: 64,
        index_threads: 1,
        merge: MergeOptions { step_rows: 20, core_pct: 100, fold_pct: 25, kept_versions: 2, ..MergeOptions::default() },
        wal: WalOptions { file_bytes: 128 << 10, ..WalOptions::default() },
        ..Options::default()
    }
}

fn mixed(key: i64, version: u64) -> Rng {
    Rng((key as u64).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The row's vector.
pub fn vector(key: i64, version: u64) -> [f32; DIM] {
    let mut rng = mixed(key, version);
    std::array::from_fn(|_| (rng.next() >> 40) as f32 / (1u64 << 24) as f32)
}

/// The row's payload: short, or longer than a disk page.
pub fn payload(key: i64, version: u64) -> String {
    let mut rng = mixed(version as i64, key as u64);
    let words = if rng.one_in(40) { 300 } else { rng.below(6) };
    (0..words).map(|_| format!("{:016x}", rng.next())).collect()
}

/// The rows of `keys` at `version`.
pub fn batch(keys: &[i64], version: u64) -> RecordBatch {
    let values: Float32Array = keys.iter().flat_map(|&key| vector(key, version)).collect::<Vec<f32>>().into();
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, DIM as i32, Arc::new(values), None);
    let payloads: StringArray = keys.iter().map(|&key| Some(payload(key, version))).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(Int64Array::from(keys.to_vec()))),
        ("version", Arc::new(UInt64Array::from(vec![version; keys.len()]))),
        ("payload", Arc::new(payloads)),
        ("vec", Arc::new(vectors)),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

/// Key and version of each row of a read; refuses a row that is not what these two say.
pub fn read(batch: &RecordBatch) -> Result<Vec<(i64, u64)>, String> {
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| format!("column {name} is missing"));
    let ids = column("id")?.as_primitive::<Int64Type>();
    let versions = column("version")?.as_primitive::<UInt64Type>();
    let payloads = column("payload")?.as_string::<i32>();
    let vectors = batch.column_by_name("vec").map(|vectors| vectors.as_fixed_size_list());
    (0..batch.num_rows())
        .map(|row| {
            let (key, version) = (ids.value(row), versions.value(row));
            if payloads.value(row) != payload(key, version) {
                return Err(format!("key {key} at version {version} came back with another payload"));
            }
            if let Some(vectors) = vectors
                && vectors.value(row).as_primitive::<Float32Type>().values()[..] != vector(key, version)
            {
                return Err(format!("key {key} at version {version} came back with another vector"));
            }
            Ok((key, version))
        })
        .collect()
}

/// All live rows, each key once.
pub async fn rows(table: &Table) -> Result<BTreeMap<i64, u64>, String> {
    let failed = |e: vectide::Error| format!("scan: {e:?}");
    let all = table.scan().columns(["id", "version", "payload", "vec"]).await.map_err(failed)?;
    let mut found = BTreeMap::new();
    for (key, version) in read(&all.collect_all().map_err(failed)?)? {
        if let Some(other) = found.insert(key, version) {
            return Err(format!("key {key} came back twice, at versions {other} and {version}"));
        }
    }
    Ok(found)
}

/// Reads a quiet table by scan, count, key and vector and has it verified; what it holds, or what disagrees.
pub async fn audit(table: &Table, rng: &mut Rng) -> Result<BTreeMap<i64, u64>, String> {
    let found = rows(table).await?;
    let count = table.count().await.map_err(|e| format!("count: {e:?}"))?;
    if count != found.len() as u64 {
        return Err(format!("count says {count}, the scan found {} rows", found.len()));
    }
    let asked: Vec<i64> = (0..60).map(|_| rng.below(4) as i64 * KEYS_STRIDE + rng.below(KEYS as u64) as i64).collect();
    let expected: Vec<(i64, u64)> = asked.iter().filter_map(|key| Some((*key, *found.get(key)?))).collect();
    let got = read(&table.get(asked).await.map_err(|e| format!("get: {e:?}"))?)?;
    if got != expected {
        return Err(format!("get found {got:?}, the scan {expected:?}"));
    }
    let all: Vec<(i64, u64)> = found.iter().map(|(&key, &version)| (key, version)).collect();
    for _ in 0..all.len().min(25) {
        let (key, version) = all[rng.below(all.len() as u64) as usize];
        nearest(table, &found, (key, version)).await?;
    }
    table.verify().await.map_err(|e| format!("verify: {e:?}"))?;
    Ok(found)
}

/// Looks for a row by its own vector: it has to come first, and everything that comes has to live.
async fn nearest(table: &Table, found: &BTreeMap<i64, u64>, row: (i64, u64)) -> Result<(), String> {
    let query = vector(row.0, row.1);
    let hits = table.search(&query).k(8).ef_search(100).await.map_err(|e| format!("search: {e:?}"))?;
    let hits = read(&hits)?;
    if hits.len() != found.len().min(8) {
        return Err(format!("a search for 8 of {} rows gave {}", found.len(), hits.len()));
    }
    if hits[0] != row {
        return Err(format!("a search for {row:?} by its own vector gave {:?} first", hits[0]));
    }
    let keys: BTreeSet<i64> = hits.iter().map(|hit| hit.0).collect();
    if keys.len() != hits.len() || hits.iter().any(|(key, version)| found.get(key) != Some(version)) {
        return Err(format!("a search gave {hits:?}: one of them is doubled, old or deleted"));
    }
    Ok(())
}
