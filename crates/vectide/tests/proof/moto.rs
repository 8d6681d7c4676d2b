//! The S3 store against moto, the S3 that Python's tests use: somebody else's reading of the protocol.
//!
//! `VECTIDE_MOTO` names its `moto_server`; without it nothing is run. moto checks a condition and stores without a lock
//! between, so that only one client at a time is let at it.

use crate::support::{all_rows, numbered, schema};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use vectide::store::{S3Options, Secret, StoreOptions, conformance, open_uri};
use vectide::{Options, Vectide};

/// A running moto; ends with its handle.
struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Moto {
    /// Starts it on a port of its own, with an empty bucket.
    fn start(program: &str) -> Self {
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", "0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("VECTIDE_MOTO is `{program}`: {e}"));
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = lines
            .by_ref()
            .map(|line| line.expect("text"))
            .find_map(|line| {
                line.split_once("http://").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
            })
            .expect("moto says where it listens");
        // Somebody has to read what it goes on to say.
        std::thread::spawn(move || lines.for_each(drop));
        let moto = Self { child, address };
        moto.make_bucket();
        moto
    }

    fn make_bucket(&self) {
        let mut stream = TcpStream::connect(self.address).expect("connects");
        let request = "PUT /bucket HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn options(&self, cache: &std::path::Path) -> StoreOptions {
        let s3 = S3Options {
            endpoint: Some(format!("http://{}", self.address)),
            region: Some("us-east-1".to_owned()),
            allow_http: true,
            access_key_id: Some("anybody".to_owned()),
            secret_access_key: Some(Secret::new("any")),
            ..S3Options::default()
        };
        StoreOptions { s3, cache_dir: Some(cache.to_owned()), ..StoreOptions::default() }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_of_moto_gets_every_promise_kept() {
    let Ok(program) = std::env::var("VECTIDE_MOTO") else {
        println!("skipped: VECTIDE_MOTO names no moto_server; `.ci/run s3` installs one");
        return;
    };
    let moto = Moto::start(&program);
    let cache = tempfile::tempdir().expect("a folder");
    let store = moto.options(cache.path());
    conformance::run_alone(open_uri("s3://bucket/conformance", &store).expect("opens")).await;

    // And a database, twice reopened: once after a close, once after it was left as a crash leaves it.
    let options = Options { store, memtable_rows: 100, ..Options::default() };
    let db = Vectide::open("s3://bucket/db", options.clone()).await.expect("opens");
    let table = db.create_table("t", schema()).await.expect("creates");
    for first in (0..400).step_by(40) {
        table.upsert(numbered(first..first + 40, "first")).await.expect("durable");
    }
    db.close().await.expect("closes");
    let db = Vectide::open("s3://bucket/db", options.clone()).await.expect("opens");
    let table = db.open_table("t").await.expect("opens");
    table.upsert(numbered(0..10, "second")).await.expect("durable");
    let left = (db, table);
    let db = Vectide::open("s3://bucket/db", options).await.expect("takes over");
    let table = db.open_table("t").await.expect("opens");
    let rows = all_rows(&table).await;
    assert_eq!(rows.len(), 400);
    assert!(rows.iter().all(|(id, state)| (state == "second") == (*id < 10)));
    table.verify().await.expect("nothing is damaged");
    assert!(left.1.upsert(numbered(0..1, "late")).await.is_err(), "shut out");
}
