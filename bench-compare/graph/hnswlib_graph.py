"""hnswlib's graph, built and searched: hnswlib_graph.py BASE QUERIES TRUTH DIM METRIC M EFC EFS K BATCH.

Prints one object as `vectide bench graph` does for each of its settings. One thread; rates are of its processor time.
"""

import json
import sys
import time

import hnswlib
import numpy as np


def main():
    base, queries, truth, dim, metric, m, efc, efs, k, batch = sys.argv[1:]
    dim, k, batch = int(dim), int(k), int(batch)
    rows = np.fromfile(base, dtype="<f4").reshape(-1, dim)
    queries = np.fromfile(queries, dtype="<f4").reshape(-1, dim)
    truth = np.fromfile(truth, dtype="<u4").reshape(-1, k)
    index = hnswlib.Index(space={"cosine": "cosine", "l2": "l2", "dot": "ip"}[metric], dim=dim)
    index.init_index(max_elements=len(rows), M=int(m), ef_construction=int(efc), random_seed=100)
    index.set_num_threads(1)
    seconds, started = [], time.perf_counter()
    for quarter in range(4):
        cpu = time.thread_time()
        first, end = quarter * len(rows) // 4, (quarter + 1) * len(rows) // 4
        for at in range(first, end, batch):
            to = min(at + batch, end)
            index.add_items(rows[at:to], np.arange(at, to), num_threads=1)
        seconds.append(time.thread_time() - cpu)
    wall = time.perf_counter() - started
    points = []
    for ef in map(int, efs.split(",")):
        index.set_ef(max(ef, k))
        cpu, found, times = 0.0, 0, []
        # One call for all queries: no interpreter between them. Latencies come from calls of one.
        before = time.thread_time()
        labels, _ = index.knn_query(queries, k=k, num_threads=1)
        cpu = time.thread_time() - before
        found = sum(len(np.intersect1d(a, b)) for a, b in zip(labels, truth))
        for query in queries[:200]:
            one = time.perf_counter()
            index.knn_query(query, k=k, num_threads=1)
            times.append((time.perf_counter() - one) * 1e6)
        points.append(
            {
                "ef_search": ef,
                "recall": found / (len(queries) * k),
                "searches_per_s": len(queries) / cpu,
                "mean_us": cpu / len(queries) * 1e6,
                "p50_us": float(np.percentile(times, 50)),
                "p99_us": float(np.percentile(times, 99)),
            }
        )
    print(
        json.dumps(
            {
                "engine": "hnswlib",
                "index_threads": 1,
                "batch": batch,
                "inserts_per_s": len(rows) / wall,
                "inserts_per_cpu_s": len(rows) / sum(seconds),
                "last_quarter_inserts_per_cpu_s": (len(rows) - 3 * len(rows) // 4) / seconds[3],
                "bytes_per_row": {"graph": (index.index_file_size() / len(rows)) - 4 * dim},
                "search": points,
            }
        )
    )


if __name__ == "__main__":
    main()
