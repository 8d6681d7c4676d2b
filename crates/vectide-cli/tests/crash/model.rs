//! What a table has to hold after a crash: every acknowledged write, and each unacknowledged one wholly or not at all.
//!
//! The harness applies acknowledged writes as they come and, after a reopen, settles those that were under way against what
//! is there. Invariant: once a reopened table has shown a write, or its absence, that is decided for good.

use crate::rows::{Kind, Op};
use std::collections::BTreeMap;

/// A map from key to newest version.
#[derive(Clone, Debug, Default)]
pub struct Model {
    rows: BTreeMap<i64, u64>,
}

/// What became of the writes that were under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub whole: u64,
    pub absent: u64,
}

impl Model {
    pub fn rows(&self) -> &BTreeMap<i64, u64> {
        &self.rows
    }

    /// A write was acknowledged.
    pub fn apply(&mut self, op: &Op) {
        for key in &op.keys {
            match op.kind {
                Kind::Delete => drop(self.rows.remove(key)),
                Kind::Upsert | Kind::Insert => drop(self.rows.insert(*key, op.version)),
            }
        }
    }

    /// Compares with what is there. `under_way` touch different keys.
    ///
    /// # Errors
    /// What is lost, doubled, resurrected or half there.
    pub fn settle(&mut self, under_way: &[Op], found: &BTreeMap<i64, u64>) -> Result<Settled, String> {
        let mut settled = Settled::default();
        for op in under_way {
            let after = |_: &i64| (op.kind != Kind::Delete).then_some(op.version);
            let agrees =
                |wanted: &dyn Fn(&i64) -> Option<u64>| op.keys.iter().all(|k| found.get(k).copied() == wanted(k));
            if agrees(&|key| self.rows.get(key).copied()) {
                settled.absent += 1;
            } else if agrees(&after) {
                settled.whole += 1;
                self.apply(op);
            } else {
                let there: Vec<_> = op.keys.iter().map(|key| (key, found.get(key))).collect();
                return Err(format!("the unacknowledged {op:?} is half there: {there:?}"));
            }
        }
        for (key, version) in &self.rows {
            match found.get(key) {
                None => return Err(format!("key {key} at version {version} was acknowledged and is lost")),
                Some(other) if other != version => {
                    return Err(format!("key {key} is at version {other}; {version} was acknowledged"));
                }
                Some(_) => {}
            }
        }
        match found.iter().find(|(key, _)| !self.rows.contains_key(key)) {
            Some((key, version)) => Err(format!("key {key} at version {version} is there again: it was deleted")),
            None => Ok(settled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(kind: Kind, version: u64, keys: &[i64]) -> Op {
        Op { kind, version, keys: keys.to_vec() }
    }

    #[test]
    fn the_checker_notices_what_is_lost_doubled_resurrected_or_half_there() {
        let mut model = Model::default();
        model.apply(&op(Kind::Upsert, 1, &[1, 2, 3]));
        model.apply(&op(Kind::Delete, 2, &[3]));
        let under_way = [op(Kind::Upsert, 3, &[2, 4]), op(Kind::Delete, 4, &[1])];
        let found = |rows: &[(i64, u64)]| rows.iter().copied().collect::<BTreeMap<_, _>>();
        let settle = |rows: &[(i64, u64)]| model.clone().settle(&under_way, &found(rows));
        assert_eq!(settle(&[(1, 1), (2, 1)]), Ok(Settled { whole: 0, absent: 2 }));
        assert_eq!(settle(&[(2, 3), (4, 3)]), Ok(Settled { whole: 2, absent: 0 }));
        for bad in
            [&[(1, 1)][..], &[(1, 1), (2, 3)], &[(1, 1), (2, 1), (4, 3)], &[(1, 1), (2, 1), (3, 1)], &[(1, 0), (2, 1)]]
        {
            assert!(settle(bad).is_err(), "{bad:?}");
        }
        let mut decided = model.clone();
        decided.settle(&under_way, &found(&[(2, 3), (4, 3)])).expect("whole");
        assert!(decided.settle(&[], &found(&[(1, 1), (2, 1)])).is_err(), "what was seen stays");
    }
}
