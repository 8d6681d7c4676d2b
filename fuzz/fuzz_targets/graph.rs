//! Any bytes as a frozen graph: opened, searched and verified without a read outside of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vectide_graph::fuzzing::mapped(bytes));
