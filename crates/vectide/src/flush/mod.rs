//! The one path from memtable to segment: [`build`] writes the files; `table` waits, commits and swaps the tier.

pub(crate) mod build;

#[cfg(test)]
mod tests;
