//! Keys: what callers hand in, how they are hashed and compared.
//!
//! [`Keys`] is the public list of keys of `get` and `delete`; [`KeyArray`] is a key column seen by type. `batch`, the
//! memtable's key index and the segment's `keys.arrow` share [`KeyArray::hash`], whose values are stored on disk: the
//! function must never change (docs/format.md). Invariant: equal keys have equal hashes.

use crate::error::{Error, Result};
use crate::schema::{KeyColumn, KeyType};
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, FixedSizeBinaryArray, Int64Array, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use std::fmt::Write as _;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// A list of keys, for `get` and `delete`. Made by [`keys!`](crate::keys!), from vectors, or from an Arrow array.
#[derive(Clone, Debug)]
pub struct Keys(ArrayRef);

/// Makes [`Keys`] from literals of one type: `keys![17, 42]`, `keys!["a", "b"]`.
#[macro_export]
macro_rules! keys {
    ($($key:expr),* $(,)?) => { $crate::Keys::from(::std::vec![$($key),*]) };
}

macro_rules! from {
    ($($from:ty => $array:ty),* $(,)?) => {
        $(impl From<$from> for Keys {
            fn from(keys: $from) -> Self {
                Self(Arc::new(<$array>::from(keys)))
            }
        })*
    };
}

from! {
    Vec<i64> => Int64Array,
    Vec<u64> => UInt64Array,
    Vec<&str> => StringArray,
    Vec<String> => StringArray,
    Vec<&[u8]> => BinaryArray,
}

impl From<Vec<i32>> for Keys {
    fn from(keys: Vec<i32>) -> Self {
        Self(Arc::new(keys.into_iter().map(i64::from).collect::<Int64Array>()))
    }
}

impl From<ArrayRef> for Keys {
    fn from(keys: ArrayRef) -> Self {
        Self(keys)
    }
}

impl Keys {
    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys as an array of the key column's own type. Integers are converted where no value changes, strings and
    /// byte strings where the lengths fit.
    ///
    /// # Errors
    /// `Invalid`, naming the column, what it holds and what came; or the position of a null key.
    pub(crate) fn cast(&self, column: &KeyColumn) -> Result<ArrayRef> {
        let wanted = column.key_type.data_type();
        let wrong = |why: &str| {
            let given = self.0.data_type();
            Error::invalid(format!("key column `{}` holds {wanted}, the keys given are {given}{why}", column.name))
        };
        if let Some(row) = (0..self.0.len()).find(|&row| self.0.is_null(row)) {
            return Err(Error::invalid(format!("key column `{}`, row {row}: a key must not be null", column.name)));
        }
        if *self.0.data_type() == wanted {
            return Ok(Arc::clone(&self.0));
        }
        match (self.0.data_type(), column.key_type) {
            (DataType::Int64, KeyType::UInt64) => {
                let out: Option<UInt64Array> = self
                    .0
                    .as_primitive::<Int64Type>()
                    .values()
                    .iter()
                    .map(|&v| u64::try_from(v).ok().map(Some))
                    .collect::<Option<_>>();
                out.map(|a| Arc::new(a) as ArrayRef).ok_or_else(|| wrong(" with a negative value"))
            }
            (DataType::UInt64, KeyType::Int64) => {
                let out: Option<Int64Array> = self
                    .0
                    .as_primitive::<UInt64Type>()
                    .values()
                    .iter()
                    .map(|&v| i64::try_from(v).ok().map(Some))
                    .collect::<Option<_>>();
                out.map(|a| Arc::new(a) as ArrayRef).ok_or_else(|| wrong(" with a value above the largest Int64"))
            }
            (DataType::Binary, KeyType::FixedSizeBinary(n)) => {
                let binary = self.0.as_binary::<i32>();
                if binary.iter().flatten().any(|key| key.len() != n as usize) {
                    return Err(wrong(" with another length"));
                }
                let values = FixedSizeBinaryArray::try_from_iter(binary.iter().flatten());
                values.map(|a| Arc::new(a) as ArrayRef).map_err(|e| wrong(&format!(" ({e})")))
            }
            _ => Err(wrong("")),
        }
    }
}

impl KeyType {
    /// The Arrow type of such a key column.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::Int64 => DataType::Int64,
            Self::UInt64 => DataType::UInt64,
            Self::Utf8 => DataType::Utf8,
            Self::Binary => DataType::Binary,
            Self::FixedSizeBinary(n) => DataType::FixedSizeBinary(n),
        }
    }
}

/// A key column by type. Borrow-free: holds the array.
#[derive(Clone, Debug)]
pub(crate) enum KeyArray {
    /// Signed integers.
    Int64(Int64Array),
    /// Unsigned integers.
    UInt64(UInt64Array),
    /// Strings.
    Utf8(StringArray),
    /// Byte strings.
    Binary(BinaryArray),
    /// Byte strings of one length.
    Fixed(FixedSizeBinaryArray),
}

impl KeyArray {
    /// Sees `array` as keys; `Internal` if its type is none that a key may have.
    pub(crate) fn new(array: &dyn Array) -> Result<Self> {
        match array.data_type() {
            DataType::Int64 => Ok(Self::Int64(array.as_primitive().clone())),
            DataType::UInt64 => Ok(Self::UInt64(array.as_primitive().clone())),
            DataType::Utf8 => Ok(Self::Utf8(array.as_string().clone())),
            DataType::Binary => Ok(Self::Binary(array.as_binary().clone())),
            DataType::FixedSizeBinary(_) => Ok(Self::Fixed(array.as_fixed_size_binary().clone())),
            other => Err(Error::internal(format!("{other} cannot be a key"))),
        }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Int64(a) => a.len(),
            Self::UInt64(a) => a.len(),
            Self::Utf8(a) => a.len(),
            Self::Binary(a) => a.len(),
            Self::Fixed(a) => a.len(),
        }
    }

    fn bytes(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Int64(_) | Self::UInt64(_) => None,
            Self::Utf8(a) => Some(a.value(row).as_bytes()),
            Self::Binary(a) => Some(a.value(row)),
            Self::Fixed(a) => Some(a.value(row)),
        }
    }

    fn integer(&self, row: usize) -> Option<u64> {
        match self {
            Self::Int64(a) => Some(a.value(row).cast_unsigned()),
            Self::UInt64(a) => Some(a.value(row)),
            _ => None,
        }
    }

    /// Whether [`KeyArray::hash`] is one to one for this type: then equal hashes need no look at the keys.
    pub(crate) const fn hash_is_exact(&self) -> bool {
        matches!(self, Self::Int64(_) | Self::UInt64(_))
    }

    /// The key's 64-bit hash: a bijection for integers, XXH3 (seed 0) for strings and bytes. Stored on disk.
    #[inline]
    pub(crate) fn hash(&self, row: usize) -> u64 {
        match self.integer(row) {
            Some(value) => mix(value),
            None => XxHash3_64::oneshot(self.bytes(row).expect("a key that is no integer is bytes")),
        }
    }

    /// All hashes, in row order.
    pub(crate) fn hashes(&self) -> Vec<u64> {
        (0..self.len()).map(|row| self.hash(row)).collect()
    }

    /// Whether two keys of the same type are equal.
    #[inline]
    pub(crate) fn equals(&self, row: usize, other: &Self, other_row: usize) -> bool {
        match (self.integer(row), other.integer(other_row)) {
            (Some(a), Some(b)) => a == b,
            (None, None) => self.bytes(row) == other.bytes(other_row),
            _ => false,
        }
    }

    /// The key for a message: strings quoted, bytes as hex.
    pub(crate) fn display(&self, row: usize) -> String {
        match self {
            Self::Int64(a) => a.value(row).to_string(),
            Self::UInt64(a) => a.value(row).to_string(),
            Self::Utf8(a) => format!("{:?}", a.value(row)),
            Self::Binary(_) | Self::Fixed(_) => {
                let mut text = String::from("0x");
                for byte in self.bytes(row).into_iter().flatten() {
                    let _ = write!(text, "{byte:02x}");
                }
                text
            }
        }
    }
}

/// The finalizer of MurmurHash3 as tuned by Stafford ("Mix13"): a bijection on 64 bits.
#[inline]
const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One key being looked up: its column, row and hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyProbe<'a> {
    /// The keys it stands among.
    pub(crate) keys: &'a KeyArray,
    /// Which of them.
    pub(crate) row: usize,
    /// Its hash.
    pub(crate) hash: u64,
}

impl KeyProbe<'_> {
    /// Whether the key at `row` of `stored`, which has the same hash, is this key.
    #[inline]
    pub(crate) fn is(&self, stored: &KeyArray, row: usize) -> bool {
        self.keys.hash_is_exact() || self.keys.equals(self.row, stored, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(key_type: KeyType) -> KeyColumn {
        KeyColumn { index: 0, name: "id".into(), key_type }
    }

    #[test]
    fn hashes_are_the_ones_on_disk() {
        // These values stand in keys.arrow files: they must never change.
        let ints = KeyArray::new(&Int64Array::from(vec![0, 1, -1])).expect("keys");
        assert_eq!(ints.hashes(), [0, 6_238_072_747_940_578_789, 13_029_008_266_876_403_067]);
        let strings = KeyArray::new(&StringArray::from(vec!["", "vectide"])).expect("keys");
        assert_eq!(strings.hash(0), 0x2d06_8005_38d3_94c2);
        let bytes = KeyArray::new(&BinaryArray::from(vec![b"vectide".as_slice()])).expect("keys");
        assert_eq!(strings.hash(1), bytes.hash(0));
    }

    #[test]
    fn integer_keys_convert_only_where_no_value_changes() {
        let keys = crate::keys![17, 42].cast(&column(KeyType::UInt64)).expect("fits");
        assert_eq!(keys.as_primitive::<UInt64Type>().values(), &[17, 42]);
        let error = crate::keys![-1].cast(&column(KeyType::UInt64)).expect_err("negative");
        assert!(error.message().contains("`id`") && error.message().contains("negative"), "{error}");
        assert!(Keys::from(vec![u64::MAX]).cast(&column(KeyType::Int64)).is_err());
        assert!(crate::keys!["a"].cast(&column(KeyType::Int64)).is_err());
        assert!(Keys::from(vec![b"abc".as_slice()]).cast(&column(KeyType::FixedSizeBinary(2))).is_err());
    }

    #[test]
    fn a_null_key_is_refused_by_position() {
        let keys = Keys::from(Arc::new(StringArray::from(vec![Some("a"), None])) as ArrayRef);
        let error = keys.cast(&column(KeyType::Utf8)).expect_err("null");
        assert!(error.message().contains("row 1"), "{error}");
    }
}
