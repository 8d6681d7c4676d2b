//! What the environment asks for: longer runs, other seeds.

/// The number in the variable `name`, if it is set.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
}
