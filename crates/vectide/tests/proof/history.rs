//! What several writers did to one shard, in one order, and whether that can be.
//!
//! Everybody notes an event before it begins and after it ended, so that the order of notes agrees with real time.
//! [`History::check`] then asks what no interleaving of correct writers can break: nothing acknowledged is missing, from the
//! end or from what a later writer recovered; nothing is acknowledged by a writer that was invoked after a later one had
//! opened; what a later writer did not recover never comes back; the newest value of a key stays.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use vectide::ErrorKind;

/// Keys that every write brings, of its own.
pub const OWN_KEYS: i64 = 3;
/// Keys that all writers overwrite.
pub const REGISTERS: i64 = 6;

/// A number for a write: its own keys and the value that it leaves follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub i64);

impl WriteId {
    pub fn own_keys(self) -> impl Iterator<Item = i64> {
        (0..OWN_KEYS).map(move |n| REGISTERS + self.0 * OWN_KEYS + n)
    }

    pub fn register(self) -> i64 {
        self.0 % REGISTERS
    }
}

/// What was there when somebody looked: own keys of which writes, and who wrote each register last.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub writes: BTreeMap<WriteId, i64>,
    pub registers: BTreeMap<i64, WriteId>,
}

impl Seen {
    /// From `(key, value)` rows; the value is the number of the write.
    pub fn new(rows: &[(i64, i64)]) -> Self {
        let mut seen = Self::default();
        for &(key, value) in rows {
            if key < REGISTERS {
                seen.registers.insert(key, WriteId(value));
            } else {
                assert_eq!(value, (key - REGISTERS) / OWN_KEYS, "own keys are written once");
                *seen.writes.entry(WriteId(value)).or_default() += 1;
            }
        }
        seen
    }

    fn whole(&self, write: WriteId) -> bool {
        self.writes.get(&write) == Some(&OWN_KEYS)
    }
}

#[derive(Debug)]
enum Event {
    Opened { epoch: u64, seen: Seen },
    Invoked { epoch: u64, write: WriteId },
    Acknowledged { write: WriteId },
    Failed { kind: ErrorKind },
}

/// Events in order.
#[derive(Debug, Default)]
pub struct History {
    events: Vec<Event>,
    writes: i64,
}

/// What a history holds, for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub opens: u64,
    pub invoked: u64,
    pub acknowledged: u64,
    pub fenced: u64,
    pub failed: u64,
    /// Unacknowledged writes that survived.
    pub survived: u64,
}

impl History {
    pub fn opened(&mut self, epoch: u64, seen: Seen) {
        self.events.push(Event::Opened { epoch, seen });
    }

    /// Gives the next write its number.
    pub fn invoked(&mut self, epoch: u64) -> WriteId {
        self.writes += 1;
        let write = WriteId(self.writes);
        self.events.push(Event::Invoked { epoch, write });
        write
    }

    pub fn ended(&mut self, write: WriteId, result: Result<(), ErrorKind>) {
        self.events.push(match result {
            Ok(()) => Event::Acknowledged { write },
            Err(kind) => Event::Failed { kind },
        });
    }

    /// Checks everything against what is there in the end.
    pub fn check(&self, end: &Seen) -> Result<Summary, String> {
        let mut summary = Summary::default();
        let epochs: HashMap<WriteId, u64> = self.events.iter().filter_map(Event::invocation).collect();
        let acknowledged: BTreeSet<WriteId> = self.events.iter().filter_map(Event::acknowledgement).collect();
        let opens: Vec<(u64, &Seen)> = self.events.iter().filter_map(Event::opening).collect();
        self.check_order(&mut summary)?;
        for (&write, &epoch) in &epochs {
            let later = opens.iter().filter(|(by, _)| *by > epoch);
            for (what, seen) in later.map(|(by, seen)| (format!("writer {by}"), *seen)).chain([("the end".into(), end)])
            {
                let there = seen.writes.get(&write).copied().unwrap_or(0);
                if there != 0 && there != OWN_KEYS {
                    return Err(format!("{write:?} of writer {epoch} is half there for {what}"));
                }
                if there == 0 && acknowledged.contains(&write) {
                    return Err(format!("{write:?}, acknowledged by writer {epoch}, is missing for {what}"));
                }
                if there == 0 && end.whole(write) {
                    return Err(format!("{write:?} of writer {epoch} was not there for {what} and came back"));
                }
            }
            summary.survived += u64::from(end.whole(write) && !acknowledged.contains(&write));
        }
        self.check_registers(end, &epochs, &acknowledged)?;
        Ok(summary)
    }

    /// Nobody acknowledges what was asked for after a later writer had opened.
    fn check_order(&self, summary: &mut Summary) -> Result<(), String> {
        let mut newest = 0;
        let mut late: BTreeMap<WriteId, (u64, u64)> = BTreeMap::new();
        for event in &self.events {
            match event {
                Event::Opened { epoch, .. } => {
                    summary.opens += 1;
                    newest = newest.max(*epoch);
                }
                Event::Invoked { epoch, write } => {
                    summary.invoked += 1;
                    if *epoch < newest {
                        late.insert(*write, (*epoch, newest));
                    }
                }
                Event::Acknowledged { write } => {
                    summary.acknowledged += 1;
                    if let Some((epoch, newest)) = late.get(write) {
                        return Err(format!("{write:?} was acknowledged by writer {epoch} after {newest} had opened"));
                    }
                }
                Event::Failed { kind: ErrorKind::Fenced } => summary.fenced += 1,
                Event::Failed { kind: ErrorKind::Unavailable | ErrorKind::Closed } => summary.failed += 1,
                Event::Failed { kind } => return Err(format!("a write failed with `{kind}`")),
            }
        }
        Ok(())
    }

    /// The value of a register is one that nothing acknowledged must have replaced.
    fn check_registers(
        &self,
        end: &Seen,
        epochs: &HashMap<WriteId, u64>,
        acknowledged: &BTreeSet<WriteId>,
    ) -> Result<(), String> {
        let place = |wanted: WriteId, ended: bool| {
            self.events.iter().position(|event| match event {
                Event::Invoked { write, .. } => !ended && *write == wanted,
                Event::Acknowledged { write } => ended && *write == wanted,
                _ => false,
            })
        };
        for register in 0..REGISTERS {
            let writes: Vec<WriteId> = acknowledged.iter().copied().filter(|w| w.register() == register).collect();
            let Some(&value) = end.registers.get(&register) else {
                if let Some(lost) = writes.first() {
                    return Err(format!("register {register} is empty although {lost:?} was acknowledged"));
                }
                continue;
            };
            let acknowledged_at = place(value, true);
            for &other in writes.iter().filter(|other| **other != value) {
                let newer_writer = epochs[&other] > epochs[&value];
                let after = acknowledged_at.is_some_and(|at| place(other, false).is_some_and(|began| began > at));
                if newer_writer || after {
                    return Err(format!("register {register} holds {value:?}; {other:?} was acknowledged after it"));
                }
            }
        }
        Ok(())
    }
}

impl Event {
    fn invocation(&self) -> Option<(WriteId, u64)> {
        match self {
            Self::Invoked { epoch, write } => Some((*write, *epoch)),
            _ => None,
        }
    }

    fn acknowledgement(&self) -> Option<WriteId> {
        match self {
            Self::Acknowledged { write } => Some(*write),
            _ => None,
        }
    }

    fn opening(&self) -> Option<(u64, &Seen)> {
        match self {
            Self::Opened { epoch, seen } => Some((*epoch, seen)),
            _ => None,
        }
    }
}

/// All rows of some writes.
#[cfg(test)]
fn rows_of(writes: &[WriteId]) -> Vec<(i64, i64)> {
    writes.iter().flat_map(|w| w.own_keys().chain([w.register()]).map(|key| (key, w.0)).collect::<Vec<_>>()).collect()
}

#[test]
fn the_checker_notices_losses_late_acknowledgements_and_returns() {
    let base = |second: Result<(), ErrorKind>| {
        let mut history = History::default();
        history.opened(1, Seen::default());
        let first = history.invoked(1);
        history.ended(first, Ok(()));
        let write = history.invoked(1);
        history.ended(write, second);
        (history, first, write)
    };
    let (mut history, first, second) = base(Err(ErrorKind::Unavailable));
    history.opened(2, Seen::new(&rows_of(&[first])));
    assert!(history.check(&Seen::new(&rows_of(&[first]))).is_ok());
    assert!(history.check(&Seen::default()).expect_err("lost").contains("missing"));
    assert!(history.check(&Seen::new(&rows_of(&[first, second]))).expect_err("back").contains("came back"));
    let half: Vec<_> = rows_of(&[first]).into_iter().skip(1).collect();
    assert!(history.check(&Seen::new(&half)).expect_err("half").contains("half"));

    let (mut history, first, _) = base(Ok(()));
    history.opened(2, Seen::new(&rows_of(&[first])));
    assert!(history.check(&Seen::new(&rows_of(&[first]))).expect_err("into a hole").contains("missing"));

    let (mut history, first, second) = base(Ok(()));
    let both = rows_of(&[first, second]);
    history.opened(2, Seen::new(&both));
    let late = history.invoked(1);
    history.ended(late, Ok(()));
    assert!(history.check(&Seen::new(&both)).expect_err("late").contains("after 2 had opened"));
}
