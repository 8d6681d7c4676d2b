//! RocksDB's vector memtable, filled: `rival-memtable DIR ROWS THREADS BATCH ordered|unordered`.
//!
//! The shape and the rows of `vectide bench memtable`: 16-byte random keys, 100-byte values, no log, nothing flushed.
//! Concurrent memtable writes are on, as facebook/rocksdb#13675 has them; each thread fills a `WriteBatch` of its own and
//! writes it. Two databases are filled, one after the other, as `vectide bench memtable` fills two memtables. Prints one object as `vectide bench memtable` does for each of its settings.

use librocksdb_sys as ffi;
use rocksdb::{AsRawPtr as _, DB, MemtableFactory, Options, properties};
use serde_json::json;
use std::sync::Barrier;
use std::time::Instant;

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 100;

struct Task {
    rows: usize,
    threads: usize,
    batch: usize,
    is_unordered: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, rows, threads, batch, visibility] = arguments.as_slice() else {
        eprintln!("usage: rival-memtable DIR ROWS THREADS BATCH ordered|unordered");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let is_unordered = visibility == "unordered";
    let task = Task { rows: number(rows), threads: number(threads), batch: number(batch), is_unordered };
    let rows = task.rows / task.threads * task.threads;
    let (first, bytes) = filled(&task, rows, &format!("{dir}/first"));
    let (next, _) = filled(&task, rows, &format!("{dir}/next"));
    let result = json!({
        "engine": "rocksdb",
        "visibility": visibility,
        "batch": task.batch,
        "threads": task.threads,
        "ops_per_s": rows as f64 / first.0,
        "ops_per_cpu_s": rows as f64 / first.1,
        "next_ops_per_s": rows as f64 / next.0,
        "next_ops_per_cpu_s": rows as f64 / next.1,
        "bytes_per_row": bytes / rows as f64,
    });
    println!("{result}");
}

/// Seconds and processor seconds of filling a new database's memtable, and its bytes. Closed at the end, without a flush.
fn filled(task: &Task, rows: usize, dir: &str) -> ((f64, f64), f64) {
    let db = DB::open(&options(task), dir).expect("a database");
    let times = fill(&db, task);
    let property =
        |name: &properties::PropName| db.property_int_value(name).expect("a property").expect("a number") as f64;
    let held = property(properties::NUM_ENTRIES_ACTIVE_MEM_TABLE);
    assert_eq!(held as usize, rows, "rows in the active memtable: something was flushed");
    (times, property(properties::CUR_SIZE_ACTIVE_MEM_TABLE))
}

fn options(task: &Task) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_memtable_factory(MemtableFactory::Vector);
    options.set_allow_concurrent_memtable_write(true);
    options.set_enable_write_thread_adaptive_yield(true);
    options.set_unordered_write(task.is_unordered);
    // One memtable for all rows, with the arena's blocks as large as they are by default.
    options.set_write_buffer_size(task.rows * 512 + (1 << 30));
    options.set_arena_block_size(1 << 20);
    options.set_max_write_buffer_number(4);
    options.set_disable_auto_compactions(true);
    // SAFETY: 1. the options live beyond this call, and nobody else has them.
    unsafe { ffi::rocksdb_options_set_avoid_flush_during_shutdown(options.as_raw_ptr(), 1) };
    options
}

/// Seconds, and processor seconds of all threads.
fn fill(db: &DB, task: &Task) -> (f64, f64) {
    let each = task.rows / task.threads;
    let ready = Barrier::new(task.threads + 1);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..task.threads)
            .map(|thread| {
                let ready = &ready;
                scope.spawn(move || {
                    ready.wait();
                    write(db, thread, each, task.batch);
                })
            })
            .collect();
        ready.wait();
        let (started, before) = (Instant::now(), process_seconds());
        for writer in writers {
            writer.join().expect("a write does not panic");
        }
        (started.elapsed().as_secs_f64(), process_seconds() - before)
    })
}

fn write(db: &DB, thread: usize, rows: usize, batch: usize) {
    let mut writer = Writer::new(db);
    let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread as u64 + 1));
    let value = [b'v'; VALUE_BYTES];
    for first in (0..rows).step_by(batch) {
        for _ in 0..batch.min(rows - first) {
            writer.put(&random.key(), &value);
        }
        writer.write();
    }
}

/// A `WriteBatch` that is used again for each batch, as RocksDB's own bench does: the crate's takes a new one each time.
struct Writer<'a> {
    db: &'a DB,
    batch: *mut ffi::rocksdb_writebatch_t,
    options: *mut ffi::rocksdb_writeoptions_t,
}

impl<'a> Writer<'a> {
    fn new(db: &'a DB) -> Self {
        // SAFETY: 1. both are freed once, by drop. 2. the options are set before they are used.
        unsafe {
            let options = ffi::rocksdb_writeoptions_create();
            ffi::rocksdb_writeoptions_disable_WAL(options, 1);
            Self { db, batch: ffi::rocksdb_writebatch_create(), options }
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: 1. the batch lives as long as this. 2. key and value are copied before the call returns.
        unsafe { ffi::rocksdb_writebatch_put(self.batch, key_at, key.len(), value_at, value.len()) }
    }

    fn write(&mut self) {
        let mut error = std::ptr::null_mut();
        // SAFETY: 1. database, options and batch live as long as this. 2. the batch belongs to this thread. 3. an error's
        // text is null or a C string.
        unsafe {
            ffi::rocksdb_write(self.db.as_raw_ptr(), self.options, self.batch, &mut error);
            assert!(error.is_null(), "a write failed: {:?}", std::ffi::CStr::from_ptr(error));
            ffi::rocksdb_writebatch_clear(self.batch);
        }
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: 1. made by `new`, and nobody else has them.
        unsafe {
            ffi::rocksdb_writebatch_destroy(self.batch);
            ffi::rocksdb_writeoptions_destroy(self.options);
        }
    }
}

/// The keys of `vectide bench memtable`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn key(&mut self) -> [u8; KEY_BYTES] {
        let mut key = [0u8; KEY_BYTES];
        key[..8].copy_from_slice(&self.next().to_le_bytes());
        key[8..].copy_from_slice(&self.next().to_le_bytes());
        key
    }
}

fn process_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
