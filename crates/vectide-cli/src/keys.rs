//! Keys as text on the command line, and as lines of a file.

use crate::error::{Failure, Outcome};
use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray, UInt64Array};
use std::sync::Arc;
use vectide::schema::{KeyColumn, KeyType};
use vectide::{Keys, TableSchema};

/// A table's key column, or an error that says why this command needs one.
pub(crate) fn key_column<'a>(schema: &'a TableSchema, table: &str) -> Outcome<&'a KeyColumn> {
    schema.key().ok_or_else(|| {
        Failure::invalid(format!("table `{table}` has no key column: its rows can be searched and scanned only"))
            .hint("`vectide scan` prints its rows")
    })
}

/// Reads keys of `column`'s type: integers in decimal, strings as they are, bytes as hex with or without `0x`.
pub(crate) fn parse<S: AsRef<str>>(texts: &[S], column: &KeyColumn) -> Outcome<Keys> {
    let bad = |text: &str, wanted: &str| {
        Failure::invalid(format!("`{text}` is no key of column `{}`: expected {wanted}", column.name))
            .hint("correct the key; after `--` a key may begin with a dash")
    };
    fn all<S: AsRef<str>, T>(texts: &[S], read: impl Fn(&str) -> Outcome<T>) -> Outcome<Vec<T>> {
        texts.iter().map(|text| read(text.as_ref())).collect()
    }
    let array: ArrayRef = match column.key_type {
        KeyType::Int64 => {
            Arc::new(Int64Array::from(all(texts, |t| t.parse::<i64>().map_err(|_| bad(t, "a 64-bit integer")))?))
        }
        KeyType::UInt64 => Arc::new(UInt64Array::from(all(texts, |t| {
            t.parse::<u64>().map_err(|_| bad(t, "a 64-bit integer that is not negative"))
        })?)),
        KeyType::Utf8 => Arc::new(StringArray::from_iter_values(texts.iter().map(AsRef::as_ref))),
        KeyType::Binary | KeyType::FixedSizeBinary(_) => {
            let bytes = all(texts, |t| hex(t).ok_or_else(|| bad(t, "bytes in hex, such as 0x1f2e")))?;
            Arc::new(BinaryArray::from_iter_values(bytes))
        }
    };
    Ok(Keys::from(array))
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(key_type: KeyType) -> KeyColumn {
        KeyColumn { index: 0, name: "id".into(), key_type }
    }

    #[test]
    fn keys_are_read_by_the_columns_type() {
        assert_eq!(parse(&["-5", "17"], &column(KeyType::Int64)).expect("integers").len(), 2);
        assert_eq!(parse(&["0xff", "00"], &column(KeyType::Binary)).expect("bytes").len(), 2);
        assert!(parse(&["river"], &column(KeyType::Utf8)).is_ok());
    }

    #[test]
    fn a_wrong_key_is_named_with_what_was_expected() {
        for (text, key_type) in
            [("-1", KeyType::UInt64), ("river", KeyType::Int64), ("abc", KeyType::Binary), ("0xzz", KeyType::Binary)]
        {
            let failure = parse(&[text], &column(key_type)).expect_err("must be refused");
            assert!(failure.message.contains(text) && failure.message.contains("`id`"), "{failure:?}");
        }
    }
}
