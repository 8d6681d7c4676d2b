//! The publication section: the one short critical section that every write goes through.
//!
//! In: a batch that is checked, encoded and prepared, with its keys hashed and looked up in the older tiers. Inside: it
//! takes its seqs, row ids and publication number, is linked into the active memtable, becomes the newest version of its
//! keys, ends the rows that it replaces, and is enqueued to the log. So the order of the log, of publications, of row
//! offsets and of versions of a key are one order (decision 0001). Called by `writer` (with a log) and `open` (replay,
//! without). Invariant: nothing in here fails once a row is linked.

use crate::error::{Error, Result};
use crate::ids::{LogPosition, PubNo, RowId, Seq};
use crate::keys::{KeyArray, KeyProbe};
use crate::memtable::{ColumnBuffer, Memtable, Prepared};
use crate::rows::RowSource;
use crate::search::snapshot::{Cut, Source, View};
use std::sync::Arc;
use std::time::Duration;

/// A batch's keys and their hashes.
pub(crate) type HashedKeys = (KeyArray, Vec<u64>);

/// The newest row of each key of a batch in the tiers below the active memtable.
#[derive(Debug, Default)]
pub(crate) struct OlderRows {
    /// The view that was searched: all its sources but the last. `None` if there was no key to look up.
    view: Option<Arc<View>>,
    /// Per key: the source and the offset.
    found: Vec<Option<(usize, u32)>>,
}

impl OlderRows {
    /// Looks every key up, newest source first. Reads segments: outside the section.
    pub(crate) fn look_up(view: &Arc<View>, keys: Option<&HashedKeys>) -> Result<Self> {
        let Some((keys, hashes)) = keys else {
            return Ok(Self::default());
        };
        let older = view.sources.len().saturating_sub(1);
        let tiers: Vec<Arc<dyn RowSource>> = view.sources[..older].iter().map(|s| s.rows()).collect();
        let mut found = vec![None; hashes.len()];
        for (row, &hash) in hashes.iter().enumerate() {
            let probe = KeyProbe { keys, row, hash };
            for (source, tier) in tiers.iter().enumerate().rev() {
                if let Some(offset) = tier.find(&probe, tier.rows())? {
                    found[row] = Some((source, offset));
                    break;
                }
            }
        }
        Ok(Self { view: Some(Arc::clone(view)), found })
    }

    fn is_for(&self, active: &Arc<Source>) -> bool {
        self.view.as_ref().and_then(|view| view.sources.last()).is_some_and(|last| Arc::ptr_eq(last, active))
    }

    fn get(&self, row: usize) -> Option<(&Source, u32)> {
        let (source, offset) = (*self.found.get(row)?)?;
        Some((&self.view.as_ref()?.sources[source], offset))
    }
}

/// What must hold of every key of a batch for it to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing: newest wins.
    None,
    /// No live row has the key.
    Absent,
    /// A live row has the key and is not newer than this.
    NotNewerThan(Seq),
}

/// What a batch does.
#[derive(Debug)]
pub(crate) enum Change {
    /// Writes rows.
    Put(Prepared),
    /// Deletes that many keys.
    Delete(u64),
}

/// A batch that was published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// What the shard looks like once it is visible.
    pub(crate) cut: Cut,
    /// Its first and last seq.
    pub(crate) seqs: (Seq, Seq),
    /// Rows written.
    pub(crate) rows: u64,
    /// Live rows that it ended.
    pub(crate) ended: u64,
}

/// The state that the section guards.
#[derive(Debug)]
pub(crate) struct Section {
    /// The memtable that takes writes.
    pub(crate) active: Arc<Memtable>,
    /// The active memtable as a source: always the last of the current view.
    pub(crate) source: Arc<Source>,
    /// End marks that this memtable's batches set on older row files.
    pub(crate) marks: Vec<(RowId, PubNo)>,
    /// First seq, publication and row of the active memtable.
    pub(crate) first: (Seq, PubNo),
    /// The next to be given out.
    pub(crate) next_seq: Seq,
    /// The next to be given out.
    pub(crate) next_publication: PubNo,
    /// The next to be given out.
    pub(crate) next_row: RowId,
    /// Live rows once everything published is visible.
    pub(crate) live: u64,
    /// When the active memtable took its first batch.
    pub(crate) born: Option<Duration>,
    /// During replay: behind the last batch that was applied.
    pub(crate) replayed_to: Option<LogPosition>,
    /// Why no more batches are taken.
    pub(crate) closed: Option<Error>,
}

impl Section {
    /// Whether the active memtable has taken anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.0 == self.next_seq
    }

    /// Publishes one batch. `enqueue` hands it to the log.
    ///
    /// # Errors
    /// `Conflict` if the condition does not hold, with nothing changed; the section's own error once it is closed;
    /// whatever reading a segment's keys gives, with nothing changed.
    pub(crate) fn publish(
        &mut self,
        change: Change,
        keys: Option<&HashedKeys>,
        mut older: OlderRows,
        current_view: impl FnOnce() -> Arc<View>,
        condition: Condition,
        enqueue: impl FnOnce(Seq, PubNo),
    ) -> Result<Published> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        if keys.is_some() && !older.is_for(&self.source) {
            // The memtable was sealed since the look-up: what was active is an older tier now.
            older = OlderRows::look_up(&current_view(), keys)?;
        }
        self.check(keys, &older, condition)?;
        let publication = self.next_publication;
        let first_seq = self.next_seq;
        let rows = match &change {
            Change::Put(prepared) => u64::from(prepared.rows()),
            Change::Delete(_) => 0,
        };
        let count = match &change {
            Change::Put(_) => rows,
            Change::Delete(keys) => *keys,
        };
        let ended = match change {
            Change::Put(prepared) => {
                let offset = self.active.link(prepared, first_seq, publication);
                keys.map_or(Ok(0), |keys| self.replace(keys, &older, offset, publication))?
            }
            Change::Delete(_) => {
                self.active.cover(first_seq, Seq(first_seq.0 + count - 1), publication);
                keys.map_or(Ok(0), |keys| self.remove(keys, &older, publication))?
            }
        };
        enqueue(first_seq, publication);
        Ok(self.give_out(count, rows, ended))
    }

    /// Publishes a few rows of an appender by copying them: in a key-less table without vectors and without a log.
    ///
    /// # Errors
    /// The section's own once it is closed.
    pub(crate) fn gather(&mut self, columns: &[ColumnBuffer], rows: u32) -> Result<Published> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        self.active.gather(columns, rows, self.next_seq, self.next_publication);
        Ok(self.give_out(u64::from(rows), u64::from(rows), 0))
    }

    /// Moves on behind a batch that took `count` seqs, wrote `rows` and ended `ended` of them.
    fn give_out(&mut self, count: u64, rows: u64, ended: u64) -> Published {
        let (first_seq, publication) = (self.next_seq, self.next_publication);
        self.next_seq = first_seq.plus(count);
        self.next_publication = publication.plus(1);
        self.next_row = self.next_row.plus(rows);
        self.live = (self.live + rows).checked_sub(ended).expect("no more rows end than live");
        let last_seq = Seq(self.next_seq.0 - 1);
        let cut = Cut { at: publication, rows: self.next_row, seq: last_seq, live: self.live };
        Published { cut, seqs: (first_seq, last_seq), rows, ended }
    }

    /// The live row of a key, as far as everything published goes.
    fn live_row(&self, probe: &KeyProbe<'_>, older: &OlderRows) -> Result<Option<(RowId, Seq)>> {
        let seq_of = |rows: &dyn RowSource, offset: u32| -> Result<Seq> {
            rows.seqs(&[offset])?.first().copied().ok_or_else(|| Error::internal("a row without a seq"))
        };
        if let Some(offset) = self.active.find(probe, self.active.rows())? {
            let live = self.source.ends.ended_by(offset).is_none();
            let row = self.source.first_row.plus(u64::from(offset));
            return if live { Ok(Some((row, seq_of(&*self.active, offset)?))) } else { Ok(None) };
        }
        match older.get(probe.row) {
            Some((source, offset)) if source.ends.ended_by(offset).is_none() => {
                let row = source.first_row.plus(u64::from(offset));
                Ok(Some((row, seq_of(&*source.rows(), offset)?)))
            }
            _ => Ok(None),
        }
    }

    fn check(&self, keys: Option<&HashedKeys>, older: &OlderRows, condition: Condition) -> Result<()> {
        let (Some((keys, hashes)), true) = (keys, condition != Condition::None) else { return Ok(()) };
        for (row, &hash) in hashes.iter().enumerate() {
            let probe = KeyProbe { keys, row, hash };
            let found = self.live_row(&probe, older)?;
            let refused = match (condition, found) {
                (Condition::None, _) | (Condition::Absent, None) => None,
                (Condition::Absent, Some(_)) => Some("exists already; use upsert to replace it"),
                (Condition::NotNewerThan(_), None) => Some("does not exist (any more); use insert to create it"),
                (Condition::NotNewerThan(limit), Some((_, seq))) => {
                    (seq > limit).then_some("was written after the expected token; read it again and retry")
                }
            };
            if let Some(why) = refused {
                return Err(Error::conflict(format!("key {} {why}", keys.display(row))));
            }
        }
        Ok(())
    }

    /// Makes the rows from `first` on the newest of their keys and ends those that they replace.
    fn replace(&mut self, keys: &HashedKeys, older: &OlderRows, first: u32, publication: PubNo) -> Result<u64> {
        let (mut ended, active) = (0, Arc::clone(&self.active));
        active.index_keys(&keys.0, &keys.1, first, |row, previous| {
            ended += match previous {
                Some(previous) => u64::from(self.source.ends.set(previous, publication)),
                None => self.end_older(older, row, publication),
            };
        });
        Ok(ended)
    }

    /// Ends the live rows of the keys.
    fn remove(&mut self, keys: &HashedKeys, older: &OlderRows, publication: PubNo) -> Result<u64> {
        let mut ended = 0;
        for (row, &hash) in keys.1.iter().enumerate() {
            let probe = KeyProbe { keys: &keys.0, row, hash };
            match self.active.find(&probe, self.active.rows())? {
                Some(offset) => ended += u64::from(self.source.ends.set(offset, publication)),
                None => ended += self.end_older(older, row, publication),
            }
        }
        Ok(ended)
    }

    fn end_older(&mut self, older: &OlderRows, row: usize, publication: PubNo) -> u64 {
        let Some((source, offset)) = older.get(row) else { return 0 };
        if !source.ends.set(offset, publication) {
            return 0;
        }
        self.marks.push((source.first_row.plus(u64::from(offset)), publication));
        1
    }
}
