//! Vectors in whatever form they come: lists of any numbers in, `FixedSizeList` of f32 or f16 out.
//!
//! `ingest` converts columns with it, `search` reads queries. Invariant: a list of another length than the column's
//! dimension is an error that names the row; nothing is cut or padded.

use crate::error::{Failure, Outcome};
use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, UInt64Array, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field, Float32Type};
use std::sync::Arc;

const EXACT: CastOptions<'static> =
    CastOptions { safe: false, format_options: arrow::util::display::FormatOptions::new() };

/// Whether a column of this type can become a vector column: a list of numbers.
pub(crate) fn is_vector_like(data_type: &DataType) -> bool {
    match data_type {
        DataType::FixedSizeList(item, _) | DataType::List(item) | DataType::LargeList(item) => {
            item.data_type().is_numeric()
        }
        _ => false,
    }
}

/// The dimension of a list column: the type's own, or the first row's length. `None` if no row says.
pub(crate) fn dimension(array: &dyn Array) -> Option<i32> {
    fn first<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Option<i32> {
        let row = (0..list.len()).find(|&row| list.is_valid(row))?;
        i32::try_from(list.value_length(row).as_usize()).ok()
    }
    match array.data_type() {
        DataType::FixedSizeList(_, dim) => Some(*dim),
        DataType::List(_) => first(array.as_list::<i32>()),
        DataType::LargeList(_) => first(array.as_list::<i64>()),
        _ => None,
    }
}

/// Brings `array` to `wanted`, a `FixedSizeList` of floats. `row_name` says what a row is called in errors.
///
/// Costs one pass over the values, none if the type fits already.
pub(crate) fn to_fixed(
    array: &ArrayRef,
    wanted: &DataType,
    column: &str,
    row_name: &dyn Fn(usize) -> String,
) -> Outcome<ArrayRef> {
    let DataType::FixedSizeList(item, dim) = wanted else {
        return Err(Failure::invalid(format!("column `{column}` is no vector column: it holds {wanted}")));
    };
    if array.data_type() == wanted {
        return Ok(Arc::clone(array));
    }
    match array.data_type() {
        DataType::FixedSizeList(_, found) if found == dim => {
            let list = array.as_fixed_size_list();
            fixed(list.values(), item, *dim, list)
        }
        DataType::FixedSizeList(_, found) => Err(wrong_length(column, *dim, *found as usize, &row_name(0))),
        DataType::List(_) => from_lists(array.as_list::<i32>(), item, *dim, column, row_name),
        DataType::LargeList(_) => from_lists(array.as_list::<i64>(), item, *dim, column, row_name),
        DataType::Null => Ok(new_null_array(wanted, array.len())),
        other => {
            Err(Failure::invalid(format!("column `{column}`: expected lists of {dim} numbers, the file has {other}")))
        }
    }
}

fn from_lists<O: OffsetSizeTrait>(
    lists: &GenericListArray<O>,
    item: &Arc<Field>,
    dim: i32,
    column: &str,
    row_name: &dyn Fn(usize) -> String,
) -> Outcome<ArrayRef> {
    let width = usize::try_from(dim).unwrap_or(0);
    let wrong = |row: &usize| lists.is_valid(*row) && lists.value_length(*row).as_usize() != width;
    if let Some(row) = (0..lists.len()).find(wrong) {
        return Err(wrong_length(column, dim, lists.value_length(row).as_usize(), &row_name(row)));
    }
    if lists.null_count() == 0 {
        let (from, to) = (lists.value_offsets()[0].as_usize(), lists.value_offsets()[lists.len()].as_usize());
        return fixed(&lists.values().slice(from, to - from), item, dim, lists);
    }
    // A null list has no values: its slots in the fixed form are null ones.
    let indices: UInt64Array = (0..lists.len())
        .flat_map(|row| {
            let start = lists.is_valid(row).then(|| lists.value_offsets()[row].as_usize() as u64);
            (0..width as u64).map(move |i| start.map(|start| start + i))
        })
        .collect();
    fixed(&take(lists.values(), &indices, None)?, item, dim, lists)
}

fn fixed(values: &ArrayRef, item: &Arc<Field>, dim: i32, list: &dyn Array) -> Outcome<ArrayRef> {
    let values = cast_with_options(values, item.data_type(), &EXACT)?;
    Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), dim, values, list.nulls().cloned())?))
}

fn wrong_length(column: &str, expected: i32, got: usize, row: &str) -> Failure {
    Failure::invalid(format!("column `{column}`, {row}: expected {expected} values, got {got}"))
        .hint("correct that row and run the command again")
}

/// Row `row` of a vector column as f32; `None` if it is null.
pub(crate) fn row_f32(array: &dyn Array, row: usize) -> Outcome<Option<Vec<f32>>> {
    let Some(list) = array.as_fixed_size_list_opt().filter(|list| list.is_valid(row)) else { return Ok(None) };
    let values = cast_with_options(&list.value(row), &DataType::Float32, &EXACT)?;
    Ok(Some(values.as_primitive::<Float32Type>().values().to_vec()))
}

/// All rows of a vector column without nulls as f32, row-major `[n, dim]` cut into rows.
pub(crate) fn rows_f32(array: &dyn Array) -> Outcome<Vec<Vec<f32>>> {
    let mut rows = Vec::with_capacity(array.len());
    for row in 0..array.len() {
        rows.extend(row_f32(array, row)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::ListArray;
    use arrow::datatypes::Float64Type;

    fn wanted(item: DataType, dim: i32) -> DataType {
        DataType::new_fixed_size_list(item, dim, true)
    }

    #[test]
    fn lists_of_doubles_become_fixed_vectors_and_nulls_stay_null() {
        let rows = vec![Some(vec![Some(1.0), Some(2.0)]), None, Some(vec![Some(3.0), Some(4.0)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows));
        assert_eq!(dimension(&lists), Some(2));
        for item in [DataType::Float32, DataType::Float16] {
            let out = to_fixed(&lists, &wanted(item, 2), "vec", &|row| format!("row {row}")).expect("converts");
            assert_eq!(out.null_count(), 1);
            assert_eq!(row_f32(&out, 2).expect("a row"), Some(vec![3.0, 4.0]));
            assert_eq!(row_f32(&out, 1).expect("a row"), None);
        }
        let tail = lists.slice(2, 1);
        let out = to_fixed(&tail, &wanted(DataType::Float32, 2), "vec", &|row| format!("row {row}")).expect("converts");
        assert_eq!(rows_f32(&out).expect("rows"), vec![vec![3.0, 4.0]]);
    }

    #[test]
    fn a_row_of_another_length_is_named() {
        let rows = vec![Some(vec![Some(1.0), Some(2.0)]), Some(vec![Some(3.0)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows));
        let failure = to_fixed(&lists, &wanted(DataType::Float32, 2), "vec", &|row| format!("line {}", row + 1))
            .expect_err("must be refused");
        assert_eq!(failure.message, "column `vec`, line 2: expected 2 values, got 1");
    }
}
