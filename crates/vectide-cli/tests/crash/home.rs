//! Where the tables lie that processes die over: local directories, or a bucket on a server of our own.
//!
//! Invariant: each place is new and empty, and nothing in it depends on the processes that use it.

use crate::worker::Place;
use std::cell::Cell;
use tempfile::TempDir;
use vectide_s3_server::{Faults, Latency, S3Server};

const BUCKET: &str = "crash";
const ACCESS_KEY: &str = "crash";
/// Keys in a page of a listing: few, so that a listing has several.
const LIST_PAGE: usize = 20;

/// Gives out places.
pub trait Home {
    /// A new, empty one.
    fn place(&self, layout: &'static str) -> Place;

    /// Makes the next round meet other faults.
    fn shake(&self, _seed: u64) {}

    /// Saves what is there from the end of the test; where to find it.
    fn keep(&self, place: Place) -> String;
}

/// Directories below the system's temporary one; each lives as long as its place.
#[derive(Debug)]
pub struct Directories;

impl Home for Directories {
    fn place(&self, layout: &'static str) -> Place {
        let dir = tempfile::tempdir().expect("a folder");
        let at = dir.path().to_str().expect("a path in UTF-8").to_owned();
        Place { layout, at, environment: Vec::new(), dir: Some(dir) }
    }

    fn keep(&self, place: Place) -> String {
        place.dir.map(TempDir::keep);
        place.at
    }
}

/// A bucket behind HTTP, whose server outlives every process and fails now and then.
#[derive(Debug)]
pub struct Bucket {
    server: S3Server,
    /// The processes' temporary directory: their caches.
    cache: TempDir,
    places: Cell<u64>,
}

impl Bucket {
    pub fn start() -> Self {
        let server = S3Server::with_list_page(&[BUCKET], LIST_PAGE).expect("the server starts");
        let _ = server.line(ACCESS_KEY);
        Self { server, cache: tempfile::tempdir().expect("a folder"), places: Cell::new(0) }
    }
}

impl Home for Bucket {
    fn place(&self, layout: &'static str) -> Place {
        let n = self.places.replace(self.places.get() + 1);
        let environment = vec![
            ("AWS_ENDPOINT", self.server.endpoint()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "any".to_owned()),
            ("AWS_TIMEOUT", "700ms".to_owned()),
            ("TMPDIR", self.cache.path().to_str().expect("a path in UTF-8").to_owned()),
        ];
        Place { layout, at: format!("s3://{BUCKET}/{n}"), environment, dir: None }
    }

    fn shake(&self, seed: u64) {
        let latency = Latency { median_ms: 2.0, sigma: 0.8, max_ms: 150.0 };
        self.server.line(ACCESS_KEY).set_faults(Faults {
            seed,
            latency,
            slow_down: 15,
            drop_before: 8,
            drop_after: 8,
            late: 8,
            late_ms: 300,
            hang_before: 1,
            hang_after: 1,
            slow_body: 5,
            cut_body: 5,
        });
    }

    fn keep(&self, place: Place) -> String {
        let dir = tempfile::tempdir().expect("a folder").keep();
        println!("what the server did: {:?}", self.server.line(ACCESS_KEY).counts());
        self.server.save(BUCKET, &dir).expect("saves");
        format!("{} ({})", dir.display(), place.at)
    }
}
