//! What stands beside the vector in a row of the shapes: numbers go in, words come out, always the same ones.
//!
//! No dependency: the rival of `bench-compare/shard-writer` includes this file by its path, so that both write the same
//! rows. The columns and sizes are those of Lance's own bench of its shard writer, whose model is the data set FineWeb.

/// Bytes of a row's text, all ASCII.
pub(crate) const TEXT_BYTES: usize = 1_536;

/// Common English words, the frequent ones first: word `i` is met about as often as `1 / (i + 1)` (Zipf).
const WORDS: [&str; 96] = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you", "were", "all",
    "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no", "more", "if",
    "out", "so", "said", "what", "up", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new",
    "some", "could", "these", "two", "may", "first", "then", "do", "any", "like", "my", "now", "over", "such", "our",
    "man", "me", "even", "most", "made", "after", "also", "well", "many", "must", "years", "before", "water", "river",
    "house", "garden", "letter",
];

/// The key of a row: `row-000000000012`.
pub(crate) fn id(row: usize) -> String {
    format!("row-{row:012}")
}

/// [`TEXT_BYTES`] of words.
pub(crate) fn text(row: usize) -> String {
    let mut random = Random(row as u64);
    let mut text = String::with_capacity(TEXT_BYTES + 16);
    let mut left_in_sentence = 0;
    while text.len() < TEXT_BYTES {
        if left_in_sentence == 0 {
            left_in_sentence = 8 + random.next() % 12;
            text.push_str(if text.is_empty() { "" } else { "." });
        }
        text.push_str(if text.is_empty() { "" } else { " " });
        text.push_str(random.word());
        left_in_sentence -= 1;
    }
    text.truncate(TEXT_BYTES);
    text
}

/// Which crawl the row came from.
pub(crate) fn dump(row: usize) -> &'static str {
    ["CC-MAIN-2023-50", "CC-MAIN-2024-10", "CC-MAIN-2024-26", "CC-MAIN-2024-42", "CC-MAIN-2025-05"][row % 5]
}

/// Where the page was.
pub(crate) fn url(row: usize) -> String {
    format!("https://example.org/page/{row:012}")
}

/// Where the crawl keeps it.
pub(crate) fn file_path(row: usize) -> String {
    format!("s3://crawl/{:06}/{row:012}.warc.gz", row / 1_000)
}

/// How sure the language is, 0.65 to 1.
pub(crate) fn language_score(row: usize) -> f64 {
    0.65 + (row * 37 % 350) as f64 / 1e3
}

/// Tokens of the text.
pub(crate) fn token_count(row: usize) -> i64 {
    256 + (row * 61 % 256) as i64
}

/// SplitMix64 (Steele, Lea & Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A word: the exponential of a uniform number is spread as Zipf's law has it.
    fn word(&mut self) -> &'static str {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let rank = ((WORDS.len() + 1) as f64).powf(uniform) - 1.0;
        WORDS[(rank as usize).min(WORDS.len() - 1)]
    }
}
