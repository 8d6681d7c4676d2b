//! Bad input is refused whole, with a message that names column, row, what was expected and what came.

use super::*;
use arrow::array::{DictionaryArray, Float16Array, Float32Array, Int32Array, Int64Array, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Int32Type, Schema};
use half::f16;

fn vectors(rows: &[Option<[f32; 2]>]) -> ArrayRef {
    let values: Vec<f32> = rows.iter().flat_map(|r| r.unwrap_or([0.0; 2])).collect();
    let nulls: NullBuffer = rows.iter().map(Option::is_some).collect::<Vec<_>>().into();
    let item = Arc::new(Field::new("element", DataType::Float32, true));
    Arc::new(FixedSizeListArray::new(item, 2, Arc::new(Float32Array::from(values)), Some(nulls)))
}

fn schema() -> TableSchema {
    crate::schema! { key id: Int64, name: Utf8, vector vec: [f32; 2] cosine }.expect("valid")
}

fn batch(ids: Vec<Option<i64>>, vecs: ArrayRef) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(ids));
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("vec", vecs, true)]).expect("a batch")
}

fn message(batch: &RecordBatch, duplicates: Duplicates) -> String {
    let error = check(&schema(), batch, duplicates).expect_err("must be refused");
    assert_eq!(error.kind(), crate::ErrorKind::Invalid);
    error.to_string()
}

#[test]
fn columns_come_in_any_order_under_any_item_name_and_missing_ones_are_null() {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![7, 8]));
    let given =
        RecordBatch::try_from_iter([("vec", vectors(&[Some([1.0, 0.0]), None])), ("id", ids)]).expect("a batch");
    let checked = check(&schema(), &given, Duplicates::Refused).expect("fits");
    assert_eq!(checked.rows.schema_ref(), schema().stored());
    assert_eq!(checked.rows.column(1).null_count(), 2);
    assert_eq!(checked.rows.column(2).null_count(), 1, "a null vector is kept");
}

#[test]
fn a_nan_or_infinity_names_row_57_and_the_column() {
    for (bad, said) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinity"), (f32::NEG_INFINITY, "infinity")] {
        let mut rows = vec![Some([1.0, 2.0]); 100];
        rows[57] = Some([bad, 1.0]);
        let said_of = message(&batch((0..100).map(Some).collect(), vectors(&rows)), Duplicates::Refused);
        assert!(said_of.contains("`vec`") && said_of.contains("row 57") && said_of.contains(said), "{said_of}");
    }
}

#[test]
fn a_zero_vector_is_refused_under_cosine_with_the_reason() {
    let said = message(&batch(vec![Some(1)], vectors(&[Some([0.0, -0.0])])), Duplicates::LastWins);
    assert!(said.contains("row 0") && said.contains("cosine"), "{said}");
    let l2 = crate::schema! { key id: Int64, vector vec: [f32; 2] l2 }.expect("valid");
    assert!(check(&l2, &batch(vec![Some(1)], vectors(&[Some([0.0, 0.0])])), Duplicates::LastWins).is_ok());
    let query = check_query(&schema().vectors()[0], None, &[0.0, 0.0]).expect_err("refused").to_string();
    assert!(query.contains("cosine"), "{query}");
}

#[test]
fn a_wrong_dimension_names_column_expected_and_got() {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let three: ArrayRef = Arc::new(FixedSizeListArray::new(item, 3, Arc::new(Float32Array::from(vec![1.0; 3])), None));
    let said = message(&batch(vec![Some(1)], three), Duplicates::Refused);
    assert!(said.contains("`vec`") && said.contains('2') && said.contains('3'), "{said}");
    let query = check_query(&schema().vectors()[0], Some(4), &[1.0; 3]).expect_err("refused").to_string();
    assert!(query.contains("vector 4") && query.contains("expected dimension 2, got 3"), "{query}");
}

#[test]
fn null_keys_unknown_columns_and_wrong_types_are_named() {
    let said = message(&batch(vec![Some(1), None], vectors(&[None, None])), Duplicates::LastWins);
    assert!(said.contains("`id`") && said.contains("row 1") && said.contains("null"), "{said}");

    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let unknown = RecordBatch::try_from_iter([("id", Arc::clone(&ids)), ("nme", names)]).expect("a batch");
    let said = message(&unknown, Duplicates::LastWins);
    assert!(said.contains("`nme`") && said.contains("name"), "{said}");

    let wrong = RecordBatch::try_from_iter([("id", ids), ("name", Arc::new(Int32Array::from(vec![1])) as ArrayRef)])
        .expect("a batch");
    let said = message(&wrong, Duplicates::LastWins);
    assert!(said.contains("`name`") && said.contains("expected Utf8, got Int32"), "{said}");

    let keyless = RecordBatch::try_from_iter([("vec", vectors(&[None]))]).expect("a batch");
    assert!(message(&keyless, Duplicates::LastWins).contains("`id` is missing"));
}

#[test]
fn insert_refuses_a_key_twice_and_upsert_takes_it() {
    let twice = batch(vec![Some(5), Some(6), Some(5)], vectors(&[None, None, None]));
    let said = message(&twice, Duplicates::Refused);
    assert!(said.contains("key 5") && said.contains("row 0") && said.contains("row 2"), "{said}");
    assert!(check(&schema(), &twice, Duplicates::LastWins).is_ok());
}

#[test]
fn null_elements_inside_a_vector_are_refused() {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Float32Array::from(vec![Some(1.0), None]);
    let list: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, Arc::new(values), None));
    let said = message(&batch(vec![Some(1)], list), Duplicates::LastWins);
    assert!(said.contains("row 0") && said.contains("null"), "{said}");
}

#[test]
fn sliced_and_half_precision_vectors_are_checked_where_they_stand() {
    let schema = crate::schema! { vector vec: [f16; 2] l2 }.expect("valid");
    let item = Arc::new(Field::new_list_field(DataType::Float16, true));
    let values = [1.0, 1.0, 2.0, f32::NAN, 3.0, 3.0].map(f16::from_f32).to_vec();
    let list: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, Arc::new(Float16Array::from(values)), None));
    let whole = RecordBatch::try_from_iter([("vec", list)]).expect("a batch");
    assert!(check(&schema, &whole.slice(2, 1), Duplicates::Refused).is_ok());
    let said = check(&schema, &whole.slice(1, 2), Duplicates::Refused).expect_err("refused").to_string();
    assert!(said.contains("row 0"), "{said}");
}

#[test]
fn dictionary_columns_are_unpacked() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let schema = TableSchema::builder(Schema::new(vec![Field::new("tag", dictionary, true)])).build().expect("valid");
    let tags: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let given = RecordBatch::try_from_iter([("tag", Arc::new(tags) as ArrayRef)]).expect("a batch");
    let checked = check(&schema, &given, Duplicates::Refused).expect("fits");
    assert_eq!(checked.rows.column(0).as_string::<i32>().value(2), "a");
}
