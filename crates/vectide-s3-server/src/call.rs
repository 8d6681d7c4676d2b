//! A request's head and body go in, what it asks for comes out.
//!
//! `serve` parses every request here before anything is done. Invariant: what is not supported is refused as such, never
//! taken for something else.

use crate::objects::{Listing, Refusal};
use crate::xml;
use bytes::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Uri};
use std::collections::BTreeMap;

/// What has to hold for a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match`.
    Tag(String),
}

/// A part that completes an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) part_number: u32,
    pub(crate) tag: String,
}

/// The bytes of an object that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// From the first to the second, both included; to the end.
    From(u64, Option<u64>),
    /// So many from the end.
    Last(u64),
}

impl Span {
    /// First byte and one behind the last, of an object of `len` bytes; `None` if there are no such bytes.
    pub(crate) fn of(self, len: u64) -> Option<(u64, u64)> {
        let (from, to) = match self {
            Self::From(from, to) => (from, to.map_or(len, |to| to.saturating_add(1).min(len))),
            Self::Last(count) => (len.saturating_sub(count), len),
        };
        (from < to).then_some((from, to))
    }
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Put(Condition),
    Get { span: Option<Span>, tag: Option<String>, is_head: bool },
    Delete,
    DeleteMany(Vec<String>),
    List(Listing),
    BeginUpload,
    PutPart { upload: String, number: u32 },
    Complete { upload: String, parts: Vec<Completed>, condition: Condition },
    Abort { upload: String },
}

impl Call {
    /// For counting; see [`crate::Line::count`].
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Put(_) => "put_object",
            Self::Get { is_head: false, .. } => "get_object",
            Self::Get { is_head: true, .. } => "head_object",
            Self::Delete => "delete_object",
            Self::DeleteMany(_) => "delete_objects",
            Self::List(_) => "list_objects",
            Self::BeginUpload => "create_upload",
            Self::PutPart { .. } => "upload_part",
            Self::Complete { .. } => "complete_upload",
            Self::Abort { .. } => "abort_upload",
        }
    }

    /// Whether it is to change something.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::Get { .. } | Self::List(_))
    }
}

/// A request as understood.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) bucket: String,
    /// Empty for what is asked of the bucket.
    pub(crate) key: String,
    pub(crate) call: Call,
}

/// The access key that signed the request.
pub(crate) fn access_key(headers: &HeaderMap) -> Option<&str> {
    let signed = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (_, credential) = signed.strip_prefix("AWS4-HMAC-SHA256")?.split_once("Credential=")?;
    credential.split('/').next()
}

/// Understands a request.
pub(crate) fn parse(head: &Parts, body: &Bytes, list_page: usize) -> Result<Asked, Refusal> {
    let (bucket, key) = place(&head.uri)?;
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(head.uri.query().unwrap_or("").as_bytes()).into_owned().collect();
    let upload = query.get("uploadId").cloned();
    let unsupported = || {
        let message = format!("{} {} is not supported by this server", head.method, head.uri);
        Refusal::new(501, "NotImplemented", message)
    };
    let call = match (&head.method, key.is_empty(), upload) {
        (&Method::GET, true, None) if query.get("list-type").is_some_and(|kind| kind == "2") => {
            Call::List(listing(&query, list_page)?)
        }
        (&Method::POST, true, None) if query.contains_key("delete") => Call::DeleteMany(xml::deletions(body)?),
        (&Method::PUT, false, Some(upload)) => Call::PutPart { upload, number: number(&query, "partNumber")? },
        (&Method::PUT, false, None) if !head.headers.contains_key("x-amz-copy-source") => {
            Call::Put(condition(&head.headers)?)
        }
        (&Method::POST, false, None) if query.contains_key("uploads") => Call::BeginUpload,
        (&Method::POST, false, Some(upload)) => {
            Call::Complete { upload, parts: xml::completed(body)?, condition: condition(&head.headers)? }
        }
        (&Method::DELETE, false, Some(upload)) => Call::Abort { upload },
        (&Method::DELETE, false, None) => Call::Delete,
        (&Method::GET | &Method::HEAD, false, None) => {
            let tag = text(&head.headers, header::IF_MATCH.as_str())?;
            Call::Get { span: span(&head.headers)?, tag, is_head: head.method == Method::HEAD }
        }
        _ => return Err(unsupported()),
    };
    Ok(Asked { bucket, key, call })
}

/// Bucket and key of a path-style address.
fn place(uri: &Uri) -> Result<(String, String), Refusal> {
    let path = uri.path().trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let plain = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        decoded.map(std::borrow::Cow::into_owned).map_err(|e| Refusal::new(400, "InvalidURI", e.to_string()))
    };
    Ok((plain(bucket)?, plain(key)?))
}

fn listing(query: &BTreeMap<String, String>, list_page: usize) -> Result<Listing, Refusal> {
    if query.contains_key("encoding-type") {
        return Err(Refusal::new(501, "NotImplemented", "encoding-type is not supported by this server"));
    }
    let given = |name: &str| query.get(name).cloned();
    let max_keys = if query.contains_key("max-keys") { number(query, "max-keys")? as usize } else { list_page };
    Ok(Listing {
        prefix: given("prefix").unwrap_or_default(),
        delimiter: given("delimiter"),
        after: given("continuation-token").or_else(|| given("start-after")).unwrap_or_default(),
        max_keys: max_keys.min(list_page),
    })
}

fn number(query: &BTreeMap<String, String>, name: &str) -> Result<u32, Refusal> {
    let number = query.get(name).and_then(|text| text.parse().ok());
    number.ok_or_else(|| Refusal::new(400, "InvalidArgument", format!("{name} is no number")))
}

fn text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Refusal::new(400, "InvalidArgument", format!("{name} is no text")))?;
    Ok(Some(text.to_owned()))
}

fn condition(headers: &HeaderMap) -> Result<Condition, Refusal> {
    match (text(headers, header::IF_NONE_MATCH.as_str())?.as_deref(), text(headers, header::IF_MATCH.as_str())?) {
        (None, None) => Ok(Condition::None),
        (Some("*"), None) => Ok(Condition::Absent),
        (None, Some(tag)) => Ok(Condition::Tag(tag)),
        _ => Err(Refusal::new(501, "NotImplemented", "this condition is not supported for a put")),
    }
}

fn span(headers: &HeaderMap) -> Result<Option<Span>, Refusal> {
    let Some(text) = text(headers, header::RANGE.as_str())? else { return Ok(None) };
    let refused = || Refusal::new(416, "InvalidRange", format!("the range `{text}` is not understood"));
    let number = |digits: &str| digits.parse::<u64>().map_err(|_| refused());
    let (from, to) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')).ok_or_else(refused)?;
    Ok(Some(match (from, to) {
        ("", last) => Span::Last(number(last)?),
        (from, "") => Span::From(number(from)?, None),
        (from, to) => Span::From(number(from)?, Some(number(to)?)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn ask(method: &str, uri: &str, headers: &[(&str, &str)], body: &str) -> Result<Asked, Refusal> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).expect("a request").into_parts();
        parse(&head, &Bytes::from(body.to_owned()), 1_000)
    }

    #[test]
    fn keys_are_decoded_and_conditions_read() {
        let asked = ask("PUT", "/b/a%20b/c%2Bd", &[("if-none-match", "*")], "x").expect("understood");
        assert_eq!((asked.bucket.as_str(), asked.key.as_str()), ("b", "a b/c+d"));
        assert!(matches!(asked.call, Call::Put(Condition::Absent)));
        let refused = ask("PUT", "/b/k", &[("if-none-match", "\"tag\"")], "").expect_err("refused");
        assert_eq!(refused.status, 501);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for (method, uri) in [("GET", "/b"), ("GET", "/"), ("PATCH", "/b/k"), ("GET", "/b/?uploads"), ("POST", "/b/k")]
        {
            assert_eq!(ask(method, uri, &[], "").expect_err(uri).status, 501, "{method} {uri}");
        }
        assert_eq!(ask("PUT", "/b/k", &[("x-amz-copy-source", "b/l")], "").expect_err("a copy").status, 501);
    }

    #[test]
    fn spans_are_those_of_http() {
        let span = |text: &str| match ask("GET", "/b/k", &[("range", text)], "").expect("understood").call {
            Call::Get { span, .. } => span.expect("a span").of(10),
            other => panic!("{other:?}"),
        };
        assert_eq!(span("bytes=2-4"), Some((2, 5)));
        assert_eq!(span("bytes=2-"), Some((2, 10)));
        assert_eq!(span("bytes=-3"), Some((7, 10)));
        assert_eq!(span("bytes=2-99"), Some((2, 10)));
        assert_eq!(span("bytes=10-12"), None);
    }

    #[test]
    fn the_access_key_is_read_from_the_signature() {
        let mut headers = HeaderMap::new();
        assert_eq!(access_key(&headers), None);
        let signed = "AWS4-HMAC-SHA256 Credential=alice/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=0";
        headers.insert(header::AUTHORIZATION, signed.parse().expect("a header"));
        assert_eq!(access_key(&headers), Some("alice"));
    }
}
