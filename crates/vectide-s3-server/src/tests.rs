//! Requests over a bare socket: what a client's library would hide.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Sends one request and reads until the server closes the connection; the answer as text.
fn ask(server: &S3Server, key: &str, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    let sent = write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\
         authorization: AWS4-HMAC-SHA256 Credential={key}/20260101/r/s3/aws4_request\r\n{headers}\r\n{body}",
        body.len()
    );
    sent.expect("sends");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

fn server() -> (S3Server, Line) {
    let server = S3Server::start(&["b"]).expect("starts");
    let line = server.line("k");
    (server, line)
}

const ABSENT: &str = "if-none-match: *\r\n";

#[test]
fn errors_come_as_s3_sends_them() {
    let (server, _) = server();
    let answer = ask(&server, "k", "GET", "/b/none", "", "");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("<Code>NoSuchKey</Code>"), "{answer}");
    let answer = ask(&server, "k", "PUT", "/c/x", "", "x");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("<Code>NoSuchBucket</Code>"), "{answer}");
    let answer = ask(&server, "nobody", "GET", "/b/none", "", "");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("<Code>InvalidAccessKeyId</Code>"), "{answer}");
}

#[test]
fn of_many_conditional_puts_one_succeeds() {
    let (server, line) = server();
    let answers: Vec<String> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..16)
            .map(|n| {
                let server = &server;
                scope.spawn(move || ask(server, "k", "PUT", "/b/x", ABSENT, &format!("racer {n}")))
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().expect("no panic")).collect()
    });
    let won = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
    let lost = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 412")).count();
    assert_eq!((won, lost, line.count("put_object")), (1, 15, 16));
}

#[test]
fn a_dropped_put_has_its_effect_or_not_as_told() {
    let (server, line) = server();
    let all = |faults: fn(&mut Faults)| {
        let mut told = Faults::default();
        faults(&mut told);
        line.set_faults(told);
    };
    all(|faults| faults.drop_before = 1_000);
    assert_eq!(ask(&server, "k", "PUT", "/b/before", "", "x"), "", "no answer");
    all(|faults| faults.drop_after = 1_000);
    assert_eq!(ask(&server, "k", "PUT", "/b/after", "", "x"), "", "no answer");
    all(|faults| (faults.late, faults.late_ms) = (1_000, 50));
    assert_eq!(ask(&server, "k", "PUT", "/b/late", "", "x"), "", "no answer");
    all(|faults| faults.slow_down = 1_000);
    let answer = ask(&server, "k", "PUT", "/b/slow", "", "x");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("<Code>SlowDown</Code>"), "{answer}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(line.settle());
    let keys: Vec<String> = server.objects("b").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["after", "late"]);
    assert_eq!(line.count("drop_before") + line.count("drop_after") + line.count("late"), 3);
}

#[test]
fn a_put_whose_client_is_gone_takes_effect_once_it_is_released() {
    let (server, line) = server();
    line.stall(Phase::Before);
    let mut stream = TcpStream::connect(server.address).expect("connects");
    let authorization = "authorization: AWS4-HMAC-SHA256 Credential=k/20260101/r/s3/aws4_request";
    write!(stream, "PUT /b/x HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n{authorization}\r\n\r\nx").expect("sends");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
    assert!(stream.read(&mut [0]).is_err(), "no answer");
    assert_eq!(line.count("put_object"), 1, "it has arrived");
    drop(stream);
    // Another client is not held up.
    let _other = server.line("other");
    assert!(ask(&server, "other", "PUT", "/b/y", "", "y").starts_with("HTTP/1.1 200"));
    line.release();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(line.settle());
    assert_eq!(server.objects("b"), [("x".to_owned(), 1), ("y".to_owned(), 1)]);
}

#[test]
fn bodies_come_whole_slowly_or_cut_and_ranges_as_asked() {
    let (server, line) = server();
    ask(&server, "k", "PUT", "/b/x", "", "0123456789");
    let body = |answer: &str| answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    let answer = ask(&server, "k", "GET", "/b/x", "range: bytes=2-4\r\n", "");
    assert!(answer.contains("content-range: bytes 2-4/10") && body(&answer).as_deref() == Some("234"), "{answer}");
    let answer = ask(&server, "k", "HEAD", "/b/x", "", "");
    assert!(answer.contains("content-length: 10") && body(&answer).as_deref() == Some(""), "{answer}");
    line.set_faults(Faults { slow_body: 1_000, ..Faults::default() });
    assert_eq!(body(&ask(&server, "k", "GET", "/b/x", "", "")).as_deref(), Some("0123456789"));
    line.set_faults(Faults { cut_body: 1_000, ..Faults::default() });
    let answer = ask(&server, "k", "GET", "/b/x", "", "");
    assert!(answer.contains("content-length: 10"), "{answer}");
    assert_eq!(body(&answer).as_deref(), Some("01234"), "half of it");
}
