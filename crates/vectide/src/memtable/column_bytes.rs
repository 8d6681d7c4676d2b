//! One column of one batch as an appender left it: slices of the chunks that its thread filled.
//!
//! [`ColumnBuffer`](super::ColumnBuffer) splits them off, a [`Block`](super::blocks::Block) of a key-less table keeps them as
//! they are (three handles a column instead of a kilobyte of array headers), and reads turn them into arrays. Invariant:
//! `rows` of a column are what its layout says: `rows * width` bytes, `rows` bits, or `rows + 1` offsets from 0 on and
//! their bytes.

use crate::error::{Error, Result};
use arrow::array::{ArrayData, ArrayRef, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use bytes::Bytes;

/// How a column's rows lie in its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// So many bytes a row.
    Fixed(usize),
    /// A bit a row.
    Bits,
    /// 32-bit offsets and bytes.
    Offsets32,
    /// 64-bit offsets and bytes.
    Offsets64,
}

impl Layout {
    /// The layout of a type that an appender can fill row by row; `None` for nested types, views and the like.
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Boolean => Some(Self::Bits),
            DataType::Utf8 | DataType::Binary => Some(Self::Offsets32),
            DataType::LargeUtf8 | DataType::LargeBinary => Some(Self::Offsets64),
            DataType::FixedSizeBinary(width) => usize::try_from(*width).ok().filter(|&w| w > 0).map(Self::Fixed),
            DataType::FixedSizeList(item, dim) => {
                let element = match item.data_type() {
                    DataType::Float32 => 4,
                    DataType::Float16 => 2,
                    _ => return None,
                };
                usize::try_from(*dim).ok().filter(|&dim| dim > 0).map(|dim| Self::Fixed(dim * element))
            }
            other => other.primitive_width().map(Self::Fixed),
        }
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct ColumnBytes {
    /// A bit a row, set where there is a value; `None` if all are.
    pub(super) validity: Option<Bytes>,
    /// `rows + 1` offsets into `values`, the first 0, for the layouts that have them.
    pub(super) offsets: Option<Bytes>,
    /// The values.
    pub(super) values: Bytes,
}

impl ColumnBytes {
    /// Bytes of its rows.
    pub(super) fn bytes(&self) -> u64 {
        let of = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        (of(&self.validity) + of(&self.offsets) + self.values.len()) as u64
    }

    /// The column as an array of `rows` rows that shares its bytes. O(rows): arrow checks offsets and UTF-8.
    pub(super) fn array(&self, data_type: &DataType, rows: usize) -> Result<ArrayRef> {
        let values = Buffer::from(self.values.clone());
        let mut array = ArrayData::builder(data_type.clone())
            .len(rows)
            .null_bit_buffer(self.validity.clone().map(Buffer::from))
            .align_buffers(true);
        array = match data_type {
            DataType::FixedSizeList(item, dim) => {
                let elements = rows * usize::try_from(*dim).unwrap_or(0);
                let child = ArrayData::builder(item.data_type().clone()).len(elements).add_buffer(values);
                array.add_child_data(child.align_buffers(true).build()?)
            }
            _ => array.buffers(self.offsets.clone().map(Buffer::from).into_iter().chain([values]).collect()),
        };
        Ok(make_array(array.build()?))
    }

    /// The columns one after the other, each with its rows, in buffers of their own. One copy, O(bytes).
    pub(super) fn concat(layout: Layout, columns: &[(&Self, usize)]) -> Result<Self> {
        let has_nulls = columns.iter().any(|(column, _)| column.validity.is_some());
        let validity = has_nulls.then(|| {
            let mut bits = Bits::default();
            for (column, rows) in columns {
                match &column.validity {
                    Some(validity) => bits.extend(validity, *rows),
                    None => bits.fill(true, *rows),
                }
            }
            Bytes::from(bits.bytes)
        });
        if layout == Layout::Bits {
            let mut bits = Bits::default();
            columns.iter().for_each(|(column, rows)| bits.extend(&column.values, *rows));
            return Ok(Self { validity, offsets: None, values: Bytes::from(bits.bytes) });
        }
        let mut values = Vec::with_capacity(columns.iter().map(|(column, _)| column.values.len()).sum());
        let offsets = match layout {
            Layout::Offsets32 => Some(concat_offsets::<4>(columns)?),
            Layout::Offsets64 => Some(concat_offsets::<8>(columns)?),
            Layout::Fixed(_) | Layout::Bits => None,
        };
        columns.iter().for_each(|(column, _)| values.extend_from_slice(&column.values));
        Ok(Self { validity, offsets, values: Bytes::from(values) })
    }
}

fn concat_offsets<const WIDTH: usize>(columns: &[(&ColumnBytes, usize)]) -> Result<Bytes> {
    let rows: usize = columns.iter().map(|(_, rows)| rows).sum();
    let mut out = Vec::with_capacity((rows + 1) * WIDTH);
    out.resize(WIDTH, 0);
    let mut before = 0u64;
    for (column, _) in columns {
        let offsets = column.offsets.as_deref().unwrap_or_default();
        for offset in offsets.chunks_exact(WIDTH).skip(1) {
            let mut word = [0; 8];
            word[..WIDTH].copy_from_slice(offset);
            let moved = before + u64::from_le_bytes(word);
            if WIDTH == 4 && moved > i32::MAX as u64 {
                return Err(Error::internal("rows of more than 2 GiB were packed together"));
            }
            out.extend_from_slice(&moved.to_le_bytes()[..WIDTH]);
        }
        before += column.values.len() as u64;
    }
    Ok(Bytes::from(out))
}

/// A growing bitmap, least significant bit first.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    pub(super) bytes: Vec<u8>,
    len: usize,
}

impl Bits {
    pub(super) fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if bit {
            self.bytes[self.len / 8] |= 1 << (self.len % 8);
        }
        self.len += 1;
    }

    pub(super) fn fill(&mut self, bit: bool, count: usize) {
        (0..count).for_each(|_| self.push(bit));
    }

    /// Appends the first `count` bits of `bits`.
    pub(super) fn extend(&mut self, bits: &[u8], count: usize) {
        (0..count).for_each(|at| self.push(bits[at / 8] & 1 << (at % 8) != 0));
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }
}
