//! NumPy's `.npy` files as queries: a 1-D or 2-D array of f16, f32 or f64, little-endian, C order.
//!
//! In: bytes. Out: `[n, dim] f32` as rows. Format: NumPy enhancement proposal 1 (magic, version, header length, a
//! Python dictionary as text, then the values). Invariant: sizes are checked against the file before anything is read.

use crate::error::{Failure, Outcome};
use arrow::array::{ArrayRef, AsArray, Float16Array, Float32Array, Float64Array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type};
use std::sync::Arc;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads the rows of an array. A 1-D array is one row.
///
/// # Errors
/// What is wrong with the file, and how to write one that fits.
pub(crate) fn read(bytes: &[u8]) -> Outcome<Vec<Vec<f32>>> {
    let bad = |why: String| {
        Failure::invalid(why).hint("write it with numpy.save(FILE, queries.astype('float32')), shape (n, dim)")
    };
    let (header, data) = split(bytes).ok_or_else(|| bad("not a .npy file, or cut short".into()))?;
    let descr = quoted(header, "descr").ok_or_else(|| bad("the header names no element type".into()))?;
    if field(header, "fortran_order").is_some_and(|value| value.starts_with("True")) {
        return Err(bad("the array is in Fortran order; expected C order".into()));
    }
    let (rows, dim) = shape(header).ok_or_else(|| bad("expected an array of shape (n, dim) or (dim,)".into()))?;
    let width = match descr {
        "<f2" => 2,
        "<f4" => 4,
        "<f8" => 8,
        other => return Err(bad(format!("elements are {other}; expected <f4, <f2 or <f8"))),
    };
    let expected = rows.checked_mul(dim).and_then(|n| n.checked_mul(width));
    if expected != Some(data.len()) {
        return Err(bad(format!("shape ({rows}, {dim}) of {descr} does not fit {} bytes of values", data.len())));
    }
    if dim == 0 {
        return Err(bad("vectors have no elements".into()));
    }
    let values = floats(data, width, rows * dim)?;
    Ok(values.chunks_exact(dim).map(<[f32]>::to_vec).collect())
}

fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (major, rest) = (*rest.first()?, rest.get(2..)?);
    let (length, rest) = if major == 1 {
        (usize::from(u16::from_le_bytes(*rest.first_chunk()?)), rest.get(2..)?)
    } else {
        (u32::from_le_bytes(*rest.first_chunk()?) as usize, rest.get(4..)?)
    };
    let (header, data) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{name}'"))?;
    let (_, value) = header[at..].split_once(':')?;
    Some(value.trim_start())
}

fn quoted<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    field(header, name)?.strip_prefix('\'')?.split('\'').next()
}

fn shape(header: &str) -> Option<(usize, usize)> {
    let (inside, _) = field(header, "shape")?.strip_prefix('(')?.split_once(')')?;
    let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
    let sizes: Vec<usize> = sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?;
    match sizes[..] {
        [dim] => Some((1, dim)),
        [rows, dim] => Some((rows, dim)),
        _ => None,
    }
}

fn floats(data: &[u8], width: usize, count: usize) -> Outcome<Vec<f32>> {
    // A copy, because the file's bytes may begin at any address.
    let buffer = Buffer::from(data);
    let array: ArrayRef = match width {
        2 => Arc::new(Float16Array::new(ScalarBuffer::new(buffer, 0, count), None)),
        4 => Arc::new(Float32Array::new(ScalarBuffer::new(buffer, 0, count), None)),
        _ => Arc::new(Float64Array::new(ScalarBuffer::new(buffer, 0, count), None)),
    };
    Ok(cast(&array, &DataType::Float32)?.as_primitive::<Float32Type>().values().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
            header.push(' ');
        }
        header.push('\n');
        let mut out = MAGIC.to_vec();
        out.extend([1, 0]);
        out.extend((header.len() as u16).to_le_bytes());
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn rows_are_read_from_each_float_width() {
        let f32s: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(read(&npy("<f4", "False", "(2, 2)", &f32s)).expect("reads"), [[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(read(&npy("<f4", "False", "(4,)", &f32s)).expect("reads"), [[1.0, 2.0, 3.0, 4.0]]);
        let f64s: Vec<u8> = [1.0f64, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(read(&npy("<f8", "False", "(1, 2)", &f64s)).expect("reads"), [[1.0, 2.0]]);
        // 0x3c00 is 1.0 and 0x4000 is 2.0 as f16.
        assert_eq!(read(&npy("<f2", "False", "(1, 2)", &[0, 0x3c, 0, 0x40])).expect("reads"), [[1.0, 2.0]]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        for (bytes, why) in [
            (b"PK\x03\x04".to_vec(), "not a .npy file"),
            (npy("<i8", "False", "(1, 1)", &[0; 8]), "<i8"),
            (npy("<f4", "True", "(1, 1)", &[0; 4]), "Fortran"),
            (npy("<f4", "False", "(3, 1)", &[0; 8]), "does not fit"),
            (npy("<f4", "False", "(1, 1, 1)", &[0; 4]), "shape"),
            (npy("<f4", "False", "(4611686018427387904, 8)", &[0; 4]), "does not fit"),
        ] {
            let failure = read(&bytes).expect_err("must be refused");
            assert!(failure.message.contains(why), "{} should say {why}", failure.message);
        }
    }
}
