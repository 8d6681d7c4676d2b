//! S3's XML: bodies of requests come in, bodies of answers go out.
//!
//! Invariant: names, order and nesting are those of the S3 API reference.

use crate::call::Completed;
use crate::objects::{Listing, Page, Refusal};
use bytes::Bytes;
use quick_xml::de;
use quick_xml::se;
use serde::{Deserialize, Serialize};

/// When every object was written. Nobody here asks; the format demands a time.
const MODIFIED: &str = "2026-01-01T00:00:00.000Z";

#[derive(Debug, Deserialize)]
struct Delete {
    #[serde(rename = "Object", default)]
    objects: Vec<Named>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Named {
    #[serde(rename = "Key")]
    key: String,
}

#[derive(Debug, Deserialize)]
struct CompleteMultipartUpload {
    #[serde(rename = "Part", default)]
    parts: Vec<Part>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Part {
    #[serde(rename = "ETag")]
    tag: String,
    part_number: u32,
}

fn malformed(error: &de::DeError) -> Refusal {
    Refusal::new(400, "MalformedXML", error.to_string())
}

/// The keys that a `DeleteObjects` request names.
pub(crate) fn deletions(body: &Bytes) -> Result<Vec<String>, Refusal> {
    let asked: Delete = de::from_reader(&body[..]).map_err(|e| malformed(&e))?;
    Ok(asked.objects.into_iter().map(|object| object.key).collect())
}

/// The parts that a `CompleteMultipartUpload` request names.
pub(crate) fn completed(body: &Bytes) -> Result<Vec<Completed>, Refusal> {
    let asked: CompleteMultipartUpload = de::from_reader(&body[..]).map_err(|e| malformed(&e))?;
    Ok(asked.parts.into_iter().map(|part| Completed { part_number: part.part_number, tag: part.tag }).collect())
}

#[derive(Serialize)]
#[serde(rename = "Error", rename_all = "PascalCase")]
struct ErrorBody<'a> {
    code: &'a str,
    message: &'a str,
    resource: &'a str,
}

pub(crate) fn error(refusal: &Refusal, resource: &str) -> String {
    document(&ErrorBody { code: refusal.code, message: &refusal.message, resource })
}

#[derive(Serialize)]
struct DeleteResult {
    #[serde(rename = "Deleted")]
    deleted: Vec<Named>,
}

pub(crate) fn deleted(keys: Vec<String>) -> String {
    document(&DeleteResult { deleted: keys.into_iter().map(|key| Named { key }).collect() })
}

#[derive(Serialize)]
#[serde(rename = "ListBucketResult", rename_all = "PascalCase")]
struct ListBucketResult<'a> {
    name: &'a str,
    prefix: &'a str,
    key_count: usize,
    max_keys: usize,
    is_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_continuation_token: Option<&'a str>,
    contents: Vec<Contents<'a>>,
    common_prefixes: Vec<CommonPrefix<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Contents<'a> {
    key: &'a str,
    last_modified: &'static str,
    #[serde(rename = "ETag")]
    tag: &'a str,
    size: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix<'a> {
    prefix: &'a str,
}

pub(crate) fn listed(bucket: &str, listing: &Listing, page: &Page) -> String {
    let contents = page.objects.iter().map(|(key, object)| Contents {
        key,
        last_modified: MODIFIED,
        tag: &object.tag,
        size: object.bytes.len(),
    });
    document(&ListBucketResult {
        name: bucket,
        prefix: &listing.prefix,
        key_count: page.objects.len() + page.prefixes.len(),
        max_keys: listing.max_keys,
        is_truncated: page.next.is_some(),
        next_continuation_token: page.next.as_deref(),
        contents: contents.collect(),
        common_prefixes: page.prefixes.iter().map(|prefix| CommonPrefix { prefix }).collect(),
    })
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct InitiateMultipartUploadResult<'a> {
    bucket: &'a str,
    key: &'a str,
    upload_id: &'a str,
}

pub(crate) fn begun(bucket: &str, key: &str, upload_id: &str) -> String {
    document(&InitiateMultipartUploadResult { bucket, key, upload_id })
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct CompleteMultipartUploadResult<'a> {
    bucket: &'a str,
    key: &'a str,
    #[serde(rename = "ETag")]
    tag: &'a str,
}

pub(crate) fn complete(bucket: &str, key: &str, tag: &str) -> String {
    document(&CompleteMultipartUploadResult { bucket, key, tag })
}

fn document(body: &impl Serialize) -> String {
    let body = se::to_string(body).expect("plain structs of text and numbers serialize");
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_requests_are_read_and_nonsense_is_refused() {
        let body = Bytes::from_static(
            b"<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a&amp;b</Key></Object>\
              <Object><Key>c</Key></Object></Delete>",
        );
        assert_eq!(deletions(&body).expect("read"), ["a&b", "c"]);
        let body = Bytes::from_static(
            b"<CompleteMultipartUpload><Part><ETag>\"t\"</ETag><PartNumber>3</PartNumber></Part></CompleteMultipartUpload>",
        );
        assert_eq!(completed(&body).expect("read"), [Completed { part_number: 3, tag: "\"t\"".to_owned() }]);
        assert_eq!(deletions(&Bytes::from_static(b"<Delete><")).expect_err("refused").code, "MalformedXML");
    }

    #[test]
    fn text_is_escaped() {
        let refusal = Refusal::new(404, "NoSuchKey", "no <object>");
        let text = error(&refusal, "/b/a&b");
        assert!(
            text.contains("<Code>NoSuchKey</Code><Message>no &lt;object&gt;</Message><Resource>/b/a&amp;b<"),
            "{text}"
        );
    }
}
