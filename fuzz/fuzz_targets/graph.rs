//! Any bytes as a stored graph: a search that keeps its promises, or a named damage, comes out, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vectide_graph::fuzzing::mapped(bytes));
