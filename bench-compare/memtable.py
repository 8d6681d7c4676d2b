"""`bench-compare/run memtable`: Vectide's memtable beside RocksDB's concurrent vector memtable.

RocksDB's fillrandom shape on both: 16-byte random keys (the same ones), 100-byte values, no log, nothing flushed, as many
rows a commit as a `WriteBatch` holds. Engines take turns within each setting, every run is a process of its own, and
medians are quoted. A run fills two memtables, one after the other: the first in memory that nobody touched, the next in
what the engine kept of the first. RocksDB keeps no key index in its vector memtable, so Vectide's table without a key is what is
compared; the keyed one stands beside it.
"""

import shutil
import tempfile

import rivals

FIGURES = ["ops_per_s", "ops_per_cpu_s", "next_ops_per_s", "next_ops_per_cpu_s", "bytes_per_row"]


def vectide(binary, rows, threads, batch, visibility, keyed):
    command = [binary, "bench", "memtable", "--rows", rows, "--threads", threads, "--batch", batch]
    command += ["--visibility", visibility, "--repeat", 1, *(["--keyed"] if keyed else []), "--json"]
    report = rivals.run_json(command)
    return report["machine"], next(result for result in report["results"] if result["keyed"] == keyed)


def rocksdb(binary, rows, threads, batch, visibility):
    folder = tempfile.mkdtemp(dir=rivals.CACHE, prefix="memtable-")
    try:
        return rivals.run_json([binary, f"{folder}/db", rows, threads, batch, visibility])
    finally:
        shutil.rmtree(folder)


def main():
    parser = rivals.parser(__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows that all threads together write")
    parser.add_argument("--threads", type=rivals.numbers, default=[1, 2, 4, 8])
    parser.add_argument("--batch", type=rivals.numbers, default=[1, 100, 1000])
    parser.add_argument("--visibility", default="ordered,unordered")
    parser.add_argument("--no-keyed", action="store_true", help="leave the keyed table out")
    arguments = parser.parse_args()
    rows, repeat = (200_000, 1) if arguments.quick else (arguments.rows, arguments.repeat)
    ours, theirs = rivals.build_vectide(), rivals.build_rival("rival-memtable")
    settings = [
        (batch, threads, visibility)
        for batch in arguments.batch
        for threads in arguments.threads
        for visibility in arguments.visibility.split(",")
    ]
    report = {
        "bench": "memtable",
        "machine": None,
        "dataset": {"name": "fillrandom", "rows": rows, "key_bytes": 16, "value_bytes": 100},
        "params": {"repeat": repeat, "load_at_start": rivals.load()},
        "results": [],
        "ratios": {},
    }
    runs = {}
    for _ in range(repeat):
        for setting in settings:
            batch, threads, visibility = setting
            for keyed in [False] if arguments.no_keyed else [False, True]:
                report["machine"], result = vectide(ours, rows, threads, batch, visibility, keyed)
                runs.setdefault((*setting, "vectide keyed" if keyed else "vectide"), []).append(result)
            runs.setdefault((*setting, "rocksdb"), []).append(rocksdb(theirs, rows, threads, batch, visibility))
    report["params"]["load_at_end"] = rivals.load()
    merged = {key: rivals.median_of(results, FIGURES) for key, results in runs.items()}
    table = []
    for (batch, threads, visibility, engine), result in merged.items():
        one = merged.get((batch, 1, visibility, engine))
        result["scaling"] = result["ops_per_s"] / one["ops_per_s"] if one else None
        result["next_scaling"] = result["next_ops_per_s"] / one["next_ops_per_s"] if one else None
        report["results"].append(result)
        name = f"batch{batch}.threads{threads}.{visibility}"
        rival = merged[(batch, threads, visibility, "rocksdb")]
        row = [str(batch), str(threads), visibility, engine, f"{result['bytes_per_row']:.1f}"]
        for which in ["", "next_"]:
            scaling, ratio = result[f"{which}scaling"], result[f"{which}ops_per_s"] / rival[f"{which}ops_per_s"]
            row += [f"{result[f'{which}ops_per_s']:,.0f}", "-" if scaling is None else f"{scaling:.2f}"]
            row += ["-" if engine == "rocksdb" else f"{ratio:.2f}"]
            prefix = f"memtable.{'keyed.' if 'keyed' in engine else ''}{which.replace('_', '.')}"
            if engine != "rocksdb":
                report["ratios"][f"{prefix}{name}.rocksdb"] = ratio
            if engine == "vectide" and batch == 100 and threads > 1 and scaling:
                report["ratios"][f"{prefix}scaling.threads{threads}.{visibility}"] = scaling
        table.append(row)
    heads = ["batch", "threads", "visibility", "engine", "B/row", "ops/s", "scaling", "over RocksDB", "next ops/s",
             "scaling", "over RocksDB"]
    rivals.show(report, heads, table, arguments.json)


if __name__ == "__main__":
    main()
