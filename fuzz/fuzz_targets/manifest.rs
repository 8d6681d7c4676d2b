//! Any bytes as a manifest and as a catalog: a consistent document or a named damage comes out, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vectide::fuzzing::manifest(bytes));
