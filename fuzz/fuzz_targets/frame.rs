//! Any bytes as a log file: whole batches, a torn tail or a named damage come out, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vectide::fuzzing::frame(bytes));
