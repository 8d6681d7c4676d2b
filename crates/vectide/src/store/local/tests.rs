use super::*;
use crate::store::sim::{SimFs, SyncKind};
use crate::store::{DiskFs, conformance};
use crate::{ErrorKind as Kind, store};

fn sim_store(fs: &SimFs) -> LocalStore {
    LocalStore::open(fs.shared(), "/db").expect("opened").inline()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_on_the_disk_keeps_every_promise() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = LocalStore::open(DiskFs::shared(), dir.path().join("a/b")).expect("opened");
    conformance::run(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_on_a_simulated_disk_keeps_every_promise() {
    let fs = SimFs::new();
    conformance::run(Arc::new(LocalStore::open(fs.shared(), "/db").expect("opened"))).await;
    conformance::run(Arc::new(LocalStore::open(fs.shared(), "/inline").expect("opened").inline())).await;
}

/// What `write_each_way` finds there.
async fn prepare(store: &dyn Store) {
    for path in ["dir2/removed", "dir2/stays"] {
        store.put(path, Bytes::from_static(b"x")).await.expect("put");
    }
}

/// One call of each kind that writes, each on a path of its own; afterwards the paths and bytes that must survive.
async fn write_each_way(store: &dyn Store) -> Vec<(&'static str, Option<Bytes>)> {
    let bytes: Bytes = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
    store.put("dir1/put", bytes.clone()).await.expect("put");
    store.put_if_absent("dir1/absent", bytes.clone()).await.expect("put if absent");
    let mut writer = store.create("dir1/stream").await.expect("create");
    writer.write(bytes.clone()).await.expect("write");
    writer.finish().await.expect("finish");
    store.delete("dir2/removed").await.expect("delete");
    let there = Some(bytes);
    vec![("dir1/put", there.clone()), ("dir1/absent", there.clone()), ("dir1/stream", there), ("dir2/removed", None)]
}

/// The first path that a disk does not hold as expected.
async fn first_lost(fs: &SimFs, expected: &[(&'static str, Option<Bytes>)]) -> Option<&'static str> {
    let Ok(store) = LocalStore::open_existing(fs.shared(), "/db") else { return Some("/db") };
    let store = store.inline();
    for (path, bytes) in expected {
        if store.get(path).await.ok() != *bytes {
            return Some(path);
        }
    }
    None
}

#[tokio::test]
async fn what_a_call_reports_as_done_survives_every_power_cut() {
    let fs = SimFs::new();
    let store = sim_store(&fs);
    prepare(&store).await;
    let expected = write_each_way(&store).await;
    for seed in 0..200 {
        assert_eq!(first_lost(&fs.power_cut(seed), &expected).await, None, "seed {seed}");
    }
}

#[tokio::test]
async fn without_any_one_of_the_syncs_some_power_cut_loses_something() {
    use SyncKind::{Dir, File};
    let files = [(File, ".put."), (File, ".absent."), (File, ".stream.")];
    let dirs = [(Dir, "/db/dir1"), (Dir, "/db/dir2"), (Dir, "/db")];
    for (kind, pattern) in files.into_iter().chain(dirs) {
        let fs = SimFs::new();
        let store = sim_store(&fs);
        prepare(&store).await;
        fs.skip_sync(kind, pattern);
        let expected = write_each_way(&store).await;
        assert!(fs.skipped() > 0, "{kind:?} {pattern} is never called");
        let mut lost = false;
        for seed in 0..200 {
            lost |= first_lost(&fs.power_cut(seed), &expected).await.is_some();
        }
        assert!(lost, "{kind:?} {pattern} could be left out: the checker sees nothing");
    }
}

/// Cuts right behind each single call, when nothing later could have synced what it forgot.
#[tokio::test]
async fn each_call_syncs_its_own_directory_before_it_answers() {
    let bytes = Bytes::from_static(b"bytes");
    for call in ["put", "absent", "exists", "stream", "delete"] {
        let fs = SimFs::new();
        let store = sim_store(&fs);
        store.put("d/other", bytes.clone()).await.expect("put");
        let expected = match call {
            "put" => store.put("d/x", bytes.clone()).await.map(|()| Some(&bytes)),
            "absent" => store.put_if_absent("d/x", bytes.clone()).await.map(|_| Some(&bytes)),
            "exists" => {
                // Another process has linked the object and not yet synced the directory.
                let file = fs.create_new(Path::new("/db/d/x")).expect("created");
                file.write_all_at(&[IoSlice::new(&bytes)], 0).expect("written");
                file.sync_data().expect("synced");
                let outcome = store.put_if_absent("d/x", Bytes::from_static(b"later")).await;
                outcome.map(|o| (o == PutOutcome::Exists).then_some(&bytes))
            }
            "stream" => {
                let mut writer = store.create("d/x").await.expect("create");
                writer.write(bytes.clone()).await.expect("write");
                writer.finish().await.map(|_| Some(&bytes))
            }
            _ => {
                store.put("d/x", bytes.clone()).await.expect("put");
                store.delete("d/x").await.map(|()| None)
            }
        };
        let expected = [("d/x", expected.expect(call).cloned())];
        for seed in 0..200 {
            assert_eq!(first_lost(&fs.power_cut(seed), &expected).await, None, "{call}, seed {seed}");
        }
    }
}

#[tokio::test]
async fn an_object_is_never_seen_in_part_whenever_the_power_fails() {
    let bytes = Bytes::from(vec![7; 20_000]);
    let fs = SimFs::new();
    let store = sim_store(&fs);
    store.put("d/x", bytes.clone()).await.expect("put");
    // Everything from here on is unsynced as far as the directory goes.
    fs.skip_sync(SyncKind::Dir, "/db/d");
    store.put_if_absent("d/y", bytes.clone()).await.expect("put");
    store.put("d/x", Bytes::from(vec![8; 30_000])).await.expect("put");
    for seed in 0..200 {
        let left = sim_store(&fs.power_cut(seed));
        let x = left.get("d/x").await.expect("an old name stays");
        assert!(x == bytes || x == vec![8; 30_000], "seed {seed}");
        if let Ok(y) = left.get("d/y").await {
            assert_eq!(y, bytes, "seed {seed}");
        }
    }
}

#[tokio::test]
async fn what_a_cut_leaves_of_unfinished_writes_is_not_listed_and_swept() {
    let fs = SimFs::new();
    let store = sim_store(&fs);
    store.put("d/x", Bytes::from_static(b"x")).await.expect("put");
    let mut writer = store.create("d/y").await.expect("create");
    writer.write(Bytes::from(vec![0; GATHER])).await.expect("write");
    fs.sync_dir(Path::new("/db/d")).expect("synced");
    let left = sim_store(&fs.kill());
    let dir = left.local().expect("a directory");
    assert_eq!(left.list("").await.expect("list").len(), 1);
    assert_eq!(dir.fs.read_dir(Path::new("/db/d")).expect("entries").len(), 2);
    assert_eq!(sweep_temporaries(&dir).expect("swept"), 1);
    assert_eq!(dir.fs.read_dir(Path::new("/db/d")).expect("entries").len(), 1);
    drop(writer);
    assert_eq!(fs.read_dir(Path::new("/db/d")).expect("entries").len(), 1, "a dropped writer cleans up itself");
}

#[tokio::test]
async fn a_sweep_makes_names_durable_that_a_killed_process_left_unsynced() {
    let fs = SimFs::new();
    let store = sim_store(&fs);
    store.put("d/x", Bytes::from_static(b"x")).await.expect("put");
    let file = fs.create_new(Path::new("/db/d/y")).expect("created");
    file.write_all_at(&[IoSlice::new(b"y")], 0).expect("written");
    file.sync_data().expect("synced");
    let killed = fs.kill();
    sweep_temporaries(&sim_store(&killed).local().expect("a directory")).expect("swept");
    for seed in 0..50 {
        assert_eq!(sim_store(&killed.power_cut(seed)).get("d/y").await.expect("durable"), "y");
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_leaves_nothing_behind_and_recovers() {
    let fs = SimFs::new();
    let store = sim_store(&fs);
    store.put("d/x", Bytes::from(vec![1; 40_000])).await.expect("put");
    fs.limit_bytes(Some(64 << 10));
    let big = Bytes::from(vec![2; 40_000]);
    for error in [
        store.put("d/y", big.clone()).await.expect_err("full"),
        store.put_if_absent("d/y", big.clone()).await.expect_err("full"),
    ] {
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.message().contains("d/y"), "{error}");
    }
    assert_eq!(fs.used_bytes(), 40 << 10, "temporary files are gone");
    assert_eq!(store.get("d/x").await.expect("reads go on").len(), 40_000);
    store.delete("d/x").await.expect("deletes go on");
    store.put("d/y", big).await.expect("room again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_and_deleters_of_one_folder_do_not_trip_over_its_removal() {
    let fs = SimFs::new();
    let store = LocalStore::open(fs.shared(), "/db").expect("opened");
    let tasks = (0..8).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let path = format!("deep/down/{n}");
            for _ in 0..50 {
                store.put(&path, Bytes::from_static(b"x")).await.expect("put");
                store.delete(&path).await.expect("delete");
            }
            store.put(&path, Bytes::from_static(b"x")).await.expect("put");
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    assert_eq!(store.list("").await.expect("list").len(), 8);
    for n in 0..8 {
        store.delete(&format!("deep/down/{n}")).await.expect("delete");
    }
    assert_eq!(fs.read_dir(Path::new("/db")).expect("entries"), [], "empty folders go");
}

#[test]
fn a_directory_that_is_not_there_is_not_created_for_a_reader() {
    let fs = SimFs::new();
    let error = LocalStore::open_existing(fs.shared(), "/no").expect_err("absent");
    assert_eq!(error.kind(), Kind::NotFound);
    let _: &dyn store::Fs = &fs;
}
