//! A bucket on a server of our own, over real HTTP, and how a caller points Vectide at it.
//!
//! Each client has an access key, so that the server can treat two writers differently. Invariant: stores are opened by
//! their `s3://` address and options, as a user opens them.

use std::sync::Arc;
use tempfile::TempDir;
use vectide::store::{RetryOptions, S3Options, Secret, Store, StoreOptions, open_uri};
use vectide_s3_server::{Line, S3Server};

const BUCKET: &str = "bucket";
/// Keys in a page of a listing: few, so that every listing has several.
const LIST_PAGE: usize = 3;

/// The server, and where its clients cache.
pub struct S3 {
    pub server: S3Server,
    cache: TempDir,
}

impl S3 {
    pub fn start() -> Self {
        let server = S3Server::with_list_page(&[BUCKET], LIST_PAGE).expect("the server starts");
        Self { server, cache: tempfile::tempdir().expect("a folder") }
    }

    /// The address of a database in the bucket.
    pub fn uri(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// Lets a client in: what it opens the store with, and the line to it.
    pub fn client(&self, access_key: &str, retry: RetryOptions, request_timeout_ms: u64) -> (StoreOptions, Line) {
        let s3 = S3Options {
            endpoint: Some(self.server.endpoint()),
            region: Some("us-east-1".to_owned()),
            allow_http: true,
            access_key_id: Some(access_key.to_owned()),
            secret_access_key: Some(Secret::new("any")),
            request_timeout_ms: Some(request_timeout_ms),
            ..S3Options::default()
        };
        let cache_dir = Some(self.cache.path().to_owned());
        let options = StoreOptions { cache_dir, retry, s3, jitter_seed: Some(1), ..StoreOptions::default() };
        (options, self.server.line(access_key))
    }

    /// A store at `prefix`, as [`S3::client`] reaches it.
    pub fn store(&self, prefix: &str, options: &StoreOptions) -> Arc<dyn Store> {
        open_uri(&self.uri(prefix), options).expect("opens")
    }
}

/// Many attempts, quickly one after the other.
pub fn stubborn() -> RetryOptions {
    RetryOptions { max_attempts: 60, base_delay_ms: 1, max_delay_ms: 20, deadline_ms: 600_000 }
}

/// The seed that `name` asks for in the environment, or one of its own; printed.
pub fn seed(name: &str) -> u64 {
    let asked = std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seed = asked.unwrap_or_else(|| u64::from(std::process::id()));
    println!("{name}={seed}");
    seed
}
