//! Connections go in, answers come out, or what a fate makes of them.
//!
//! One task a connection, and one a request: the effect does not depend on whether anybody still listens. Invariant: the
//! effect of a request happens at most once, whole, under the server's lock.

use crate::Shared;
use crate::call::{self, Asked, Call, Condition};
use crate::faults::{Fate, Fault};
use crate::line::{Line, Phase, UnderWay};
use crate::objects::Refusal;
use crate::xml;
use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Pieces of a slow body, and the pause before each.
const SLOW_PIECES: usize = 4;
const SLOW_PAUSE: Duration = Duration::from_millis(25);
/// After a failed accept: out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

type Body = UnsyncBoxBody<Bytes, Dropped>;

/// The connection is to be closed as it stands.
#[derive(Debug)]
pub(crate) struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// Serves until `stopped`.
pub(crate) async fn run(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| answer(Arc::clone(&shared), request));
            // An error is a client that went away or a connection that was dropped on purpose.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Dropped> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
    let resource = head.uri.path().to_owned();
    let (line, asked) = match understood(&shared, &head, &body) {
        Ok(understood) => understood,
        Err(refusal) => return Ok(refused(&refusal, &resource)),
    };
    let fate = line.draw(asked.call.name(), asked.call.writes());
    // It has arrived whole: from here on it does not matter whether the client is still there.
    let under_way = line.begin();
    let happened = tokio::spawn(async move { happen(&shared, &line, fate, asked, body, &resource, under_way).await });
    match happened.await.map_err(|_| Dropped)? {
        Ending::Answer(answer) => Ok(answer),
        Ending::Drop => Err(Dropped),
        // Until the client gives up, which ends the connection and this with it.
        Ending::Hang => std::future::pending().await,
    }
}

/// How a request ends for its client.
enum Ending {
    Answer(Response<Body>),
    Drop,
    Hang,
}

fn understood(shared: &Shared, head: &Parts, body: &Bytes) -> Result<(Line, Asked), Refusal> {
    let key = call::access_key(&head.headers).unwrap_or_default();
    let line = shared.lines.lock().get(key).cloned();
    let line = line.ok_or_else(|| Refusal::new(403, "InvalidAccessKeyId", "the access key is not known here"))?;
    Ok((line, call::parse(head, body, shared.list_page)?))
}

/// Carries a request out as its fate says. `under_way` goes once the effect has taken place or never will.
async fn happen(
    shared: &Arc<Shared>,
    line: &Line,
    fate: Fate,
    asked: Asked,
    body: Bytes,
    resource: &str,
    under_way: UnderWay,
) -> Ending {
    match fate.fault {
        Some(Fault::DropBefore) => return Ending::Drop,
        Some(Fault::SlowDown) => return Ending::Answer(slow_down(&asked.call, fate.is_disguised, resource)),
        Some(Fault::HangBefore) => return Ending::Hang,
        Some(Fault::Late(delay)) => {
            let (shared, line) = (Arc::clone(shared), line.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                line.pass(Phase::Before).await;
                let _ = effect(&shared, asked, body);
                drop(under_way);
            });
            return Ending::Drop;
        }
        _ => {}
    }
    tokio::time::sleep(fate.before).await;
    line.pass(Phase::Before).await;
    let done = effect(shared, asked, body);
    drop(under_way);
    line.pass(Phase::After).await;
    tokio::time::sleep(fate.after).await;
    match (fate.fault, done) {
        (Some(Fault::DropAfter), _) => Ending::Drop,
        (Some(Fault::HangAfter), _) => Ending::Hang,
        (fault, Ok(done)) => Ending::Answer(done.response(fault)),
        (_, Err(refusal)) => Ending::Answer(refused(&refusal, resource)),
    }
}

/// What to answer.
struct Done {
    status: StatusCode,
    body: Bytes,
    /// Of what a body would be that is not sent.
    length: Option<usize>,
    tag: Option<String>,
    range: Option<String>,
}

impl Done {
    fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, body: body.into(), length: None, tag: None, range: None }
    }

    fn tagged(self, tag: String) -> Self {
        Self { tag: Some(tag), ..self }
    }

    fn response(self, fault: Option<Fault>) -> Response<Body> {
        let mut response = Response::builder().status(self.status);
        response = response.header(header::CONTENT_LENGTH, self.length.unwrap_or(self.body.len()));
        if let Some(tag) = self.tag {
            response = response.header(header::ETAG, tag);
        }
        if let Some(range) = self.range {
            response = response.header(header::CONTENT_RANGE, range);
        }
        let body = match fault {
            Some(Fault::SlowBody) => pieces(self.body, false),
            Some(Fault::CutBody) => pieces(self.body, true),
            _ => whole(self.body),
        };
        response.body(body).expect("a status and headers of text")
    }
}

/// Does what was asked.
fn effect(shared: &Shared, asked: Asked, body: Bytes) -> Result<Done, Refusal> {
    let mut buckets = shared.buckets.lock();
    let Asked { bucket, key, call } = asked;
    let ok = |body: String| Done::new(StatusCode::OK, body);
    match call {
        // ORDERING: Relaxed: see `S3Server::ignore_conditions`.
        Call::Put(_) if shared.is_careless.load(Ordering::Relaxed) => {
            Ok(ok(String::new()).tagged(buckets.put(&bucket, &key, body, &Condition::None)?))
        }
        Call::Put(condition) => Ok(ok(String::new()).tagged(buckets.put(&bucket, &key, body, &condition)?)),
        Call::Get { span, tag, is_head } => {
            let object = buckets.get(&bucket, &key)?;
            drop(buckets);
            if tag.is_some_and(|tag| tag != object.tag) {
                return Err(Refusal::new(412, "PreconditionFailed", "the object has changed"));
            }
            got(object, span, is_head)
        }
        Call::Delete => {
            buckets.delete(&bucket, &key)?;
            Ok(Done::new(StatusCode::NO_CONTENT, Bytes::new()))
        }
        Call::DeleteMany(keys) => {
            for key in &keys {
                buckets.delete(&bucket, key)?;
            }
            Ok(ok(xml::deleted(keys)))
        }
        Call::List(listing) => {
            let page = buckets.list(&bucket, &listing)?;
            Ok(ok(xml::listed(&bucket, &listing, &page)))
        }
        Call::BeginUpload => Ok(ok(xml::begun(&bucket, &key, &buckets.begin_upload(&bucket, &key)?))),
        Call::PutPart { upload, number } => {
            Ok(ok(String::new()).tagged(buckets.put_part(&bucket, &key, &upload, number, body)?))
        }
        Call::Complete { upload, parts, condition } => {
            let tag = buckets.complete_upload(&bucket, &key, &upload, &parts, &condition)?;
            Ok(ok(xml::complete(&bucket, &key, &tag)))
        }
        Call::Abort { upload } => {
            buckets.abort_upload(&bucket, &key, &upload)?;
            Ok(Done::new(StatusCode::NO_CONTENT, Bytes::new()))
        }
    }
}

fn got(object: crate::objects::Object, span: Option<call::Span>, is_head: bool) -> Result<Done, Refusal> {
    let len = object.bytes.len();
    let Some(span) = span else {
        let body = if is_head { Bytes::new() } else { object.bytes };
        return Ok(Done { length: Some(len), ..Done::new(StatusCode::OK, body) }.tagged(object.tag));
    };
    let refused = || Refusal::new(416, "InvalidRange", format!("the object has {len} bytes"));
    let (from, to) = span.of(len as u64).ok_or_else(refused)?;
    let body = object.bytes.slice(from as usize..to as usize);
    let length = Some(body.len());
    let body = if is_head { Bytes::new() } else { body };
    let range = Some(format!("bytes {from}-{}/{len}", to - 1));
    Ok(Done { range, length, ..Done::new(StatusCode::PARTIAL_CONTENT, body) }.tagged(object.tag))
}

fn refused(refusal: &Refusal, resource: &str) -> Response<Body> {
    let status = StatusCode::from_u16(refusal.status).expect("statuses are HTTP's");
    Done::new(status, xml::error(refusal, resource)).response(None)
}

fn slow_down(call: &Call, is_disguised: bool, resource: &str) -> Response<Body> {
    let refusal = Refusal::new(503, "SlowDown", "Please reduce your request rate.");
    let is_disguised = is_disguised && matches!(call, Call::Complete { .. });
    let status = if is_disguised { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Done::new(status, xml::error(&refusal, resource)).response(None)
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body in pieces with pauses; one that is cut ends after half of it, with its connection.
fn pieces(bytes: Bytes, is_cut: bool) -> Body {
    let size = bytes.len().div_ceil(SLOW_PIECES).max(1);
    let end = if is_cut { bytes.len() / 2 } else { bytes.len() };
    let next = move |at: usize| {
        let bytes = bytes.clone();
        async move {
            if at == usize::MAX || (at >= end && !is_cut) {
                return None;
            }
            if at >= end {
                // What was sent before has to leave first.
                tokio::time::sleep(SLOW_PAUSE).await;
                return Some((Err(Dropped), usize::MAX));
            }
            if !is_cut {
                tokio::time::sleep(SLOW_PAUSE).await;
            }
            let piece = bytes.slice(at..(at + size).min(end));
            Some((Ok(Frame::data(piece)), at + size))
        }
    };
    StreamBody::new(stream::unfold(0, next)).boxed_unsync()
}
