use super::*;
use crate::ErrorKind;
use crate::store::sim::SimFs;
use std::sync::atomic::AtomicUsize;

const DIR: &str = "/cache";

fn cache(fs: &SimFs, limit_bytes: u64) -> MapCache {
    MapCache::open(fs.shared(), Path::new(DIR), limit_bytes).expect("opened")
}

fn files(fs: &SimFs, folder: &str) -> usize {
    let entries = fs.read_dir(&Path::new(DIR).join(folder)).expect("a folder");
    entries.iter().filter(|e| e.name != LOCK).count()
}

/// Maps an object of `len` bytes that all are `byte`, counting the fetches.
async fn map(cache: &MapCache, path: &str, len: u64, byte: u8, fetches: &AtomicUsize) -> Result<Bytes> {
    let fetch = |file: Arc<dyn File>| -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            fetches.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            cache.write(&file, 0, vec![byte; len as usize].into()).await
        })
    };
    cache.map(path, len, fetch).await
}

#[tokio::test]
async fn the_longest_unused_file_goes_and_one_in_use_stays() {
    let fs = SimFs::new();
    let (cache, fetches) = (cache(&fs, 3000), AtomicUsize::new(0));
    let held = map(&cache, "a", 1000, 1, &fetches).await.expect("mapped");
    for path in ["b", "c", "b"] {
        map(&cache, path, 1000, 2, &fetches).await.expect("mapped");
    }
    assert_eq!(fetches.load(Ordering::Relaxed), 3);
    map(&cache, "d", 1000, 4, &fetches).await.expect("mapped in the place of c");
    map(&cache, "b", 1000, 2, &fetches).await.expect("still there");
    assert_eq!(fetches.load(Ordering::Relaxed), 4);
    map(&cache, "c", 1000, 3, &fetches).await.expect("fetched again");
    assert_eq!(fetches.load(Ordering::Relaxed), 5);
    assert_eq!(files(&fs, "0000"), 3);
    assert_eq!(held, vec![1; 1000]);
}

#[tokio::test]
async fn what_does_not_fit_beside_files_in_use_is_refused_and_fits_once_they_are_let_go() {
    let fs = SimFs::new();
    let (cache, fetches) = (cache(&fs, 1500), AtomicUsize::new(0));
    let held = map(&cache, "a", 1000, 1, &fetches).await.expect("mapped");
    let slice = held.slice(10..20);
    drop(held);
    let error = map(&cache, "b", 1000, 2, &fetches).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("raise cache_bytes"), "{error}");
    drop(slice);
    map(&cache, "b", 1000, 2, &fetches).await.expect("room now");
    assert_eq!(files(&fs, "0000"), 1);
    let error = map(&cache, "c", 1501, 2, &fetches).await.expect_err("larger than the cache");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_one_fetch() {
    let fs = SimFs::new();
    let (cache, fetches) = (Arc::new(cache(&fs, 1 << 20)), Arc::new(AtomicUsize::new(0)));
    let callers = (0..16).map(|_| {
        let (cache, fetches) = (cache.clone(), fetches.clone());
        tokio::spawn(async move { map(&cache, "a", 5000, 9, &fetches).await.expect("mapped") })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert_eq!(caller.await.expect("no panic"), vec![9; 5000]);
    }
    assert_eq!(fetches.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_failed_fetch_gives_its_room_back_and_is_made_again() {
    let fs = SimFs::new();
    let (cache, fetches) = (cache(&fs, 1000), AtomicUsize::new(0));
    let fail = |_| -> BoxFuture<'_, Result<()>> { Box::pin(async { Err(Error::unavailable("cut off")) }) };
    assert_eq!(cache.map("a", 1000, fail).await.expect_err("failed").message(), "cut off");
    assert_eq!(files(&fs, "0000"), 0);
    map(&cache, "b", 1000, 1, &fetches).await.expect("the room is free");
    assert_eq!(map(&cache, "a", 1000, 2, &fetches).await.expect("made again"), vec![2; 1000]);
}

#[tokio::test]
async fn each_process_has_a_folder_and_takes_over_that_of_a_dead_one() {
    let fs = SimFs::new();
    let fetches = AtomicUsize::new(0);
    let first = cache(&fs, 1 << 20);
    let bytes = map(&first, "a", 1000, 1, &fetches).await.expect("mapped");
    let second = cache(&fs, 1 << 20);
    map(&second, "a", 1000, 1, &fetches).await.expect("mapped");
    assert_eq!((files(&fs, "0000"), files(&fs, "0001")), (1, 1));
    let after_a_kill = fs.kill();
    let third = cache(&after_a_kill, 1 << 20);
    assert_eq!(third.folder, Path::new(DIR).join("0000"));
    assert_eq!((files(&after_a_kill, "0000"), files(&after_a_kill, "0001")), (0, 1));
    drop(first);
    assert_eq!(files(&fs, "0000"), 0);
    assert_eq!(bytes, vec![1; 1000], "bytes outlive the cache");
}
