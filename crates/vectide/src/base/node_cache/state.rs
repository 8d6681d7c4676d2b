//! What one shard of the cache holds, behind its lock.
//!
//! Pure: no lock, no load, no clock; loom runs it as it is. Invariant: `bytes` is what the rows and their bookkeeping
//! take, and is not above the capacity after any call.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A node of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) space: u32,
    pub(super) node: u32,
}

/// Spreads numbers that are given out in order: a look at a row costs little, so its hash must.
#[derive(Debug, Default)]
pub(super) struct Scramble(u64);

impl Hasher for Scramble {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, n: u32) {
        let mixed = (self.0 ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The row.
    Hit,
    /// Nothing, and the row may be put in.
    Missing,
    /// Only rows of later versions, and no room for an older one.
    Newer,
}

/// The newest row of a node that is kept, and the one before it.
#[derive(Clone, Copy, Debug)]
struct Slots {
    newest: u32,
    older: Option<u32>,
}

#[derive(Debug)]
struct Slot {
    key: Key,
    version: u32,
    /// Read since the hand last passed.
    is_referenced: bool,
    row: Box<[u32]>,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct State {
    nodes: HashMap<Key, Slots, BuildHasherDefault<Scramble>>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Where the clock's hand stands.
    hand: usize,
    bytes: u64,
    capacity: u64,
    evictions: u64,
}

/// Bytes of a row's slot, its entry in the map of nodes (at 7/8 load, with a control byte), its place in the free list, and
/// what an allocator adds to it.
const OVERHEAD_BYTES: u64 = (size_of::<Option<Slot>>() + (size_of::<(Key, Slots)>() + 1) * 8 / 7 + 4 + 16) as u64;

/// Bytes that a row takes in all.
pub(super) const fn cost(words: usize) -> u64 {
    OVERHEAD_BYTES + 4 * words as u64
}

impl State {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            nodes: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            hand: 0,
            bytes: 0,
            capacity,
            evictions: 0,
        }
    }

    pub(super) fn rows(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    fn slot(&mut self, at: u32) -> &mut Slot {
        self.slots[at as usize].as_mut().expect("nodes name slots in use")
    }

    /// Appends the node's row of exactly that version.
    pub(super) fn get(&mut self, key: Key, version: u32, out: &mut Vec<u32>) -> Found {
        let Some(&Slots { newest, older }) = self.nodes.get(&key) else { return Found::Missing };
        for at in [Some(newest), older].into_iter().flatten() {
            let slot = self.slot(at);
            if slot.version == version {
                slot.is_referenced = true;
                out.extend_from_slice(&slot.row);
                return Found::Hit;
            }
        }
        if self.slot(newest).version > version && older.is_some() { Found::Newer } else { Found::Missing }
    }

    /// Keeps a row. A newer one moves the newest so far to second place; an older one takes the second place only while
    /// that is free.
    pub(super) fn put(&mut self, key: Key, version: u32, row: &[u32]) {
        let cost = cost(row.len());
        if cost > self.capacity {
            return;
        }
        let slots = self.nodes.get(&key).copied();
        let versions = slots.map(|s| (self.slot(s.newest).version, s.older.map(|at| self.slot(at).version)));
        match (slots, versions) {
            (_, Some((newest, older))) if newest == version || older == Some(version) => return,
            (Some(Slots { older: Some(_), .. }), Some((newest, _))) if newest > version => return,
            (Some(slots), Some((newest, _))) if newest > version => {
                let at = self.take_slot(key, version, row);
                self.nodes.insert(key, Slots { older: Some(at), ..slots });
            }
            (Some(slots), _) => {
                if let Some(older) = slots.older {
                    self.release(older);
                }
                let at = self.take_slot(key, version, row);
                self.nodes.insert(key, Slots { newest: at, older: Some(slots.newest) });
            }
            (None, _) => {
                let at = self.take_slot(key, version, row);
                self.nodes.insert(key, Slots { newest: at, older: None });
            }
        }
        self.evict();
    }

    /// Takes a node out; whether it was there.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        let Some(slots) = self.nodes.remove(&key) else { return false };
        self.release(slots.newest);
        slots.older.into_iter().for_each(|at| self.release(at));
        true
    }

    /// Takes all nodes of a space out.
    pub(super) fn remove_space(&mut self, space: u32) -> u64 {
        let keys: Vec<Key> = self.nodes.keys().filter(|key| key.space == space).copied().collect();
        keys.into_iter().filter(|&key| self.remove(key)).count() as u64
    }

    fn take_slot(&mut self, key: Key, version: u32, row: &[u32]) -> u32 {
        self.bytes += cost(row.len());
        // A new row is not referenced yet: one that nobody reads again leaves at the hand's first pass.
        let slot = Slot { key, version, is_referenced: false, row: row.into() };
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(slot);
                at
            }
            None => {
                self.slots.push(Some(slot));
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn release(&mut self, at: u32) {
        let slot = self.slots[at as usize].take().expect("released once");
        self.bytes -= cost(slot.row.len());
        self.free.push(at);
    }

    /// Moves the hand on until the rows fit: what was read since it last passed is passed over once.
    fn evict(&mut self) {
        while self.bytes > self.capacity {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[at] {
                None => {}
                Some(slot) if slot.is_referenced => slot.is_referenced = false,
                Some(slot) => {
                    let key = slot.key;
                    self.detach(key, at as u32);
                    self.release(at as u32);
                    self.evictions += 1;
                }
            }
        }
    }

    /// Makes a node forget one of its rows.
    fn detach(&mut self, key: Key, at: u32) {
        let slots = self.nodes.get_mut(&key).expect("a slot in use belongs to a node");
        match (slots.newest == at, slots.older) {
            (true, None) => drop(self.nodes.remove(&key)),
            // What is left counts as the newest that is kept.
            (true, Some(older)) => *slots = Slots { newest: older, older: None },
            (false, _) => slots.older = None,
        }
    }
}
