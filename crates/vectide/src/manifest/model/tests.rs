use super::*;
use proptest::prelude::*;

fn shard() -> ShardManifest {
    let part = |name: &str| PartMeta { name: name.to_owned(), len: 10, crc32c: 1 };
    let segment = |n: u64, first_row: u64, rows: u32| SegmentMeta {
        id: format!("1-{n}"),
        first_row: RowId(first_row),
        rows,
        first_seq: Seq(1 + first_row),
        last_seq: Seq(first_row + u64::from(rows)),
        first_publication: PubNo(n),
        last_publication: PubNo(n),
        parts: vec![part(paths::ROWS), part("graph-0.arrow")],
    };
    ShardManifest {
        version: 5,
        epoch: Epoch(2),
        replay_from: LogPosition { epoch: Epoch(1), at: 4096 },
        replay_seq: Seq(301),
        next_row: RowId(300),
        next_publication: PubNo(3),
        next_segment: 3,
        closed: vec![EpochEnd { epoch: Epoch(1), at: 9000, last_seq: Seq(300) }],
        segments: vec![segment(1, 0, 100), segment(2, 100, 200)],
        ..ShardManifest::empty()
    }
}

fn refusal(edit: impl FnOnce(&mut ShardManifest)) -> String {
    let mut shard = shard();
    edit(&mut shard);
    let error = decode::<ShardManifest>("dir/5.json", &encode(&shard, "w-1").expect("encoded")).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("dir/5.json"), "{error}");
    error.message().to_owned()
}

#[test]
fn documents_survive_their_bytes_to_the_last_number() {
    let mut shard = shard();
    (shard.next_row, shard.replay_from.at) = (RowId(u64::MAX), u64::MAX - 1);
    let decoded: Decoded<ShardManifest> = decode("p", &encode(&shard, "w-1").expect("encoded")).expect("decoded");
    assert_eq!((decoded.commit.as_str(), decoded.document), ("w-1", shard));
    let table = TableEntry {
        name: "docs".to_owned(),
        id: "0123456789abcdef0123456789abcdef".to_owned(),
        schema: "{\"quoted\": \"ü\"}".to_owned(),
        options: serde_json::json!({"max": u64::MAX, "nested": [1, null]}),
    };
    let catalog = Catalog { tables: vec![table], ..Catalog::empty() };
    let decoded: Decoded<Catalog> = decode("p", &encode(&catalog, "").expect("encoded")).expect("decoded");
    assert_eq!(decoded.document, catalog);
}

#[test]
fn the_bytes_are_those_of_the_format() {
    let bytes = encode(&Catalog::empty(), "w-1").expect("encoded");
    let text = std::str::from_utf8(&bytes).expect("text");
    assert_eq!(text, r#"{"crc32c":"72be285a","commit":"w-1","format":1,"version":1,"tables":[]}"#);
    serde_json::from_str::<serde_json::Value>(text).expect("any JSON reader takes it");
}

#[test]
fn a_newer_format_asks_for_an_upgrade_and_unknown_members_are_passed_over() {
    let newer = encode(&Catalog { format: 2, ..Catalog::empty() }, "w").expect("encoded");
    let error = decode::<Catalog>("p", &newer).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("written by a newer Vectide"), "{error}");
    let covered = br#""format":1,"version":1,"tables":[],"later":{"x":1}}"#;
    let sum = format!("{PREFIX}{:08x}\",", crc32c::crc32c(covered));
    let bytes = [sum.as_bytes(), covered].concat();
    assert_eq!(decode::<Catalog>("p", &bytes).expect("decoded").document, Catalog::empty());
}

#[test]
fn manifests_that_contradict_themselves_are_refused() {
    assert!(refusal(|s| s.segments[1].first_row = RowId(99)).contains("overlap"));
    assert!(refusal(|s| s.segments[1].rows = 201).contains("end behind 300"));
    assert!(refusal(|s| s.segments[1].first_row = RowId(u64::MAX)).contains("end behind"));
    assert!(refusal(|s| s.segments[1].id = "1-1".to_owned()).contains("listed twice"));
    assert!(refusal(|s| s.segments[1].id = "../x".to_owned()).contains("not <epoch>-<n>"));
    assert!(refusal(|s| s.segments[1].id = "3-2".to_owned()).contains("numbers segments"));
    assert!(refusal(|s| s.next_segment = 2).contains("numbers segments"));
    assert!(refusal(|s| s.segments[0].first_seq = Seq(101)).contains("seqs run"));
    assert!(refusal(|s| s.next_publication = PubNo(2)).contains("publications run"));
    assert!(refusal(|s| s.segments[0].parts.clear()).contains("no parts"));
    assert!(refusal(|s| s.segments[0].parts[0].len = 0).contains("is empty"));
    assert!(refusal(|s| s.segments[0].parts[0].name = "../rows.arrow".to_owned()).contains("proper name"));
    assert!(refusal(|s| s.segments[0].parts[1].name = paths::ROWS.to_owned()).contains("proper name"));
    assert!(refusal(|s| s.replay_from.epoch = Epoch(3)).contains("replay starts"));
    assert!(refusal(|s| s.closed[0].epoch = Epoch(3)).contains("is closed"));
    assert!(refusal(|s| s.closed.push(s.closed[0])).contains("out of order"));
    assert!(refusal(|s| s.version = 0).contains("version 0"));
    assert!(refusal(|s| s.format = 0).contains("format 0"));
}

#[test]
fn a_segment_without_rows_may_stand_anywhere() {
    let mut shard = shard();
    (shard.segments[1].rows, shard.segments[1].first_row) = (0, RowId(50));
    shard.validate("p").expect("it only carries end marks");
}

#[test]
fn catalogs_refuse_names_that_lead_out_and_tables_listed_twice() {
    let table = |name: &str, id: &str| TableEntry {
        name: name.to_owned(),
        id: id.repeat(32),
        schema: String::new(),
        options: serde_json::Value::Null,
    };
    for tables in [
        vec![table("../../x", "a")],
        vec![table("x", "g")],
        vec![table("x", "a"), table("x", "b")],
        vec![table("x", "a"), table("y", "a")],
    ] {
        let catalog = Catalog { tables, ..Catalog::empty() };
        assert_eq!(catalog.validate("p").expect_err("refused").kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_torn_file_says_where() {
    let bytes = encode(&shard(), "w-1").expect("encoded");
    for len in [0, 5, 21, 22, 100, bytes.len() - 1] {
        let error = decode::<ShardManifest>("dir/5.json", &bytes[..len]).expect_err("torn");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("dir/5.json is damaged at byte"), "{len}: {error}");
    }
    let mut zeroed = bytes.to_vec();
    zeroed[100..].fill(0);
    let error = decode::<ShardManifest>("dir/5.json", &zeroed).expect_err("zeroed");
    assert!(error.message().contains("at byte 100"), "{error}");
}

proptest! {
    #[test]
    fn any_flipped_bit_is_damage(at in 0usize..10_000, bit in 0u8..8) {
        let mut bytes = encode(&shard(), "w-1").expect("encoded").to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let decoded = decode::<ShardManifest>("p", &bytes);
        prop_assert!(decoded.is_err() || decoded.is_ok_and(|d| d.document == shard() && at < COVERED_FROM));
    }

    #[test]
    fn no_bytes_make_the_decoders_panic(
        cut in 0usize..2_000,
        edits in proptest::collection::vec((0usize..2_000, any::<u8>()), 0..8),
        resum in any::<bool>(),
    ) {
        let mut bytes = encode(&shard(), "w-1").expect("encoded").to_vec();
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if cut % 3 == 0 {
            bytes.truncate(cut);
        }
        // With the right checksum over wrong bytes, what lies behind it is reached too.
        if resum && bytes.len() >= COVERED_FROM {
            let sum = format!("{PREFIX}{:08x}\",", crc32c::crc32c(&bytes[COVERED_FROM..]));
            bytes[..COVERED_FROM].copy_from_slice(sum.as_bytes());
        }
        let _ = decode::<ShardManifest>("p", &bytes);
        let _ = decode::<Catalog>("p", &bytes);
    }
}
