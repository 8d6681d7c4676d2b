//! Publication of a step's rows under loom: whatever the interleaving, a reader gets the rows of the version that it read.
//!
//! `RUSTFLAGS="--cfg vectide_loom" cargo test -p vectide --no-default-features --lib -- loom`
//!
//! A writer commits versions: it puts the new row into the cache, then makes the version current. Readers take the current
//! version and read through the cache, loading what is missing as a base does: from what is durable up to their version.
//! The canary's cache takes the newest row there is, whatever its version, and expects to be caught.

use super::state::{Found, Key, State, cost};
use crate::sync::{AtomicU32, Mutex, Ordering};
use loom::sync::Arc;
use loom::thread;

const KEY: Key = Key { space: 0, node: 0 };

struct Base {
    current: AtomicU32,
    cache: Mutex<State>,
}

impl Base {
    fn new(rows: u64) -> Arc<Self> {
        Arc::new(Self { current: AtomicU32::new(0), cache: Mutex::new(State::new(rows * cost(1))) })
    }

    fn commit(&self, version: u32) {
        self.cache.lock().put(KEY, version, &[version]);
        // ORDERING: Release pairs with the Acquire in `read`, as the view's lock does.
        self.current.store(version, Ordering::Release);
    }

    /// The node's row as of the version that was current: every version writes it.
    fn read(&self, is_careless: bool) {
        let version = self.current.load(Ordering::Acquire);
        let mut row = Vec::new();
        let mut found = self.cache.lock().get(KEY, version, &mut row);
        if is_careless && found != Found::Hit {
            found = self.cache.lock().get(KEY, version + 1, &mut row);
        }
        if found != Found::Hit {
            row = vec![version];
        }
        if found == Found::Missing {
            self.cache.lock().put(KEY, version, &row);
        }
        assert_eq!(row, [version], "a row of another version");
    }
}

fn model(rows: u64, is_careless: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(move || {
        let base = Base::new(rows);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let base = Arc::clone(&base);
                thread::spawn(move || base.read(is_careless))
            })
            .collect();
        base.commit(1);
        base.commit(2);
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        base.read(false);
    });
}

#[test]
fn loom_readers_get_the_rows_of_their_version() {
    model(4, false);
}

#[test]
fn loom_readers_get_the_rows_of_their_version_from_a_cache_of_one_row() {
    model(1, false);
}

#[test]
#[should_panic(expected = "a row of another version")]
fn loom_canary_a_cache_that_takes_what_it_has_is_caught() {
    model(4, true);
}
