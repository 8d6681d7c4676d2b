use super::*;
use crate::manifest::{Catalog, EpochEnd, ShardManifest};
use crate::store::ObjectBackend;
use object_store::memory::InMemory;

const DIR: &str = "tables/x/0/manifest/";

fn memory() -> Arc<dyn Store> {
    Arc::new(ObjectBackend::new(Arc::new(InMemory::new())))
}

fn log(store: &Arc<dyn Store>, writer: u64) -> Versioned<ShardManifest> {
    Versioned::new(store.clone(), DIR, writer)
}

/// An edit that can be counted afterwards.
fn add_segment(shard: &ShardManifest) -> Result<ShardManifest> {
    let mut next = shard.clone();
    next.next_segment += 1;
    Ok(next)
}

#[tokio::test]
async fn a_log_begins_once_and_is_read_back() {
    let store = memory();
    let first = log(&store, 1);
    assert!(first.load_latest().await.expect("loaded").is_none());
    assert_eq!(first.commit(Epoch(0), add_segment).await.expect_err("nothing to edit").kind(), ErrorKind::NotFound);
    first.create(ShardManifest::empty()).await.expect("created");
    let other = log(&store, 2);
    assert_eq!(other.create(ShardManifest::empty()).await.expect_err("there is one").kind(), ErrorKind::Conflict);
    let committed = first.commit(Epoch(0), add_segment).await.expect("committed");
    assert_eq!((committed.version, committed.next_segment), (2, 2));
    assert_eq!(other.load_latest().await.expect("loaded").as_deref(), Some(&*committed));
    assert_eq!(other.load(1).await.expect("loaded").next_segment, 1);
    assert_eq!(other.load(3).await.expect_err("absent").kind(), ErrorKind::Expired);
    assert_eq!(other.versions().await.expect("listed"), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_committers_lose_no_edit() {
    let store = memory();
    log(&store, 0).create(ShardManifest::empty()).await.expect("created");
    let committers = (1..=8).map(|writer| {
        let log = log(&store, writer);
        tokio::spawn(async move {
            for _ in 0..10 {
                log.commit(Epoch(0), add_segment).await.expect("committed");
            }
        })
    });
    for committer in committers.collect::<Vec<_>>() {
        committer.await.expect("no panic");
    }
    let newest = log(&store, 9).load_latest().await.expect("loaded").expect("there");
    assert_eq!((newest.version, newest.next_segment), (81, 81));
}

#[tokio::test]
async fn a_writer_that_was_taken_over_is_fenced_and_told_by_whom() {
    let store = memory();
    let old = log(&store, 1);
    old.create(ShardManifest::empty()).await.expect("created");
    let mine = old.raise_epoch().await.expect("raised").epoch;
    old.commit(mine, add_segment).await.expect("committed");
    let theirs = log(&store, 2).raise_epoch().await.expect("raised").epoch;
    assert_eq!(theirs, mine.plus(1));
    let error = old.commit(mine, add_segment).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.message().contains("epoch 2 took over"), "{error}");
    let newest = log(&store, 3).load_latest().await.expect("loaded").expect("there");
    assert_eq!((newest.epoch, newest.next_segment), (theirs, 2), "nothing of the fenced commit is there");
    assert_eq!(old.commit(Epoch(9), add_segment).await.expect_err("never raised").kind(), ErrorKind::Internal);
}

#[tokio::test]
async fn a_stalled_writer_meets_the_takeover_even_if_what_followed_was_collected() {
    let store = memory();
    let old = log(&store, 1);
    old.create(ShardManifest::empty()).await.expect("created");
    let mine = old.raise_epoch().await.expect("raised").epoch;
    let new = log(&store, 2);
    let raised = new.raise_epoch().await.expect("raised");
    for _ in 0..5 {
        new.commit(raised.epoch, add_segment).await.expect("committed");
    }
    assert_eq!(new.trim(1, &[]).await.expect("trimmed"), 4);
    assert_eq!(new.versions().await.expect("listed"), [1, 2, 3, 8]);
    assert_eq!(old.commit(mine, add_segment).await.expect_err("fenced").kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn a_trim_keeps_the_newest_the_pinned_and_what_raised_an_epoch_with_the_one_before() {
    let store = memory();
    let mut owner = log(&store, 1);
    owner.create(ShardManifest::empty()).await.expect("created");
    for writer in 2..5 {
        owner = log(&store, writer);
        let raised = owner.raise_epoch().await.expect("raised");
        for _ in 0..4 {
            owner.commit(raised.epoch, add_segment).await.expect("committed");
        }
    }
    // Version 1 and the raises at 2, 7 and 12; the newest is 16.
    assert_eq!(owner.trim(16, &[]).await.expect("trimmed"), 0);
    assert_eq!(owner.trim(3, &[4]).await.expect("trimmed"), 6);
    let left = [1, 2, 4, 6, 7, 11, 12, 14, 15, 16];
    assert_eq!(owner.versions().await.expect("listed"), left);
    assert_eq!(owner.trim(3, &[4]).await.expect("trimmed"), 0);
    let other = log(&store, 9);
    assert_eq!(other.trim(3, &[4]).await.expect("trimmed"), 0, "the same is found from what is left");
    owner.commit(Epoch(3), add_segment).await.expect("committed");
    assert_eq!(owner.trim(3, &[]).await.expect("trimmed"), 2);
    assert_eq!(other.versions().await.expect("listed"), [1, 2, 6, 7, 11, 12, 15, 16, 17]);
}

#[tokio::test]
async fn a_trim_of_a_catalog_leaves_its_newest_hundred() {
    let store = memory();
    let catalog = Versioned::<Catalog>::new(store.clone(), paths::CATALOG_DIR, 1);
    catalog.create(Catalog::empty()).await.expect("created");
    for _ in 0..KEPT + 4 {
        catalog.commit(Epoch(0), |c| Ok(c.clone())).await.expect("committed");
    }
    assert_eq!(catalog.trim(1, &[]).await.expect("trimmed"), 5);
    assert_eq!(catalog.versions().await.expect("listed")[0], 6);
}

#[tokio::test]
async fn a_damaged_newest_version_is_an_error_and_never_an_older_one_in_its_place() {
    let store = memory();
    let log1 = log(&store, 1);
    log1.create(ShardManifest::empty()).await.expect("created");
    let path = paths::version(DIR, 2);
    let whole = encode(&ShardManifest { version: 2, ..ShardManifest::empty() }, "x").expect("encoded");
    let other_number = encode(&ShardManifest { version: 3, ..ShardManifest::empty() }, "x").expect("encoded");
    for damaged in [whole.slice(..whole.len() - 9), whole.slice(..0), other_number] {
        store.put(&path, damaged).await.expect("put");
        let error = log(&store, 2).load_latest().await.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(&path), "{error}");
    }
}

#[tokio::test]
async fn an_edit_that_contradicts_itself_or_takes_the_epoch_writes_nothing() {
    let store = memory();
    let log = log(&store, 1);
    log.create(ShardManifest::empty()).await.expect("created");
    let broken = |shard: &ShardManifest| {
        let mut next = shard.clone();
        next.closed.push(EpochEnd { epoch: Epoch(7), at: 0, last_seq: crate::ids::Seq(0) });
        Ok(next)
    };
    assert_eq!(log.commit(Epoch(0), broken).await.expect_err("refused").kind(), ErrorKind::Internal);
    let takeover = |shard: &ShardManifest| Ok(ShardManifest { epoch: Epoch(1), ..shard.clone() });
    assert_eq!(log.commit(Epoch(0), takeover).await.expect_err("refused").kind(), ErrorKind::Internal);
    let refused = |_: &ShardManifest| Err(Error::conflict("no"));
    assert_eq!(log.commit(Epoch(0), refused).await.expect_err("refused").kind(), ErrorKind::Conflict);
    assert_eq!(log.versions().await.expect("listed"), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalog_is_edited_by_anybody() {
    let store = memory();
    let catalog = |writer| Versioned::<Catalog>::new(store.clone(), paths::CATALOG_DIR, writer);
    catalog(0).create(Catalog::empty()).await.expect("created");
    let creators = (1..=8u64).map(|n| {
        let catalog = catalog(n);
        tokio::spawn(async move {
            let entry = crate::manifest::TableEntry {
                name: format!("t{n}"),
                id: format!("{n:032x}"),
                schema: String::new(),
                options: serde_json::Value::Null,
            };
            let add = |c: &Catalog| {
                let mut next = c.clone();
                next.tables.push(entry.clone());
                Ok(next)
            };
            catalog.commit(Epoch(0), add).await.expect("committed");
        })
    });
    for creator in creators.collect::<Vec<_>>() {
        creator.await.expect("no panic");
    }
    let newest = catalog(9).load_latest().await.expect("loaded").expect("there");
    assert_eq!((newest.version, newest.tables.len()), (9, 8));
    assert!(newest.table("t3").is_some() && newest.table("t9").is_none());
}
