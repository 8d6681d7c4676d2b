# Shortcuts; `.ci/run --list` names the checks behind most of them. Install once: `cargo install just`.

# What recipes there are.
default:
    @just --list --unsorted

# All tests: unit, integration, doc tests, and the links in the documents.
test:
    cargo test --workspace --all-features

# Formatting and warnings, as CI sees them.
lint:
    .ci/run fmt clippy

# Formats everything.
fmt:
    cargo fmt --all
    cargo fmt --manifest-path fuzz/Cargo.toml

# Builds the documentation with its links checked, private items included.
docs:
    .ci/run rustdoc

# The main job on real vectors: ingest, search, reopen, compare.
quickstart *args:
    cargo run --release -- quickstart {{args}}

# Kills the real binary `rounds` times, at random and at every named point, and compares with the model.
crash rounds="200":
    VECTIDE_CRASH_ROUNDS={{rounds}} VECTIDE_POWER_CUTS=0 .ci/run crash

# The same `rounds` times over HTTP, against an S3 server that fails on its own account; the store's other proofs first.
crash-s3 rounds="100":
    VECTIDE_CRASH_S3_ROUNDS={{rounds}} .ci/run s3

# Two writers over one shard for so many seconds, in memory and over HTTP.
fight seconds="60":
    VECTIDE_FIGHT_SECONDS={{seconds}} cargo test --workspace --all-features --test proof -- --nocapture fight

# Cuts the power of the simulated disk `cuts` times; also shows that leaving out any one sync is noticed.
power-cut cuts="500":
    VECTIDE_CRASH_ROUNDS=0 VECTIDE_POWER_CUTS={{cuts}} .ci/run crash

# Two writers fight over a shard, and 16 threads insert and delete the same keys under a flush loop, for `seconds` each.
fight seconds="60":
    VECTIDE_FIGHT_SECONDS={{seconds}} VECTIDE_BUSY_SECONDS={{seconds}} \
        cargo test --workspace --all-features --test proof -- --nocapture two_writers eight_inserters so_do_they

# Every interleaving of the publication protocols.
loom:
    .ci/run loom

# Miri where the toolchain has it, else AddressSanitizer, else valgrind.
memory:
    .ci/run memory

# One decoder (frame, manifest, segment or graph) against mutated bytes.
fuzz target="frame" seconds="600":
    VECTIDE_FUZZ_TARGETS={{target}} VECTIDE_FUZZ_SECONDS={{seconds}} .ci/run fuzz

# The graph alone on the shipped vectors: insert rate, recall, latency, bytes a row.
bench:
    cargo run --release -p vectide-graph --example glove

# Licences, bans and sources of everything that is linked.
deny:
    .ci/run deny

# Known vulnerabilities; needs the network, so it is no part of CI.
advisories:
    cargo deny --all-features check advisories

# Everything that CI runs.
ci *steps:
    .ci/run {{steps}}
