//! The numbers that name things: rows, batches, writers, log positions.
//!
//! Newtypes, so that a sequence number is never added to an offset. All are plain data; every other module imports
//! them and nothing here imports anything.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The number `n` steps further on.
            #[must_use]
            pub const fn plus(self, n: u64) -> Self {
                Self(self.0 + n)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Which of two versions of a key is newer: one per written row and per deleted key, per shard, in log order.
    Seq
}
id! {
    /// The order in which batches became visible: what a snapshot is cut by. One per batch, per shard, starting at 1.
    PubNo
}
id! {
    /// A row's name for life, shared by memtable, segment and base. Dense per shard, in publication order.
    RowId
}
id! {
    /// The number of a shard's current writer; each writer that opens a shard raises it by one.
    Epoch
}

/// A slice of a table with its own writer, log and tiers. Always 0 until distribution comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where in a shard's log something stands.
///
/// Ordered by epoch first: a later writer's log follows all earlier ones. `at` counts within the epoch: bytes since its
/// start for a local log, objects for a log on an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// The writer whose log it is.
    pub epoch: Epoch,
    /// Byte (local) or object number (object store) within that writer's log.
    pub at: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch, self.at)
    }
}

/// What an acknowledgement carries: names the last row that the write published.
///
/// Opaque to callers: keep it, compare it for equality, hand it to `wait_durable` or `upsert_if`. Its text form is
/// `shard.epoch.seq` and parses back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token {
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
    pub(crate) seq: Seq,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.shard, self.epoch, self.seq)
    }
}

impl std::str::FromStr for Token {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || crate::Error::invalid(format!("`{text}` is no token: expected shard.epoch.seq, such as 0.3.1742"));
        let mut parts = text.split('.');
        let mut next = || parts.next().and_then(|p| p.parse::<u64>().ok());
        let (shard, epoch, seq) = (next().ok_or_else(bad)?, next().ok_or_else(bad)?, next().ok_or_else(bad)?);
        if parts.next().is_some() {
            return Err(bad());
        }
        let shard = ShardId(u32::try_from(shard).map_err(|_| bad())?);
        Ok(Self { shard, epoch: Epoch(epoch), seq: Seq(seq) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_form() {
        let token = Token { shard: ShardId(0), epoch: Epoch(3), seq: Seq(u64::MAX) };
        assert_eq!(token.to_string().parse::<Token>().expect("parses"), token);
        for bad in ["", "1.2", "1.2.3.4", "a.b.c", "4294967296.1.1"] {
            assert!(bad.parse::<Token>().is_err(), "{bad} must be refused");
        }
    }

    #[test]
    fn log_positions_order_by_epoch_first() {
        let old = LogPosition { epoch: Epoch(1), at: 900 };
        assert!(old < LogPosition { epoch: Epoch(2), at: 0 });
    }
}
