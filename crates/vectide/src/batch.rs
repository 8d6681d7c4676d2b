//! A caller's batch, checked whole and brought into the stored form before anything is written.
//!
//! In: any `RecordBatch`. Out: [`CheckedBatch`]: the stored schema's columns in order, keys hashed; or an `Invalid` error
//! that names column, row, what was expected and what came. `table/writer` calls it in the caller's thread, before the
//! log or the memtable hear of the batch. Invariant: what passes here can be encoded, linked and indexed without failing.

use crate::error::{Error, Result};
use crate::keys::KeyArray;
use crate::schema::{Metric, TableSchema, VectorColumn, VectorElement};
use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, RecordBatch, make_array, new_null_array};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type};
use std::collections::HashMap;
use std::sync::Arc;

/// A batch in the stored form.
#[derive(Clone, Debug)]
pub(crate) struct CheckedBatch {
    /// The stored schema's columns.
    pub(crate) rows: RecordBatch,
    /// The key column and its hashes, if the table has a key.
    pub(crate) keys: Option<(KeyArray, Vec<u64>)>,
}

/// Whether one key may stand twice in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duplicates {
    /// The later row replaces the earlier.
    LastWins,
    /// The batch is refused.
    Refused,
}

/// Checks `batch` against the table's schema.
///
/// Columns are matched by name in any order; a missing nullable column is filled with nulls. Costs one pass over the
/// vectors and one over the keys.
///
/// # Errors
/// `Invalid` as described above.
pub(crate) fn check(schema: &TableSchema, batch: &RecordBatch, duplicates: Duplicates) -> Result<CheckedBatch> {
    let rows = check_rows(schema, batch)?;
    let keys = hashed_keys(schema, &rows)?;
    if let (Some((keys, hashes)), Some(column), Duplicates::Refused) = (&keys, schema.key(), duplicates) {
        refuse_duplicates(&column.name, keys, hashes)?;
    }
    Ok(CheckedBatch { rows, keys })
}

/// [`check`] without the keys: the rows in the stored form.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_rows(schema: &TableSchema, batch: &RecordBatch) -> Result<RecordBatch> {
    refuse_unknown_columns(schema, batch)?;
    let mut columns = Vec::with_capacity(schema.stored().fields().len());
    for (user, stored) in schema.arrow().fields().iter().zip(schema.stored().fields()) {
        columns.push(stored_column(batch, user, stored)?);
    }
    for vector in schema.vectors() {
        check_vectors(vector, columns[vector.index].as_fixed_size_list())?;
    }
    let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema.stored()), columns, &options)
        .map_err(|e| Error::invalid(format!("the batch does not fit the table: {e}")))
}

/// The keys of rows in the stored form, and their hashes; `None` in a table without a key.
pub(crate) fn hashed_keys(schema: &TableSchema, rows: &RecordBatch) -> Result<Option<(KeyArray, Vec<u64>)>> {
    let Some(key) = schema.key() else { return Ok(None) };
    let keys = KeyArray::new(rows.column(key.index))?;
    let hashes = keys.hashes();
    Ok(Some((keys, hashes)))
}

fn refuse_unknown_columns(schema: &TableSchema, batch: &RecordBatch) -> Result<()> {
    let known = schema.arrow();
    let mut seen = std::collections::HashSet::new();
    for field in batch.schema_ref().fields() {
        if known.index_of(field.name()).is_err() {
            let names: Vec<_> = known.fields().iter().map(|f| f.name().as_str()).collect();
            let name = field.name();
            return Err(Error::invalid(format!("column `{name}` is not in the table; it has: {}", names.join(", "))));
        }
        if !seen.insert(field.name()) {
            return Err(Error::invalid(format!("column `{}` stands twice in the batch", field.name())));
        }
    }
    Ok(())
}

fn stored_column(batch: &RecordBatch, user: &Field, stored: &Arc<Field>) -> Result<ArrayRef> {
    let name = user.name();
    let Some(array) = batch.column_by_name(name) else {
        if user.is_nullable() {
            return Ok(new_null_array(stored.data_type(), batch.num_rows()));
        }
        return Err(Error::invalid(format!(
            "column `{name}` is missing; it is {} and must not be null",
            user.data_type()
        )));
    };
    if !same_type(array.data_type(), user.data_type()) && !same_type(array.data_type(), stored.data_type()) {
        return Err(Error::invalid(format!(
            "column `{name}`: expected {}, got {}",
            user.data_type(),
            array.data_type()
        )));
    }
    if !user.is_nullable()
        && let Some(row) = first_null(array)
    {
        return Err(Error::invalid(format!("column `{name}`, row {row}: expected a value, got null")));
    }
    to_stored(array, stored.data_type()).map_err(|e| e.context(format_args!("column `{name}`")))
}

fn first_null(array: &ArrayRef) -> Option<usize> {
    (array.null_count() > 0).then(|| (0..array.len()).find(|&row| array.is_null(row)))?
}

/// Brings an array of an equal type (up to the names and nullability of nested fields) to exactly the stored type.
fn to_stored(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
    if array.data_type() == wanted {
        return Ok(Arc::clone(array));
    }
    if same_type(array.data_type(), wanted) {
        let data = retyped(array.to_data(), wanted)?;
        return Ok(make_array(data));
    }
    Ok(arrow::compute::cast(array, wanted)?)
}

fn retyped(data: arrow::array::ArrayData, wanted: &DataType) -> Result<arrow::array::ArrayData> {
    let children: Vec<&DataType> = match wanted {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            vec![f.data_type()]
        }
        DataType::Struct(fields) => fields.iter().map(|f| f.data_type()).collect(),
        _ => Vec::new(),
    };
    let mut builder = data.clone().into_builder().data_type(wanted.clone());
    if children.len() == data.child_data().len() && !children.is_empty() {
        let retyped_children: Result<Vec<_>> =
            data.child_data().iter().zip(children).map(|(child, wanted)| retyped(child.clone(), wanted)).collect();
        builder = builder.child_data(retyped_children?);
    }
    builder.build().map_err(|e| Error::invalid(format!("nested values do not fit the table's type: {e}")))
}

/// Equality of types up to the names, metadata and nullability of nested fields.
fn same_type(a: &DataType, b: &DataType) -> bool {
    a == b
        || a.equals_datatype(b)
        || match (a, b) {
            (DataType::List(a), DataType::List(b)) | (DataType::LargeList(a), DataType::LargeList(b)) => {
                same_type(a.data_type(), b.data_type())
            }
            (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) => {
                n == m && same_type(a.data_type(), b.data_type())
            }
            _ => false,
        }
}

/// What is wrong with one vector.
fn fault(values: impl Iterator<Item = f32>, metric: Metric) -> Option<&'static str> {
    let mut nonzero = false;
    for value in values {
        if value.is_nan() {
            return Some("NaN");
        }
        if value.is_infinite() {
            return Some("infinity");
        }
        nonzero |= value != 0.0;
    }
    (metric == Metric::Cosine && !nonzero).then_some("a zero vector, which has no direction under cosine")
}

/// Checks one query vector the way a written vector is checked.
pub(crate) fn check_query(column: &VectorColumn, row: Option<usize>, query: &[f32]) -> Result<()> {
    let at = row.map(|row| format!(" {row}")).unwrap_or_default();
    let name = &column.name;
    if query.len() != column.dim as usize {
        return Err(Error::invalid(format!(
            "query vector{at} for column `{name}`: expected dimension {}, got {}",
            column.dim,
            query.len()
        )));
    }
    match fault(query.iter().copied(), column.metric) {
        Some(fault) => {
            Err(Error::invalid(format!("query vector{at} for column `{name}`: expected finite numbers, got {fault}")))
        }
        None => Ok(()),
    }
}

fn check_vectors(column: &VectorColumn, list: &FixedSizeListArray) -> Result<()> {
    let dim = column.dim as usize;
    let name = &column.name;
    let values = list.values();
    // Of null vectors the elements are whatever the writer left there; they are neither looked at nor searched.
    let rows = (0..list.len()).filter(|&row| list.is_valid(row));
    let refuse = |row: usize, fault: &str| {
        Err(Error::invalid(format!("column `{name}`, row {row}: expected finite numbers, got {fault}")))
    };
    match column.element {
        VectorElement::F32 => {
            let array = values.as_primitive::<Float32Type>();
            for row in rows {
                let first = list.value_offset(row) as usize;
                if array.null_count() > 0 && (first..first + dim).any(|i| array.is_null(i)) {
                    return refuse(row, "null");
                }
                let vector = &array.values()[first..first + dim];
                if let Some(fault) = quick_fault_f32(vector, column.metric) {
                    return refuse(row, fault);
                }
            }
        }
        VectorElement::F16 => {
            let array = values.as_primitive::<Float16Type>();
            for row in rows {
                let first = list.value_offset(row) as usize;
                if array.null_count() > 0 && (first..first + dim).any(|i| array.is_null(i)) {
                    return refuse(row, "null");
                }
                let vector = array.values()[first..first + dim].iter().map(|v| v.to_f32());
                if let Some(fault) = fault(vector, column.metric) {
                    return refuse(row, fault);
                }
            }
        }
    }
    Ok(())
}

/// What is wrong with a vector of a column of this metric: an infinity, a NaN, or no direction under cosine.
pub(crate) fn vector_fault(vector: &[f32], metric: Metric) -> Option<&'static str> {
    quick_fault_f32(vector, metric)
}

/// As [`fault`], deciding the common case (all finite, not all zero) by bit patterns in one vectorisable pass.
fn quick_fault_f32(vector: &[f32], metric: Metric) -> Option<&'static str> {
    const EXPONENT: u32 = 0x7f80_0000;
    let (mut bad, mut any) = (0u32, 0u32);
    for value in vector {
        let bits = value.to_bits();
        bad |= u32::from(bits & EXPONENT == EXPONENT);
        any |= bits & 0x7fff_ffff;
    }
    if bad == 0 && (any != 0 || metric != Metric::Cosine) {
        return None;
    }
    fault(vector.iter().copied(), metric)
}

fn refuse_duplicates(name: &str, keys: &KeyArray, hashes: &[u64]) -> Result<()> {
    let mut first: HashMap<u64, Vec<usize>> = HashMap::with_capacity(hashes.len());
    for (row, &hash) in hashes.iter().enumerate() {
        let rows = first.entry(hash).or_default();
        if let Some(earlier) = rows.iter().find(|&&earlier| keys.equals(earlier, keys, row)) {
            return Err(Error::invalid(format!(
                "column `{name}`: key {} stands in row {earlier} and again in row {row}; insert takes each key once",
                keys.display(row)
            )));
        }
        rows.push(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
