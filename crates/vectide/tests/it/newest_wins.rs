//! Newest wins before the top k is taken, and k is filled.

use crate::support::*;
use vectide::{ErrorKind, keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_upserted_twice_is_one_row_in_a_memtable_and_across_a_flush() {
    let (_db, table) = table().await;
    for round in 0..2 {
        for state in ["old", "new"] {
            table.upsert(batch(&[(1, state, [1.0; DIM])])).await.expect("writes");
        }
        let hits = table.search(&[1.0; DIM]).k(10).await.expect("searches");
        assert_eq!((ids(&hits), states(&hits)), (vec![1], vec!["new".to_owned()]), "round {round}");
        table.flush().await.expect("flushes");
        let hits = table.search(&[1.0; DIM]).k(10).await.expect("searches");
        assert_eq!(states(&hits), ["new"], "after flush, round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_copy_in_a_segment_never_takes_a_place() {
    let (_db, table) = table().await;
    table.upsert(batch(&[(1, "A", [0.0; DIM])])).await.expect("writes");
    table.flush().await.expect("flushes");
    table.upsert(batch(&[(1, "A", [100.0; DIM]), (2, "B", [0.1; DIM]), (3, "C", [0.2; DIM])])).await.expect("writes");
    for _ in 0..2 {
        let hits = table.search(&[0.0; DIM]).k(2).await.expect("searches");
        assert_eq!(ids(&hits), [2, 3]);
        table.flush().await.expect("flushes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_are_counted_and_rows_are_not_doubled() {
    let (_db, table) = table().await;
    let first = table.upsert(numbered(0..500, "a")).await.expect("writes");
    assert_eq!((first.inserted, first.updated), (500, 0));
    let mut updated = 0;
    for state in ["b", "c"] {
        updated += table.upsert(numbered(0..128, state)).await.expect("writes").updated;
        table.flush().await.expect("flushes");
    }
    assert_eq!(updated, 256);
    assert_eq!(table.count().await.expect("counts"), 500);
    assert_eq!(all_rows(&table).await.len(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_table_and_an_emptied_one_give_an_empty_list() {
    let (_db, table) = table().await;
    assert_eq!(table.search(&[0.0; DIM]).await.expect("searches").num_rows(), 0);
    table.upsert(numbered(0..2_000, "a")).await.expect("writes");
    table.delete((0..2_000).collect::<Vec<i64>>()).await.expect("deletes");
    for _ in 0..2 {
        let hits = table.search(&[0.0; DIM]).await.expect("searches");
        assert_eq!(hits.num_rows(), 0);
        assert_eq!(hits.num_columns(), 3, "id, state, _distance");
        assert_eq!(table.count().await.expect("counts"), 0);
        table.flush().await.expect("flushes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_live_rows_come_back_although_the_nearest_hundred_are_deleted() {
    let (_db, table) = table().await;
    table.upsert(numbered(0..1_000, "a")).await.expect("writes");
    table.delete((0..100).collect::<Vec<i64>>()).await.expect("deletes");
    for _ in 0..2 {
        let hits = table.search(&[0.0; DIM]).k(10).ef_search(10).await.expect("searches");
        assert_eq!(ids(&hits), (100..110).collect::<Vec<i64>>());
        table.flush().await.expect("flushes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn insert_refuses_an_existing_key_by_name_and_upsert_replaces_it() {
    let (_db, table) = table().await;
    table.insert(batch(&[(7, "a", [1.0; DIM])])).await.expect("writes");
    for _ in 0..2 {
        let error = table.insert(batch(&[(8, "b", [1.0; DIM]), (7, "b", [1.0; DIM])])).await.expect_err("exists");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.message().contains("key 7"), "{error}");
        assert_eq!(all_rows(&table).await, [(7, "a".to_owned())], "nothing of the batch was written");
        table.flush().await.expect("flushes");
    }
    let ack = table.upsert(batch(&[(7, "b", [1.0; DIM])])).await.expect("writes");
    assert_eq!((ack.inserted, ack.updated), (0, 1));
    table.delete(keys![7]).await.expect("deletes");
    assert_eq!(table.insert(batch(&[(7, "c", [1.0; DIM])])).await.expect("free again").inserted, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_twice_in_one_upsert_leaves_the_later_row() {
    let (_db, table) = table().await;
    table.upsert(batch(&[(1, "first", [1.0; DIM]), (1, "second", [2.0; DIM])])).await.expect("writes");
    assert_eq!(all_rows(&table).await, [(1, "second".to_owned())]);
    assert_eq!(table.count().await.expect("counts"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_tasks_that_upsert_the_same_new_key_leave_one_row() {
    let (_db, table) = table_with(tiny()).await;
    for key in 0..50 {
        let writes = (0..8).map(|task| {
            let (table, state) = (table.clone(), format!("{task}"));
            tokio::spawn(async move { table.upsert(batch(&[(key, &state, [key as f32; DIM])])).await })
        });
        let acks = futures::future::join_all(writes).await;
        let acks: Vec<_> = acks.into_iter().map(|a| a.expect("joins").expect("writes")).collect();
        assert_eq!(acks.iter().map(|a| a.inserted).sum::<u64>(), 1, "one of them was first");
        assert_eq!(table.count().await.expect("counts"), key as u64 + 1);
    }
    assert_eq!(all_rows(&table).await.len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_reads_the_same_whatever_happens_after_it() {
    let (_db, table) = table().await;
    table.upsert(numbered(0..300, "a")).await.expect("writes");
    let before = table.snapshot();
    table.upsert(numbered(100..400, "b")).await.expect("writes");
    table.delete((0..50).collect::<Vec<i64>>()).await.expect("deletes");
    for _ in 0..2 {
        assert_eq!(before.count().await.expect("counts"), 300);
        let rows = before.scan().await.expect("scans").collect_all().expect("reads");
        assert_eq!(ids(&rows), (0..300).collect::<Vec<i64>>());
        assert!(states(&rows).iter().all(|s| s == "a"));
        assert_eq!(states(&before.get(keys![10, 150, 350]).await.expect("gets")), ["a", "a"]);
        assert_eq!(ids(&before.search(&[0.0; DIM]).k(3).await.expect("searches")), [0, 1, 2]);
        assert_eq!(ids(&table.search(&[0.0; DIM]).k(3).await.expect("searches")), [50, 51, 52]);
        assert_eq!(table.count().await.expect("counts"), 350);
        table.flush().await.expect("flushes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upsert_if_loses_no_update() {
    let (_db, table) = table().await;
    let first = table.upsert(batch(&[(1, "0", [1.0; DIM]), (2, "x", [1.0; DIM])])).await.expect("writes");
    let second = table.upsert_if(batch(&[(1, "1", [1.0; DIM])]), first.token).await.expect("still current");
    let error = table.upsert_if(batch(&[(1, "lost", [1.0; DIM])]), first.token).await.expect_err("outdated");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    table.flush().await.expect("flushes");
    let snapshot = table.snapshot().token().expect("a writer's");
    table.upsert_if(batch(&[(1, "2", [1.0; DIM])]), snapshot).await.expect("current, in a segment");
    assert!(table.upsert_if(batch(&[(1, "lost", [1.0; DIM])]), second.token).await.is_err());
    let error = table.upsert_if(batch(&[(3, "new", [1.0; DIM])]), snapshot).await.expect_err("absent");
    assert!(error.message().contains("key 3"), "{error}");
    assert_eq!(all_rows(&table).await, [(1, "2".to_owned()), (2, "x".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn count_is_the_number_of_live_keys_all_through_flushes() {
    let (_db, table) = table_with(tiny()).await;
    table.upsert(numbered(0..400, "a")).await.expect("writes");
    let poll = tokio::spawn({
        let table = table.clone();
        async move {
            for _ in 0..2_000 {
                assert_eq!(table.count().await.expect("counts"), 400);
                tokio::task::yield_now().await;
            }
        }
    });
    for round in 0..20 {
        table.upsert(numbered((0..400).skip(round).step_by(7), "b")).await.expect("writes");
        table.flush().await.expect("flushes");
    }
    poll.await.expect("never another count");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_found_by_key_scan_and_vector_right_after_its_write_returns() {
    let (_db, table) = table_with(tiny()).await;
    for id in 0..300 {
        table.upsert(numbered([id], "a")).await.expect("writes");
        assert_eq!(ids(&table.get(keys![id]).await.expect("gets")), [id]);
        assert_eq!(ids(&table.search(&[id as f32; DIM]).k(1).await.expect("searches")), [id]);
    }
    assert_eq!(all_rows(&table).await.len(), 300);
}
