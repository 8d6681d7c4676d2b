//! Table declarations: `--column id:int64`, `--vector vec:384:cosine:f16`, and schema files in JSON.
//!
//! Used by `create`, `ingest` (which completes a file's schema with them) and `tables` (which prints one back). Out: a
//! checked [`TableSchema`].

use crate::error::{Failure, Outcome};
use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use vectide::schema::{VectorElement, VectorOptions, metric_name, parse_codes, parse_metric};
use vectide::{Metric, TableSchema};

/// `--vector COL[:DIM][:METRIC][:f16|f32]`: what a vector column is to be; what is left out follows from the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VectorSpec {
    /// Column.
    pub(crate) column: String,
    /// Dimension.
    pub(crate) dim: Option<i32>,
    /// Distance; cosine if not said.
    pub(crate) metric: Metric,
    /// Element type.
    pub(crate) element: Option<VectorElement>,
}

impl FromStr for VectorSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let column = parts.next().filter(|name| !name.is_empty()).ok_or("the column's name is missing")?;
        let mut spec = Self { column: column.to_owned(), dim: None, metric: Metric::Cosine, element: None };
        for part in parts {
            match part {
                "f16" | "float16" => spec.element = Some(VectorElement::F16),
                "f32" | "float32" => spec.element = Some(VectorElement::F32),
                _ => match part.parse::<i32>() {
                    Ok(dim) if dim > 0 => spec.dim = Some(dim),
                    Ok(dim) => return Err(format!("dimension {dim} must be at least 1")),
                    Err(_) => {
                        spec.metric = parse_metric(part).map_err(|_| {
                            format!("`{part}` is neither a dimension, nor l2, cosine or dot, nor f16 or f32")
                        })?;
                    }
                },
            }
        }
        Ok(spec)
    }
}

impl VectorSpec {
    /// The column's field, `dim` wide.
    pub(crate) fn field(&self, dim: i32, element: VectorElement) -> Field {
        let item = match self.element.unwrap_or(element) {
            VectorElement::F32 => DataType::Float32,
            VectorElement::F16 => DataType::Float16,
        };
        Field::new_fixed_size_list(&self.column, Field::new_list_field(item, true), dim, true)
    }
}

/// `--column NAME:TYPE`: a plain column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColumnSpec(pub(crate) Field);

impl FromStr for ColumnSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, data_type) = text
            .split_once(':')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("`{text}` must be NAME:TYPE, such as id:int64"))?;
        Ok(Self(Field::new(name, parse_type(data_type)?, true)))
    }
}

const TYPE_NAMES: &[(&str, DataType)] = &[
    ("bool", DataType::Boolean),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float16", DataType::Float16),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("utf8", DataType::Utf8),
    ("string", DataType::Utf8),
    ("large_utf8", DataType::LargeUtf8),
    ("binary", DataType::Binary),
    ("large_binary", DataType::LargeBinary),
    ("date32", DataType::Date32),
    ("date64", DataType::Date64),
    ("timestamp", DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, None)),
];

/// Reads a type: one of the short names, or Arrow's own notation, such as `Timestamp(ms)` or `List(Utf8)`.
fn parse_type(text: &str) -> Result<DataType, String> {
    let lower = text.to_ascii_lowercase();
    if let Some((_, data_type)) = TYPE_NAMES.iter().find(|(name, _)| *name == lower) {
        return Ok(data_type.clone());
    }
    text.parse().map_err(|_| {
        let names: Vec<_> = TYPE_NAMES.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is no type; known are {}, and Arrow's own names", names.join(", "))
    })
}

fn type_name(data_type: &DataType) -> String {
    let short = TYPE_NAMES.iter().find(|(_, known)| known == data_type);
    short.map_or_else(|| data_type.to_string(), |(name, _)| (*name).to_owned())
}

/// A table's declaration as JSON: what `tables --json` prints and `create --schema FILE.json` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Declaration {
    /// Plain columns and the key column, in order.
    columns: Vec<DeclaredColumn>,
    /// The key column's name.
    #[serde(default)]
    key: Option<String>,
    /// The vector columns.
    #[serde(default)]
    vectors: Vec<DeclaredVector>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeclaredColumn {
    name: String,
    #[serde(rename = "type")]
    data_type: String,
    #[serde(default = "nullable")]
    nullable: bool,
}

const fn nullable() -> bool {
    true
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeclaredVector {
    name: String,
    dim: i32,
    #[serde(default = "cosine")]
    metric: String,
    #[serde(default = "f32_element")]
    element: VectorElement,
    #[serde(default)]
    m: Option<u16>,
    #[serde(default)]
    ef_construction: Option<u32>,
    #[serde(default)]
    codes: Option<String>,
}

fn cosine() -> String {
    metric_name(Metric::Cosine).to_owned()
}

const fn f32_element() -> VectorElement {
    VectorElement::F32
}

impl Declaration {
    /// How `schema` would be declared.
    pub(crate) fn of(schema: &TableSchema) -> Self {
        let is_vector = |name: &str| schema.vectors().iter().any(|v| v.name == name);
        let columns = schema.arrow().fields().iter().filter(|f| !is_vector(f.name()));
        Self {
            columns: columns
                .map(|f| DeclaredColumn {
                    name: f.name().clone(),
                    data_type: type_name(f.data_type()),
                    nullable: f.is_nullable(),
                })
                .collect(),
            key: schema.key().map(|k| k.name.clone()),
            vectors: (schema.vectors().iter())
                .map(|v| DeclaredVector {
                    name: v.name.clone(),
                    dim: i32::try_from(v.dim).unwrap_or(i32::MAX),
                    metric: metric_name(v.metric).to_owned(),
                    element: v.element,
                    m: Some(v.m),
                    ef_construction: Some(v.ef_construction),
                    codes: Some(v.codes.name().to_owned()),
                })
                .collect(),
        }
    }

    /// The schema it declares: plain columns first, then vectors.
    pub(crate) fn schema(&self) -> Outcome<TableSchema> {
        let mut fields = Vec::new();
        for column in &self.columns {
            let data_type = parse_type(&column.data_type)
                .map_err(|why| Failure::invalid(format!("column `{}`: {why}", column.name)))?;
            fields.push(Field::new(&column.name, data_type, column.nullable));
        }
        for v in &self.vectors {
            let spec =
                VectorSpec { column: v.name.clone(), dim: None, metric: Metric::Cosine, element: Some(v.element) };
            fields.push(spec.field(v.dim, v.element));
        }
        let mut builder = TableSchema::builder(Schema::new(fields));
        if let Some(key) = &self.key {
            builder = builder.key(key);
        }
        for v in &self.vectors {
            let mut options = VectorOptions::new(parse_metric(&v.metric)?);
            options.m = v.m.unwrap_or(options.m);
            options.ef_construction = v.ef_construction.unwrap_or(options.ef_construction);
            options.codes = v.codes.as_deref().filter(|name| *name != "auto").map(parse_codes).transpose()?;
            builder = builder.vector_with(&v.name, options);
        }
        Ok(builder.build()?)
    }

    /// One line for a person: `id int64 key, name utf8, vec f32[384] cosine`.
    pub(crate) fn line(&self) -> String {
        let key = |name: &str| if self.key.as_deref() == Some(name) { " key" } else { "" };
        let columns = self.columns.iter().map(|c| format!("{} {}{}", c.name, c.data_type, key(&c.name)));
        let vectors = self.vectors.iter().map(|v| {
            let element = if v.element == VectorElement::F16 { "f16" } else { "f32" };
            format!("{} {element}[{}] {}", v.name, v.dim, v.metric)
        });
        columns.chain(vectors).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_declarations_take_their_parts_in_any_order() {
        let spec: VectorSpec = "vec:384:dot:f16".parse().expect("a declaration");
        let swapped: VectorSpec = "vec:f16:dot:384".parse().expect("a declaration");
        assert_eq!(spec, swapped);
        assert_eq!((spec.dim, spec.metric, spec.element), (Some(384), Metric::Dot, Some(VectorElement::F16)));
        let bare: VectorSpec = "vec".parse().expect("a declaration");
        assert_eq!((bare.dim, bare.metric), (None, Metric::Cosine));
        for bad in ["", ":384", "vec:0", "vec:euclid"] {
            assert!(bad.parse::<VectorSpec>().is_err(), "{bad} must be refused");
        }
    }

    #[test]
    fn types_have_short_names_and_arrows_own() {
        assert_eq!(parse_type("INT64"), Ok(DataType::Int64));
        assert!(matches!(parse_type("List(Int64)"), Ok(DataType::List(_))));
        assert!(parse_type("number").expect_err("no type").contains("int64"));
    }

    #[test]
    fn a_printed_declaration_reads_back_as_the_same_table() {
        let schema = vectide::schema! { key id: Int64, name: Utf8, vector vec: [f16; 8] l2 }.expect("valid");
        let text = serde_json::to_string(&Declaration::of(&schema)).expect("serializes");
        let read: Declaration = serde_json::from_str(&text).expect("reads back");
        assert_eq!(read.schema().expect("valid"), schema, "{text}");
        assert_eq!(read.line(), "id int64 key, name utf8, vec f16[8] l2");
    }
}
