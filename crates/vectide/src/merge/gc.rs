//! Objects that the newest manifest no longer names, and until when they stay.
//!
//! In: paths, with the manifest version that first did without them. Out: those that have been done without for so many
//! versions that no reader can be reading the manifests that name them, unless it gets `Expired` for being that late.
//! `table/merging` fills it after a commit and at opening, and deletes what comes out. Pure: no clock, no store. Invariant:
//! what comes out is named by none of the newest `kept` versions.

use std::collections::VecDeque;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// By ascending version.
    dropped: VecDeque<(u64, String)>,
}

impl Garbage {
    /// Version `version` is the first that does without these paths; versions come ascending.
    pub(crate) fn dropped(&mut self, version: u64, paths: impl IntoIterator<Item = String>) {
        self.dropped.extend(paths.into_iter().map(|path| (version, path)));
    }

    /// Takes out one path that may go, the newest version being `newest`.
    pub(crate) fn take(&mut self, newest: u64, kept: u64) -> Option<String> {
        // Of the newest `kept` versions the oldest is `newest - kept + 1`; if that one does without it, all do.
        let (version, _) = self.dropped.front()?;
        if version + kept > newest + 1 {
            return None;
        }
        self.dropped.pop_front().map(|(_, path)| path)
    }

    /// Puts back what could not be deleted.
    pub(crate) fn put_back(&mut self, version: u64, path: String) {
        self.dropped.push_back((version, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_once_none_of_the_kept_versions_can_name_it() {
        let mut garbage = Garbage::default();
        garbage.dropped(7, ["a".to_owned(), "b".to_owned()]);
        garbage.dropped(9, ["c".to_owned()]);
        // Version 6 is the last that names a and b: with three versions kept, it is one of them up to version 8.
        assert_eq!(garbage.take(8, 3), None);
        assert_eq!(garbage.take(9, 3).as_deref(), Some("a"));
        assert_eq!(garbage.take(9, 3).as_deref(), Some("b"));
        assert_eq!(garbage.take(10, 3), None);
        garbage.put_back(10, "a".to_owned());
        assert_eq!(garbage.take(11, 3).as_deref(), Some("c"));
        assert_eq!(garbage.take(11, 1).as_deref(), Some("a"));
    }
}
