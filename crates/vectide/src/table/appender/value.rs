//! One value of a row, and whether a column takes it.
//!
//! [`Appender::append_row`](super::Appender::append_row) takes a slice of [`Value`]s; [`Accepts`] is a column's check, made
//! once from the schema. Invariant: a value that passed the check is written without failing.

use crate::batch;
use crate::error::{Error, Result};
use crate::memtable::{ColumnBuffer, Layout};
use crate::schema::{TableSchema, VectorColumn, VectorElement};
use arrow::datatypes::DataType;
use half::f16;

/// One value of a row, borrowed. Made with `From`: `7.into()`, `"text".into()`, `vector.as_slice().into()`; `None` of an
/// option is null.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// No value.
    Null,
    /// For Boolean.
    Bool(bool),
    /// For integers, and dates, times, timestamps and durations in their own unit: whatever fits the column.
    Int(i64),
    /// As [`Value::Int`].
    UInt(u64),
    /// For Float32.
    Float32(f32),
    /// For Float64.
    Float64(f64),
    /// For Utf8 and LargeUtf8.
    Str(&'a str),
    /// For Binary, LargeBinary and FixedSizeBinary.
    Bytes(&'a [u8]),
    /// For a vector column of f32: `[dim]`.
    Vector(&'a [f32]),
    /// For a vector column of f16: `[dim]`.
    VectorF16(&'a [f16]),
}

macro_rules! from {
    ($($from:ty => $make:expr),* $(,)?) => {
        $(impl<'a> From<$from> for Value<'a> {
            fn from(value: $from) -> Self {
                ($make)(value)
            }
        })*
    };
}

from! {
    bool => Self::Bool,
    i8 => |v| Self::Int(i64::from(v)),
    i16 => |v| Self::Int(i64::from(v)),
    i32 => |v| Self::Int(i64::from(v)),
    i64 => Self::Int,
    u8 => |v| Self::UInt(u64::from(v)),
    u16 => |v| Self::UInt(u64::from(v)),
    u32 => |v| Self::UInt(u64::from(v)),
    u64 => Self::UInt,
    f32 => Self::Float32,
    f64 => Self::Float64,
    &'a str => Self::Str,
    &'a String => |v: &'a String| Self::Str(v.as_str()),
    &'a [u8] => Self::Bytes,
    &'a Vec<u8> => |v: &'a Vec<u8>| Self::Bytes(v.as_slice()),
    &'a [f32] => Self::Vector,
    &'a Vec<f32> => |v: &'a Vec<f32>| Self::Vector(v.as_slice()),
    &'a [f16] => Self::VectorF16,
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Self::Bytes(value)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Value<'a> {
    fn from(value: &'a [f32; N]) -> Self {
        Self::Vector(value)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// What kind of value a column holds.
#[derive(Clone, Debug)]
enum Kind {
    Bool,
    Int { least: i64, most: i64 },
    UInt { most: u64 },
    Float32,
    Float64,
    Str,
    Bytes,
    Fixed(usize),
    Vector(VectorColumn),
}

/// A column's check.
#[derive(Clone, Debug)]
pub(super) struct Accepts {
    name: String,
    data_type: DataType,
    nullable: bool,
    /// `None`: only whole batches bring values of such a type.
    kind: Option<Kind>,
}

impl Accepts {
    /// The checks of a table's columns, in the order of its schema.
    pub(super) fn of(schema: &TableSchema) -> Vec<Self> {
        let fields = schema.arrow().fields().iter().zip(schema.stored().fields()).enumerate();
        let accepts = |(at, (user, stored)): (usize, (&arrow::datatypes::FieldRef, &arrow::datatypes::FieldRef))| {
            let vector = schema.vectors().iter().find(|vector| vector.index == at);
            Self {
                name: user.name().clone(),
                data_type: user.data_type().clone(),
                nullable: user.is_nullable(),
                kind: match vector {
                    Some(vector) => Some(Kind::Vector(vector.clone())),
                    None => kind(stored.data_type()),
                },
            }
        };
        fields.map(accepts).collect()
    }

    /// Refuses a value that the column does not take. `row` is counted within what is buffered.
    #[inline]
    pub(super) fn check(&self, value: &Value<'_>, row: usize) -> Result<()> {
        let fits = match (&self.kind, value) {
            (Some(Kind::Fixed(width)), Value::Bytes(bytes)) => bytes.len() == *width,
            (Some(Kind::Bytes), Value::Bytes(_))
            | (Some(Kind::Str), Value::Str(_))
            | (Some(Kind::Bool), Value::Bool(_))
            | (Some(Kind::Float32), Value::Float32(_))
            | (Some(Kind::Float64), Value::Float64(_)) => true,
            (Some(Kind::Int { least, most }), Value::Int(v)) => (least..=most).contains(&v),
            (Some(Kind::Int { most, .. }), Value::UInt(v)) => *v <= *most as u64,
            (Some(Kind::UInt { most }), Value::UInt(v)) => v <= most,
            (Some(Kind::UInt { most }), Value::Int(v)) => *v >= 0 && *v as u64 <= *most,
            (Some(Kind::Vector(column)), Value::Vector(v)) if column.element == VectorElement::F32 => {
                v.len() == column.dim as usize && self.check_vector(column, v, row).map(|()| true)?
            }
            (Some(Kind::Vector(column)), Value::VectorF16(v)) if column.element == VectorElement::F16 => {
                let wide: Vec<f32> = v.iter().map(|v| v.to_f32()).collect();
                v.len() == column.dim as usize && self.check_vector(column, &wide, row).map(|()| true)?
            }
            (_, Value::Null) => self.nullable,
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.refuse(value, row)) }
    }

    fn check_vector(&self, column: &VectorColumn, vector: &[f32], row: usize) -> Result<()> {
        match batch::vector_fault(vector, column.metric) {
            None => Ok(()),
            Some(fault) => {
                let name = &self.name;
                Err(Error::invalid(format!("column `{name}`, row {row}: expected finite numbers, got {fault}")))
            }
        }
    }

    #[cold]
    fn refuse(&self, value: &Value<'_>, row: usize) -> Error {
        let Self { name, data_type, .. } = self;
        let expected = match (&self.kind, value) {
            (None, Value::Null) | (Some(_), Value::Null) => "a value".to_owned(),
            (None, _) => {
                return Error::invalid(format!(
                    "column `{name}`, row {row}: {data_type} cannot be appended row by row; append a RecordBatch"
                ));
            }
            (Some(Kind::Vector(column)), _) => format!("a vector of {} {:?}", column.dim, column.element),
            (Some(_), _) => data_type.to_string(),
        };
        let got = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(v) => format!("the boolean {v}"),
            Value::Int(v) => v.to_string(),
            Value::UInt(v) => v.to_string(),
            Value::Float32(v) => format!("the f32 {v}"),
            Value::Float64(v) => format!("the f64 {v}"),
            Value::Str(v) => format!("a string of {} bytes", v.len()),
            Value::Bytes(v) => format!("{} bytes", v.len()),
            Value::Vector(v) => format!("{} f32", v.len()),
            Value::VectorF16(v) => format!("{} f16", v.len()),
        };
        Error::invalid(format!("column `{name}`, row {row}: expected {expected}, got {got}"))
    }
}

fn kind(stored: &DataType) -> Option<Kind> {
    let int = |bits: u32| Some(Kind::Int { least: i64::MIN >> (64 - bits), most: i64::MAX >> (64 - bits) });
    match stored {
        DataType::Boolean => Some(Kind::Bool),
        DataType::Int8 => int(8),
        DataType::Int16 => int(16),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => int(32),
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(_, _)
        | DataType::Duration(_) => int(64),
        DataType::UInt8 => Some(Kind::UInt { most: u64::from(u8::MAX) }),
        DataType::UInt16 => Some(Kind::UInt { most: u64::from(u16::MAX) }),
        DataType::UInt32 => Some(Kind::UInt { most: u64::from(u32::MAX) }),
        DataType::UInt64 => Some(Kind::UInt { most: u64::MAX }),
        DataType::Float32 => Some(Kind::Float32),
        DataType::Float64 => Some(Kind::Float64),
        DataType::Utf8 | DataType::LargeUtf8 => Some(Kind::Str),
        DataType::Binary | DataType::LargeBinary => Some(Kind::Bytes),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok().map(Kind::Fixed),
        _ => None,
    }
}

impl Value<'_> {
    /// Appends the value to a column that accepts it.
    #[inline]
    pub(super) fn write(&self, column: &mut ColumnBuffer) {
        match self {
            Self::Bytes(v) => column.push(v),
            Self::Str(v) => column.push(v.as_bytes()),
            Self::Null => column.push_null(),
            Self::Bool(v) => column.push_bit(*v),
            Self::Int(v) => push_word(column, *v as u64),
            Self::UInt(v) => push_word(column, *v),
            Self::Float32(v) => column.push(&v.to_le_bytes()),
            Self::Float64(v) => column.push(&v.to_le_bytes()),
            Self::Vector(v) => column.push_elements(v.iter().map(|v| v.to_le_bytes())),
            Self::VectorF16(v) => column.push_elements(v.iter().map(|v| v.to_le_bytes())),
        }
    }
}

/// The lowest bytes of a word, as many as the column has: exact for a value in its range.
fn push_word(column: &mut ColumnBuffer, word: u64) {
    let width = match column.layout() {
        Layout::Fixed(width) => width.min(8),
        _ => 8,
    };
    column.push(&word.to_le_bytes()[..width]);
}
