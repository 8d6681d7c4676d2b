//! Any bytes as a segment's parts: rows, keys and marks that agree, or a named damage, come out, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vectide::fuzzing::segment(bytes));
