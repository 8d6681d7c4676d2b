//! A filter over key hashes: tells most absent keys from 32 bytes, so that a look-up seldom touches the key list.
//!
//! The split block Bloom filter of Parquet (Putze, Sanders and Singler's blocked Bloom filter, one bit in each of a
//! block's eight words), sized to the real number of keys. The flush builds it, a segment looks into the mapped bytes.
//! Invariant: a hash that was added is found.

/// A block: eight words of 32 bits, little-endian.
const BLOCK_BYTES: usize = 32;
/// About one absent key in 300 passes.
const BITS_PER_KEY: u64 = 12;

/// Parquet's constants: odd numbers that pick a bit of each word.
const SALT: [u32; 8] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// The filter of these hashes, whole blocks; at least one.
pub(super) fn build(hashes: impl ExactSizeIterator<Item = u64>) -> Vec<u8> {
    let bits = hashes.len() as u64 * BITS_PER_KEY;
    let blocks = bits.div_ceil(BLOCK_BYTES as u64 * 8).max(1);
    let mut filter = vec![0u8; blocks as usize * BLOCK_BYTES];
    for hash in hashes {
        let block = block_of(hash, blocks as usize) * BLOCK_BYTES;
        for (word, bit) in bits_of(hash).enumerate() {
            filter[block + 4 * word + bit / 8] |= 1 << (bit % 8);
        }
    }
    filter
}

/// Whether `hash` may have been added. `filter` is as [`build`] made it, or damaged: then the answer may be wrong.
pub(super) fn may_contain(filter: &[u8], hash: u64) -> bool {
    let block = block_of(hash, filter.len() / BLOCK_BYTES) * BLOCK_BYTES;
    bits_of(hash)
        .enumerate()
        .all(|(word, bit)| filter.get(block + 4 * word + bit / 8).is_none_or(|byte| byte >> (bit % 8) & 1 == 1))
}

/// Whether a filter for `keys` keys has this length.
pub(super) fn is_length_for(len: usize, keys: u64) -> bool {
    let blocks = (keys * BITS_PER_KEY).div_ceil(BLOCK_BYTES as u64 * 8).max(1);
    len as u64 == blocks * BLOCK_BYTES as u64
}

fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

fn bits_of(hash: u64) -> impl Iterator<Item = usize> {
    SALT.iter().map(move |salt| ((hash as u32).wrapping_mul(*salt) >> 27) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows_conformance::Random;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        for n in [0, 1, 100, 20_000] {
            let mut random = Random(n);
            let hashes: Vec<u64> = (0..n).map(|_| random.next()).collect();
            let filter = build(hashes.iter().copied());
            assert!(is_length_for(filter.len(), n));
            assert!(hashes.iter().all(|&hash| may_contain(&filter, hash)));
            let passed = (0..10_000).filter(|_| may_contain(&filter, random.next())).count();
            assert!(passed < 100, "{passed} of 10,000 absent keys passed at n = {n}");
        }
    }
}
