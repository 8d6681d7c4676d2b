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
use std::fmt;
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
        self.s3.validate()?;
        self.retry.validate()
    }
}

/// Settings of stores that speak S3. What is not set comes from the environment (`AWS_REGION`, `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_ENDPOINT`, `AWS_ALLOW_HTTP`, `AWS_TIMEOUT`, ...). Buckets are named in
/// the path of a request, unless `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` is `true`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Options {
    /// Address of a store other than Amazon's, such as `http://localhost:9000`.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: Option<String>,
    /// Whether an `http://` endpoint is acceptable.
    pub allow_http: bool,
    /// Who asks. With it comes `secret_access_key`.
    pub access_key_id: Option<String>,
    /// The secret that belongs to `access_key_id`. Read from files, never written to any.
    #[serde(skip_serializing)]
    pub secret_access_key: Option<Secret>,
    /// Makes the two temporary credentials. Read from files, never written to any.
    #[serde(skip_serializing)]
    pub session_token: Option<Secret>,
    /// How long one attempt at a request may take, body included, in milliseconds; by default 30,000. Has to suffice for
    /// 8 MiB, the longest that one request carries.
    pub request_timeout_ms: Option<u64>,
    /// How long connecting may take, in milliseconds; by default 5,000.
    pub connect_timeout_ms: Option<u64>,
}

impl S3Options {
    fn validate(&self) -> Result<()> {
        if self.access_key_id.is_some() != self.secret_access_key.is_some() {
            return Err(Error::invalid("s3.access_key_id and s3.secret_access_key belong together: set both or none"));
        }
        if self.session_token.is_some() && self.access_key_id.is_none() {
            return Err(Error::invalid("s3.session_token needs s3.access_key_id and s3.secret_access_key beside it"));
        }
        for (name, given) in
            [("request_timeout_ms", self.request_timeout_ms), ("connect_timeout_ms", self.connect_timeout_ms)]
        {
            if given == Some(0) {
                return Err(Error::invalid(format!("s3.{name} is 0: no request would ever succeed")));
            }
        }
        Ok(())
    }
}

/// Text that stays hidden: `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
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

/// After this long the client begins no further attempt of its own; the store around it may.
#[cfg(feature = "s3")]
const CLIENT_RETRY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

#[cfg(feature = "s3")]
fn s3(uri: &str, rest: &str, options: &StoreOptions) -> Result<Arc<dyn Store>> {
    use super::RetryStore;
    use object_store::RetryConfig;
    use object_store::path::Path as ObjectPath;
    use object_store::prefix::PrefixStore;

    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::invalid(format!("`{uri}` names no bucket: write s3://bucket/prefix")));
    }
    let prefix = ObjectPath::parse(prefix.trim_end_matches('/'))
        .map_err(|e| Error::invalid(format!("`{uri}`: {e}")).with_source(e))?;
    let builder = s3_builder(uri, options)?.with_bucket_name(bucket);
    let client = |max_retries: usize| {
        let retry = RetryConfig { max_retries, retry_timeout: CLIENT_RETRY_TIMEOUT, ..RetryConfig::default() };
        let built = builder.clone().with_retry(retry).build();
        let built = built.map_err(|e| Error::invalid(format!("`{uri}`: {e}")).with_source(e))?;
        Ok::<_, Error>(Arc::new(PrefixStore::new(built, prefix.clone())))
    };
    // The client's own retries cover the parts of uploads and broken bodies. They must not touch conditional puts: a
    // retry that meets the object of its own first attempt would report a conflict.
    let (often, once) = (client(3)?, client(0)?);
    let cache_dir = options.cache_dir.clone().unwrap_or_else(|| std::env::temp_dir().join("vectide-cache"));
    let backend = ObjectBackend::new(often).with_once(once);
    let backend = backend.with_cache(DiskFs::shared(), &cache_dir, options.cache_bytes)?;
    let seed = options.jitter_seed.unwrap_or_else(|| u64::from(std::process::id()));
    Ok(Arc::new(RetryStore::new(metered(backend), options.retry.clone(), seed)?))
}

/// A client's settings: from the environment, and over them from `options`.
#[cfg(feature = "s3")]
fn s3_builder(uri: &str, options: &StoreOptions) -> Result<object_store::aws::AmazonS3Builder> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
    use object_store::client::ClientConfigKey;

    let S3Options { endpoint, region, allow_http, access_key_id, .. } = options.s3.clone();
    let shown = |secret: &Option<Secret>| secret.as_ref().map(|Secret(text)| text.clone());
    let ms = |given: Option<u64>| given.map(|ms| format!("{ms}ms"));
    let given = [
        (Key::Endpoint, endpoint),
        (Key::Region, region),
        (Key::AccessKeyId, access_key_id),
        (Key::SecretAccessKey, shown(&options.s3.secret_access_key)),
        (Key::Token, shown(&options.s3.session_token)),
        (Key::Client(ClientConfigKey::AllowHttp), allow_http.then(|| "true".to_owned())),
        (Key::Client(ClientConfigKey::Timeout), ms(options.s3.request_timeout_ms)),
        (Key::Client(ClientConfigKey::ConnectTimeout), ms(options.s3.connect_timeout_ms)),
    ];
    let given = given.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let builder = given.fold(AmazonS3Builder::from_env(), |builder, (key, value)| builder.with_config(key, value));
    let endpoint = builder.get_config_value(&Key::Endpoint).unwrap_or_default();
    let is_allowed = builder.get_config_value(&Key::Client(ClientConfigKey::AllowHttp));
    if endpoint.starts_with("http://") && is_allowed.is_none_or(|allowed| allowed != "true") {
        return Err(Error::invalid(format!(
            "`{uri}`: the endpoint {endpoint} is not encrypted; if that is meant, set s3.allow_http or AWS_ALLOW_HTTP=true"
        )));
    }
    Ok(builder)
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
            ..S3Options::default()
        };
        let mut options = StoreOptions { cache_dir: Some(dir.path().to_owned()), s3, ..StoreOptions::default() };
        let store = open_uri("s3://bucket/some/prefix", &options).expect("opened");
        assert!(store.local().is_none());
        options.s3.allow_http = false;
        let refused = open_uri("s3://bucket/some/prefix", &options).expect_err("not encrypted");
        assert!(refused.kind() == ErrorKind::Invalid && refused.message().contains("s3.allow_http"), "{refused}");
    }

    #[test]
    fn half_a_credential_or_no_time_at_all_is_refused() {
        let refused = |s3: S3Options| {
            let options = StoreOptions { s3, ..StoreOptions::default() };
            options.validate().expect_err("refused").message().to_owned()
        };
        let key = || Some("key".to_owned());
        assert!(refused(S3Options { access_key_id: key(), ..S3Options::default() }).contains("belong together"));
        let token = Some(Secret::new("t"));
        assert!(refused(S3Options { session_token: token, ..S3Options::default() }).contains("s3.access_key_id"));
        let never = S3Options { request_timeout_ms: Some(0), ..S3Options::default() };
        assert!(refused(never).contains("s3.request_timeout_ms"));
    }

    #[test]
    fn a_secret_is_read_and_never_shown() {
        let text = r#"{"s3": {"access_key_id": "k", "secret_access_key": "hush"}}"#;
        let options: StoreOptions = serde_json::from_str(text).expect("reads");
        assert_eq!(options.s3.secret_access_key, Some(Secret::new("hush")));
        let shown = format!("{options:?} {}", serde_json::to_string(&options).expect("writes"));
        assert!(!shown.contains("hush"), "{shown}");
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_build_without_s3_says_how_to_get_it() {
        let error = open_uri("s3://bucket/x", &StoreOptions::default()).expect_err("refused");
        assert!(error.message().contains("--features s3"), "{error}");
    }
}
