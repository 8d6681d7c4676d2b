//! Buckets of objects in memory, and multipart uploads on their way.
//!
//! `serve` calls it under the server's lock, which is what makes a conditional put atomic. Invariant: an object is whole:
//! parts become visible only as one object, when their upload is completed.

use crate::call::{Completed, Condition};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use twox_hash::XxHash3_64;

/// The least size of a part that is not the last, in bytes.
const LEAST_PART: usize = 5 << 20;

/// Why S3 refuses a request: its code, status and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }
}

/// An object and its tag: the hash of its bytes, in quotes.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) tag: String,
}

impl Object {
    fn new(bytes: Bytes) -> Self {
        let tag = format!("\"{:016x}-{}\"", XxHash3_64::oneshot(&bytes), bytes.len());
        Self { bytes, tag }
    }
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<(String, Object)>,
    pub(crate) prefixes: BTreeSet<String>,
    /// Where the next page begins: behind this key or prefix.
    pub(crate) next: Option<String>,
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub(crate) prefix: String,
    pub(crate) delimiter: Option<String>,
    /// Only what sorts behind this.
    pub(crate) after: String,
    pub(crate) max_keys: usize,
}

#[derive(Debug)]
struct Upload {
    bucket: String,
    key: String,
    parts: BTreeMap<u32, Object>,
}

/// All buckets.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    buckets: BTreeMap<String, BTreeMap<String, Object>>,
    uploads: BTreeMap<String, Upload>,
    uploads_begun: u64,
}

type Answer<T> = Result<T, Refusal>;

impl Buckets {
    pub(crate) fn new(names: &[&str]) -> Self {
        let buckets = names.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect();
        Self { buckets, ..Self::default() }
    }

    fn bucket(&mut self, name: &str) -> Answer<&mut BTreeMap<String, Object>> {
        self.buckets
            .get_mut(name)
            .ok_or_else(|| Refusal::new(404, "NoSuchBucket", format!("there is no bucket {name}")))
    }

    pub(crate) fn sizes(&self, bucket: &str) -> Vec<(String, u64)> {
        let objects = self.buckets.get(bucket).into_iter().flatten();
        objects.map(|(key, object)| (key.clone(), object.bytes.len() as u64)).collect()
    }

    pub(crate) fn contents(&self, bucket: &str) -> Vec<(String, Bytes)> {
        let objects = self.buckets.get(bucket).into_iter().flatten();
        objects.map(|(key, object)| (key.clone(), object.bytes.clone())).collect()
    }

    pub(crate) fn unfinished_uploads(&self) -> usize {
        self.uploads.len()
    }

    pub(crate) fn abort_uploads(&mut self) {
        self.uploads.clear();
    }

    pub(crate) fn get(&mut self, bucket: &str, key: &str) -> Answer<Object> {
        let found = self.bucket(bucket)?.get(key).cloned();
        found.ok_or_else(|| Refusal::new(404, "NoSuchKey", format!("there is no object {key}")))
    }

    /// Puts an object if its condition holds; its tag.
    pub(crate) fn put(&mut self, bucket: &str, key: &str, bytes: Bytes, condition: &Condition) -> Answer<String> {
        let objects = self.bucket(bucket)?;
        let there = objects.get(key).map(|object| object.tag.as_str());
        let refused = match condition {
            Condition::None => false,
            Condition::Absent => there.is_some(),
            Condition::Tag(tag) => there != Some(tag),
        };
        if refused {
            let message = "at least one of the preconditions you specified did not hold";
            return Err(Refusal::new(412, "PreconditionFailed", message));
        }
        let object = Object::new(bytes);
        let tag = object.tag.clone();
        objects.insert(key.to_owned(), object);
        Ok(tag)
    }

    /// Removes an object; a missing one is no error.
    pub(crate) fn delete(&mut self, bucket: &str, key: &str) -> Answer<()> {
        self.bucket(bucket)?.remove(key);
        Ok(())
    }

    pub(crate) fn list(&mut self, bucket: &str, listing: &Listing) -> Answer<Page> {
        let mut page = Page::default();
        for (key, object) in self.bucket(bucket)?.range(listing.prefix.clone()..) {
            let Some(rest) = key.strip_prefix(&listing.prefix) else { break };
            let delimiter = listing.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
            let folder = delimiter.and_then(|d| rest.find(d).map(|at| &key[..listing.prefix.len() + at + d.len()]));
            let name = folder.unwrap_or(key);
            if name <= listing.after.as_str() || page.prefixes.contains(name) {
                continue;
            }
            if page.objects.len() + page.prefixes.len() == listing.max_keys {
                // What was listed last, be it a key or a prefix.
                let last_key = page.objects.last().map(|(key, _)| key.clone());
                page.next = last_key.max(page.prefixes.last().cloned());
                break;
            }
            match folder {
                Some(folder) => drop(page.prefixes.insert(folder.to_owned())),
                None => page.objects.push((key.clone(), object.clone())),
            }
        }
        Ok(page)
    }

    /// Begins a multipart upload; its id.
    pub(crate) fn begin_upload(&mut self, bucket: &str, key: &str) -> Answer<String> {
        self.bucket(bucket)?;
        self.uploads_begun += 1;
        let id = format!("upload-{}", self.uploads_begun);
        let upload = Upload { bucket: bucket.to_owned(), key: key.to_owned(), parts: BTreeMap::new() };
        self.uploads.insert(id.clone(), upload);
        Ok(id)
    }

    fn upload(&mut self, bucket: &str, key: &str, id: &str) -> Answer<&mut Upload> {
        let found = self.uploads.get_mut(id).filter(|upload| upload.bucket == bucket && upload.key == key);
        found.ok_or_else(|| Refusal::new(404, "NoSuchUpload", format!("there is no upload {id} of {key}")))
    }

    /// Takes a part, in place of an earlier one of the same number; its tag.
    pub(crate) fn put_part(&mut self, bucket: &str, key: &str, id: &str, number: u32, bytes: Bytes) -> Answer<String> {
        let part = Object::new(bytes);
        let tag = part.tag.clone();
        self.upload(bucket, key, id)?.parts.insert(number, part);
        Ok(tag)
    }

    /// Makes one object of the parts; its tag.
    pub(crate) fn complete_upload(
        &mut self,
        bucket: &str,
        key: &str,
        id: &str,
        parts: &[Completed],
        condition: &Condition,
    ) -> Answer<String> {
        let upload = self.upload(bucket, key, id)?;
        let mut whole = BytesMut::new();
        for (n, wanted) in parts.iter().enumerate() {
            let part = upload.parts.get(&wanted.part_number).filter(|part| part.tag == wanted.tag);
            let missing = || Refusal::new(400, "InvalidPart", format!("part {} is not there", wanted.part_number));
            let part = part.ok_or_else(missing)?;
            if n + 1 < parts.len() && part.bytes.len() < LEAST_PART {
                return Err(Refusal::new(400, "EntityTooSmall", format!("part {} is too small", wanted.part_number)));
            }
            whole.extend_from_slice(&part.bytes);
        }
        if parts.is_empty() || !parts.is_sorted_by_key(|part| part.part_number) {
            return Err(Refusal::new(400, "InvalidPartOrder", "the parts are not in order"));
        }
        let tag = self.put(bucket, key, whole.freeze(), condition)?;
        self.uploads.remove(id);
        Ok(tag)
    }

    pub(crate) fn abort_upload(&mut self, bucket: &str, key: &str, id: &str) -> Answer<()> {
        self.upload(bucket, key, id)?;
        self.uploads.remove(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(prefix: &str, delimiter: Option<&str>, max_keys: usize) -> Listing {
        Listing { prefix: prefix.to_owned(), delimiter: delimiter.map(str::to_owned), after: String::new(), max_keys }
    }

    #[test]
    fn a_listing_in_pages_is_the_listing_with_or_without_folders() {
        let mut buckets = Buckets::new(&["b"]);
        let keys = ["a/1", "a/2", "a/x/1", "a/x/2", "a/y/1", "a/z", "ab"];
        for key in keys {
            buckets.put("b", key, Bytes::from_static(b"x"), &Condition::None).expect("puts");
        }
        let all = |buckets: &mut Buckets, mut listing: Listing| {
            let mut names = Vec::new();
            loop {
                let page = buckets.list("b", &listing).expect("lists");
                assert!(page.objects.len() + page.prefixes.len() <= listing.max_keys);
                names.extend(page.objects.into_iter().map(|(key, _)| key).chain(page.prefixes));
                let Some(next) = page.next else { break };
                listing.after = next;
            }
            names.sort();
            names
        };
        for max_keys in 1..8 {
            assert_eq!(all(&mut buckets, listing("", None, max_keys)), keys, "{max_keys}");
            assert_eq!(all(&mut buckets, listing("a/x/", None, max_keys)), ["a/x/1", "a/x/2"], "{max_keys}");
            let folders = all(&mut buckets, listing("a/", Some("/"), max_keys));
            assert_eq!(folders, ["a/1", "a/2", "a/x/", "a/y/", "a/z"], "{max_keys}");
        }
    }

    #[test]
    fn conditions_are_held_to() {
        let mut buckets = Buckets::new(&["b"]);
        let mut put = |condition: &Condition| buckets.put("b", "k", Bytes::from_static(b"x"), condition);
        assert_eq!(put(&Condition::Tag("\"none\"".to_owned())).expect_err("absent").status, 412);
        let tag = put(&Condition::Absent).expect("absent");
        assert_eq!(put(&Condition::Absent).expect_err("there").code, "PreconditionFailed");
        put(&Condition::Tag(tag)).expect("the same");
        assert_eq!(buckets.put("c", "k", Bytes::new(), &Condition::None).expect_err("no bucket").status, 404);
    }

    #[test]
    fn an_upload_is_whole_or_nothing() {
        let mut buckets = Buckets::new(&["b"]);
        let id = buckets.begin_upload("b", "k").expect("begins");
        let part = |tag: &str, part_number| Completed { tag: tag.to_owned(), part_number };
        let small = buckets.put_part("b", "k", &id, 1, Bytes::from_static(b"x")).expect("takes it");
        let last = buckets.put_part("b", "k", &id, 2, Bytes::from_static(b"y")).expect("takes it");
        let mut complete = |parts: &[Completed]| buckets.complete_upload("b", "k", &id, parts, &Condition::None);
        assert_eq!(complete(&[part(&small, 1), part(&last, 2)]).expect_err("small").code, "EntityTooSmall");
        assert_eq!(complete(&[part(&last, 1)]).expect_err("another").code, "InvalidPart");
        complete(&[part(&last, 2)]).expect("whole");
        assert_eq!(complete(&[part(&last, 2)]).expect_err("over").code, "NoSuchUpload");
        assert_eq!(buckets.get("b", "k").expect("there").bytes, "y");
        assert_eq!(buckets.unfinished_uploads(), 0);
    }
}
