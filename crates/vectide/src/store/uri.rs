//! A URI goes in, a store comes out.
//!
//! `Vectide::open` calls it. Invariant: a URI that is not understood is refused with what is supported, never guessed at.

use super::retry::RetryOptions;
use super::{DiskFs, LocalStore, Metered, ObjectBackend, Store};
use crate::error::{Error, Result};
use object_store::memory::InMemory;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// How stores are reached. Everything has a default; files may set any part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreOptions {
    /// Where remote objects are cached for mapping; by default a folder in the system's temporary directory. Safe to
    /// share between processes. Not used by local directories and memory stores.
    pub cache_dir: Option<PathBuf>,
    /// Most bytes of remote objects cached locally.
    pub cache_bytes: u64,
    /// Second attempts at a remote store.
    pub retry: RetryOptions,
    /// Seeds the jitter between attempts; by default the process id.
    pub jitter_seed: Option<u64>,
    /// Settings of `s3://`.
    pub s3: S3Options,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            cache_dir: None,
            cache_bytes: 16 << 30,
            retry: RetryOptions::default(),
            jitter_seed: None,
            s3: S3Options::default(),
        }
    }
}

impl StoreOptions {
    /// Refuses settings that make no sense; repairs nothing.
    pub fn validate(&self) -> Result<()> {
        if self.cache_bytes == 0 {
            return Err(Error::invalid("cache_bytes is 0: remote objects are mapped from the cache, give it room"));
        }
        self.retry.validate()
    }
}

/// Settings of stores that speak S3. What is not set comes from the environment (`AWS_REGION`, `AWS_ACCESS_KEY_ID`,
/// `AWS_ENDPOINT`, ...).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Options {
    /// Address of a store other than Amazon's, such as `http://localhost:9000`.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: Option<String>,
    /// Whether an `http://` endpoint is acceptable.
    pub allow_http: bool,
}

/// Opens the store that `uri` names: a path, `file://`, `memory://` or `s3://bucket/prefix`.
///
/// A local directory is created if missing. `memory://` is empty and new at each call; `memory://name` is shared by all
/// that open the same name in this process, and lives as long as the process. `Invalid` for anything else. Blocks
/// briefly on local file calls; no request is sent to a remote store.
pub fn open_uri(uri: &str, options: &StoreOptions) -> Result<Arc<dyn Store>> {
    open(uri, options, true)
}

/// As [`open_uri`], for a reader: a local directory that does not exist is `NotFound` and is not created.
pub fn open_existing_uri(uri: &str, options: &StoreOptions) -> Result<Arc<dyn Store>> {
    open(uri, options, false)
}

fn open(uri: &str, options: &StoreOptions, create: bool) -> Result<Arc<dyn Store>> {
    options.validate()?;
    match uri.split_once("://") {
        None => local(uri, create),
        Some(("file", path)) => local(file_path(uri, path)?, create),
        Some(("memory", name)) => Ok(metered(ObjectBackend::new(memory(name)))),
        Some(("s3", rest)) => s3(uri, rest, options),
        Some((scheme, _)) => Err(Error::invalid(format!(
            "`{uri}`: unknown scheme `{scheme}`; use a path, file:///path, memory://, memory://name or s3://bucket/prefix"
        ))),
    }
}

fn metered(store: impl Store + 'static) -> Arc<dyn Store> {
    Arc::new(Metered::new(Arc::new(store)))
}

fn local(path: &str, create: bool) -> Result<Arc<dyn Store>> {
    if path.is_empty() {
        return Err(Error::invalid("the path of the database is empty"));
    }
    let absolute = std::path::absolute(path).map_err(|e| Error::io(format!("resolving {path}"), e))?;
    let open = if create { LocalStore::open } else { LocalStore::open_existing };
    Ok(metered(open(DiskFs::shared(), absolute)?))
}

/// The path of `file:///path` or `file://localhost/path`; another host would silently be this one.
fn file_path<'a>(uri: &str, rest: &'a str) -> Result<&'a str> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if path.starts_with('/') {
        return Ok(path);
    }
    Err(Error::invalid(format!("`{uri}` names no local path: write file:///absolute/path, or the bare path")))
}

fn memory(name: &str) -> Arc<InMemory> {
    static NAMED: LazyLock<Mutex<BTreeMap<String, Arc<InMemory>>>> = LazyLock::new(Mutex::default);
    if name.is_empty() {
        return Arc::new(InMemory::new());
    }
    NAMED.lock().entry(name.to_owned()).or_default().clone()
}

#[cfg(not(feature = "s3"))]
fn s3(uri: &str, _: &str, _: &StoreOptions) -> Result<Arc<dyn Store>> {
    Err(Error::invalid(format!("`{uri}`: this build has no S3; build it with `--features s3`")))
}

#[cfg(feature = "s3")]
fn s3(uri: &str, rest: &str, options: &StoreOptions) -> Result<Arc<dyn Store>> {
    use super::RetryStore;
    use object_store::RetryConfig;
    use object_store::aws::AmazonS3Builder;
    use object_store::path::Path as ObjectPath;
    use object_store::prefix::PrefixStore;

    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::invalid(format!("`{uri}` names no bucket: write s3://bucket/prefix")));
    }
    let prefix = ObjectPath::parse(prefix.trim_end_matches('/'))
        .map_err(|e| Error::invalid(format!("`{uri}`: {e}")).with_source(e))?;
    let client = |retry: RetryConfig| {
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
        if let Some(endpoint) = &options.s3.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &options.s3.region {
            builder = builder.with_region(region);
        }
        if options.s3.allow_http {
            builder = builder.with_allow_http(true);
        }
        let built = builder.build().map_err(|e| Error::invalid(format!("`{uri}`: {e}")).with_source(e))?;
        Ok::<_, Error>(Arc::new(PrefixStore::new(built, prefix.clone())))
    };
    // The client's own retries cover the parts of uploads and broken bodies. They must not touch conditional puts: a
    // retry that meets the object of its own first attempt would report a conflict.
    let often = client(RetryConfig { max_retries: 3, ..RetryConfig::default() })?;
    let once = client(RetryConfig { max_retries: 0, ..RetryConfig::default() })?;
    let cache_dir = options.cache_dir.clone().unwrap_or_else(|| std::env::temp_dir().join("vectide-cache"));
    let backend = ObjectBackend::new(often).with_once(once);
    let backend = backend.with_cache(DiskFs::shared(), &cache_dir, options.cache_bytes)?;
    let seed = options.jitter_seed.unwrap_or_else(|| u64::from(std::process::id()));
    Ok(Arc::new(RetryStore::new(metered(backend), options.retry.clone(), seed)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use bytes::Bytes;

    #[test]
    fn what_is_not_understood_is_refused_with_what_is() {
        let options = StoreOptions::default();
        for uri in ["gs://bucket/x", "file://host/x", "file://relative", "", "s3://", "s3:///x"] {
            let error = open_uri(uri, &options).expect_err(uri);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{uri}: {error}");
        }
        assert!(open_uri("gs://b", &options).expect_err("unknown").message().contains("s3://bucket/prefix"));
        let empty = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
        assert!(open_uri("memory://", &empty).expect_err("refused").message().contains("cache_bytes"));
    }

    #[test]
    fn an_option_that_does_not_exist_is_refused_and_absent_ones_have_their_default() {
        assert_eq!(serde_json::from_str::<StoreOptions>("{}").expect("all default"), StoreOptions::default());
        assert!(serde_json::from_str::<StoreOptions>(r#"{"cache_byte": 1}"#).is_err());
    }

    #[tokio::test]
    async fn memory_is_shared_by_name_only() {
        let options = StoreOptions::default();
        let open = |uri| open_uri(uri, &options).expect(uri);
        open("memory://uri-test").put("a", Bytes::from_static(b"x")).await.expect("put");
        assert_eq!(open("memory://uri-test").get("a").await.expect("still there"), "x");
        open("memory://").put("a", Bytes::from_static(b"x")).await.expect("put");
        assert!(open("memory://").get("a").await.is_err());
    }

    #[tokio::test]
    async fn paths_and_file_uris_open_the_same_directory_and_calls_are_counted() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("db").to_str().expect("text").to_owned();
        let absent = open_existing_uri(&path, &StoreOptions::default()).expect_err("not created for a reader");
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        let store = open_uri(&path, &StoreOptions::default()).expect("opened");
        store.put("a/b", Bytes::from_static(b"xyz")).await.expect("put");
        let again = open_existing_uri(&format!("file://{path}"), &StoreOptions::default()).expect("opened");
        assert_eq!(again.get("a/b").await.expect("there"), "xyz");
        assert!(again.local().is_some());
        assert_eq!(store.stats().put, crate::store::OpStats { requests: 1, errors: 0, bytes: 3 });
        assert_eq!(again.stats().get.bytes, 3);
    }

    #[cfg(feature = "s3")]
    #[test]
    fn an_s3_store_opens_without_a_request() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let s3 = S3Options {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            region: Some("eu-central-1".to_owned()),
            allow_http: true,
        };
        let options = StoreOptions { cache_dir: Some(dir.path().to_owned()), s3, ..StoreOptions::default() };
        let store = open_uri("s3://bucket/some/prefix", &options).expect("opened");
        assert!(store.local().is_none());
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_build_without_s3_says_how_to_get_it() {
        let error = open_uri("s3://bucket/x", &StoreOptions::default()).expect_err("refused");
        assert!(error.message().contains("--features s3"), "{error}");
    }
}
