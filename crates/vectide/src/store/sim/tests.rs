use super::*;
use std::collections::BTreeSet;

fn path(p: &str) -> &Path {
    Path::new(p)
}

fn write(file: &Arc<dyn File>, bytes: &[u8], offset: u64) {
    file.write_all_at(&[IoSlice::new(bytes)], offset).expect("written");
}

fn read(fs: &SimFs, p: &str) -> Option<Vec<u8>> {
    let file = fs.open(path(p), false).ok()?;
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    Some(bytes)
}

/// Everything that 400 cuts leave of one file.
fn outcomes(fs: &SimFs, p: &str) -> BTreeSet<Option<Vec<u8>>> {
    (0..400).map(|seed| read(&fs.power_cut(seed), p)).collect()
}

#[test]
fn what_is_synced_survives_every_cut_and_what_is_not_survives_some() {
    let fs = SimFs::new();
    let file = fs.create_new(path("/a")).expect("created");
    write(&file, b"one", 0);
    let seen = outcomes(&fs, "/a");
    assert!(seen.contains(&None) && seen.contains(&Some(Vec::new())) && seen.contains(&Some(b"one".to_vec())));
    assert!(seen.contains(&Some(vec![0; 3])), "a length without its page");
    file.sync_data().expect("synced");
    assert_eq!(outcomes(&fs, "/a"), BTreeSet::from([None, Some(b"one".to_vec())]));
    fs.sync_dir(path("/")).expect("synced");
    assert_eq!(outcomes(&fs, "/a"), BTreeSet::from([Some(b"one".to_vec())]));
}

#[test]
fn pages_are_lost_independently_and_may_be_caught_between_two_writes() {
    let fs = SimFs::new();
    let file = fs.create_new(path("/a")).expect("created");
    write(&file, &[b'o'; 8192], 0);
    file.sync_data().expect("synced");
    fs.sync_dir(path("/")).expect("synced");
    write(&file, &[b'm'; 8192], 0);
    write(&file, &[b'n'; 8192], 0);
    let pairs: BTreeSet<(u8, u8)> = outcomes(&fs, "/a")
        .into_iter()
        .map(|bytes| bytes.expect("the name is durable"))
        .map(|bytes| (bytes[0], bytes[4096]))
        .collect();
    for pair in [(b'o', b'o'), (b'n', b'n'), (b'o', b'n'), (b'n', b'o'), (b'm', b'n')] {
        assert!(pairs.contains(&pair), "{pair:?} never happened");
    }
}

#[test]
fn renames_and_unlinks_may_be_undone_until_their_directory_is_synced() {
    let fs = SimFs::new();
    for (name, bytes) in [("/old", b"1"), ("/new", b"2")] {
        let file = fs.create_new(path(name)).expect("created");
        write(&file, bytes, 0);
        file.sync_data().expect("synced");
    }
    fs.sync_dir(path("/")).expect("synced");
    fs.rename(path("/new"), path("/old")).expect("renamed");
    let state = |fs: SimFs| (read(&fs, "/old"), read(&fs, "/new"));
    let seen: BTreeSet<_> = (0..100).map(|seed| state(fs.power_cut(seed))).collect();
    let (one, two) = (Some(b"1".to_vec()), Some(b"2".to_vec()));
    assert_eq!(seen, BTreeSet::from([(one, two.clone()), (two.clone(), None)]), "whole or not at all");
    fs.sync_dir(path("/")).expect("synced");
    fs.remove_file(path("/old")).expect("removed");
    assert_eq!(outcomes(&fs, "/old"), BTreeSet::from([None, two]), "an unlink may be undone");
}

#[test]
fn a_directory_that_was_never_synced_into_its_parent_takes_its_files_along() {
    let fs = SimFs::new();
    fs.skip_sync(SyncKind::Dir, "/");
    fs.create_dir_all(path("/d")).expect("created");
    let file = fs.create_new(path("/d/a")).expect("created");
    file.sync_data().expect("synced");
    fs.sync_dir(path("/d")).expect("pretended");
    assert!(fs.skipped() >= 2);
    assert!(outcomes(&fs, "/d/a").contains(&None));
    assert!((0..400).any(|seed| fs.power_cut(seed).read_dir(path("/d")).is_err()));

    let fs = SimFs::new();
    fs.create_dir_all(path("/d/e")).expect("created");
    assert!((0..400).all(|seed| fs.power_cut(seed).read_dir(path("/d/e")).is_ok()), "create_dir_all is durable");
}

#[test]
fn cutting_and_growing_a_file_is_undone_or_done() {
    let fs = SimFs::new();
    let file = fs.create_new(path("/a")).expect("created");
    write(&file, &[7; 5000], 0);
    file.sync_data().expect("synced");
    fs.sync_dir(path("/")).expect("synced");
    file.set_len(10).expect("cut");
    file.set_len(20).expect("grown");
    let want: Vec<u8> = [[7; 10], [0; 10]].concat();
    assert_eq!(read(&fs, "/a"), Some(want.clone()), "the gap reads as zeros");
    let seen = outcomes(&fs, "/a");
    assert!(seen.contains(&Some(vec![7; 5000])) && seen.contains(&Some(want)));
    file.allocate(0, 9000).expect("allocated");
    file.sync_data().expect("synced");
    assert!(outcomes(&fs, "/a").iter().all(|b| b.as_ref().is_some_and(|b| b.len() == 9000 && b[..10] == [7; 10])));
}

#[test]
fn a_full_disk_refuses_and_recovers_once_files_go() {
    let fs = SimFs::new();
    fs.limit_bytes(Some(3 * 4096));
    let file = fs.create_new(path("/a")).expect("created");
    file.allocate(0, 8192).expect("room for two pages");
    write(&file, &[1; 8192], 0);
    let full = file.write_all_at(&[IoSlice::new(&[2; 8192])], 8192).expect_err("one page too many");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().expect("a length"), 3 * 4096, "what fitted was written");
    assert_eq!(fs.create_new(path("/b")).expect_err("no room").kind(), ErrorKind::StorageFull);
    write(&file, &[3; 8192], 0);
    fs.remove_file(path("/a")).expect("removed");
    assert_eq!(fs.used_bytes(), 3 * 4096, "still open");
    drop(file);
    assert_eq!(fs.used_bytes(), 0);
    fs.create_new(path("/b")).expect("room again");
}

#[test]
fn locks_end_with_their_guard_with_a_kill_and_with_a_cut() {
    let fs = SimFs::new();
    let guard = fs.lock(path("/LOCK"), "17").expect("no error").expect("free");
    assert_eq!(fs.lock(path("/LOCK"), "18").expect("no error").expect_err("held"), "17");
    fs.kill().lock(path("/LOCK"), "18").expect("no error").expect("free after a kill");
    fs.power_cut(1).lock(path("/LOCK"), "18").expect("no error").expect("free after a cut");
    drop(guard);
    fs.lock(path("/LOCK"), "18").expect("no error").expect("free");
}

#[test]
fn a_kill_keeps_the_unsynced_and_a_later_cut_may_still_lose_it() {
    let fs = SimFs::new();
    let file = fs.create_new(path("/a")).expect("created");
    write(&file, b"one", 0);
    let killed = fs.kill();
    assert_eq!(read(&killed, "/a"), Some(b"one".to_vec()));
    assert!(outcomes(&killed, "/a").contains(&None));
    fs.flip(path("/a"), 1, 0xff);
    assert_eq!(read(&fs, "/a"), Some(vec![b'o', b'n' ^ 0xff, b'e']));
    assert_eq!(read(&killed, "/a"), Some(b"one".to_vec()), "disks are independent");
}

#[test]
fn the_same_seed_leaves_the_same_disk() {
    let fs = SimFs::new();
    for n in 0..20 {
        let file = fs.create_new(path(&format!("/{n}"))).expect("created");
        write(&file, &[n; 9000], 0);
    }
    let look = |fs: SimFs| (0..20).map(|n| read(&fs, &format!("/{n}"))).collect::<Vec<_>>();
    assert_eq!(look(fs.power_cut(6)), look(fs.power_cut(6)));
    assert_ne!(look(fs.power_cut(6)), look(fs.power_cut(7)));
}
