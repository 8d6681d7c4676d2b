"""`bench-compare/run shard-writer`: Vectide's shard beside Lance's ShardWriter, with the vectors indexed in memory.

The same rows (Lance's shapes, real vectors), batches, `m` and `ef_construction` on both, all cores, one memtable that
holds every row. A rate counts until every row is in the graph and the log has nothing queued; recall@10 is then measured
at `ef_search` 64 with held-out queries. Engines take turns within each setting, every run is a process and a folder of
its own, and medians are quoted.

`buffered`: acknowledged before the log is durable; `durable`: after. Vectide's log is synced (`fdatasync`) in both,
Lance's on a local disk in neither.
"""

import os
import pathlib
import shutil
import sys
import tempfile

import rivals

M, EF_CONSTRUCTION = 16, 100
FIGURES = [
    "indexed_rows_per_s", "acked_rows_per_s", "cpu_us_per_row", "put_p50_us", "put_p99_us", "queue_final_pct",
    "queue_max_pct", "drain_s", "close_s", "recall_at_10",
]
# Rows that a single-row run writes, as a share of the others: Lance takes its time.
SINGLE_SHARE = 0.4


def vectide(binary, arguments, rows, setting):
    shape, batch, durability = setting
    command = [binary, "bench", "shard-writer", "--schema-shape", shape.replace("_", "-"), "--batch", batch]
    command += ["--durability", durability, "--rows", rows, "--data", arguments.data, "--dim", arguments.dim]
    command += ["--m", M, "--ef-construction", EF_CONSTRUCTION, "--index-threads", os.cpu_count(), "--json"]
    folder = tempfile.mkdtemp(dir=arguments.dir, prefix="shard-writer-")
    try:
        report = rivals.run_json([*command, "--dir", folder])
    finally:
        shutil.rmtree(folder)
    return report["machine"], report["results"][0]


def lance(binary, arguments, paths, setting, outstanding):
    shape, batch, durability = setting
    folder = tempfile.mkdtemp(dir=arguments.dir, prefix="shard-writer-")
    command = [binary, f"{folder}/table", paths["base"], paths["queries"], paths["truth"], arguments.dim, shape, batch]
    try:
        return rivals.run_json([*command, M, EF_CONSTRUCTION, durability, outstanding, "on"])
    finally:
        shutil.rmtree(folder)


def main():
    parser = rivals.parser(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a run; two fifths of them at batch 1")
    parser.add_argument("--batch", type=rivals.numbers, default=[1, 10, 100, 1000])
    parser.add_argument("--shapes", default="vector_only,fineweb")
    parser.add_argument("--durability", default="buffered,durable")
    parser.add_argument("--data", type=pathlib.Path, default=rivals.DATA / "packages-1024.parquet")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--dir", type=pathlib.Path, default=rivals.CACHE, help="folder on the disk to write to")
    arguments = parser.parse_args()
    if not arguments.data.exists():
        sys.exit(f"{arguments.data} is not there: name an Arrow or Parquet file with a column `vec` by --data")
    full, repeat = (2_000, 1) if arguments.quick else (arguments.rows, arguments.repeat)
    ours, theirs = rivals.build_vectide(), rivals.build_rival("rival-shard-writer")
    exported = {}
    report = {
        "bench": "shard-writer",
        "machine": None,
        "dataset": {"name": f"packages{arguments.dim}", "file": arguments.data.name, "dim": arguments.dim, "rows": full},
        "params": {
            "m": M, "ef_construction": EF_CONSTRUCTION, "repeat": repeat, "threads": os.cpu_count(),
            "load_at_start": rivals.load(),
        },
        "results": [],
        "ratios": {},
    }
    settings = [
        (shape, batch, durability)
        for shape in arguments.shapes.split(",")
        for batch in arguments.batch
        for durability in arguments.durability.split(",")
    ]
    runs = {}
    for _ in range(repeat):
        for setting in settings:
            rows = max(1_024, int(full * SINGLE_SHARE)) if setting[1] == 1 else full
            if rows not in exported:
                exported[rows], _ = rivals.export("shard-writer", arguments.data, arguments.dim, rows, 500)
            report["machine"], result = vectide(ours, arguments, rows, setting)
            runs.setdefault((*setting, "vectide"), []).append({**result, "rows": rows})
            outstanding = result["outstanding_batches"]
            result = lance(theirs, arguments, exported[rows], setting, outstanding)
            runs.setdefault((*setting, "lance"), []).append({**result, "rows": rows})
    report["params"]["load_at_end"] = rivals.load()
    merged = {key: rivals.median_of(results, FIGURES) for key, results in runs.items()}
    table = []
    for (shape, batch, durability, engine), result in merged.items():
        report["results"].append(result)
        rate, rival = result["indexed_rows_per_s"], merged[(shape, batch, durability, "lance")]["indexed_rows_per_s"]
        unsynced = merged.get((shape, batch, "buffered", "lance"))
        synced = {"vectide": "yes", "lance": "no"}[engine]
        table.append([
            shape, str(batch), durability, engine, synced, f"{result['acked_rows_per_s']:,.0f}", f"{rate:,.0f}",
            f"{result['recall_at_10']:.4f}", f"{result['put_p50_us']:,.0f}", f"{result['put_p99_us']:,.0f}",
            f"{result['queue_max_pct']:.2f}", f"{result['drain_s']:.3f}", f"{result['close_s']:.2f}",
            "-" if engine == "lance" else f"{rate / rival:.2f}",
        ])
        if engine == "lance":
            continue
        name = f"shard_writer.{shape}.batch{batch}"
        # Our durable writes also stand beside Lance's faster ones, which wait for no log.
        if durability == "buffered":
            report["ratios"][f"{name}.lance"] = rate / rival
        else:
            report["ratios"][f"{name}.{durability}.lance_{durability}"] = rate / rival
            if unsynced:
                report["ratios"][f"{name}.{durability}.lance"] = rate / unsynced["indexed_rows_per_s"]
    heads = ["shape", "batch", "acknowledged", "engine", "fsync", "acked/s", "indexed/s", "recall@10", "put p50 us",
             "p99 us", "queue max %", "drain s", "close s", "over Lance"]
    rivals.show(report, heads, table, arguments.json)


if __name__ == "__main__":
    main()
