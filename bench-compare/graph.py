"""`bench-compare/run graph`: Vectide's live graph beside hnswlib, usearch and Lance's MemWAL graph.

Every engine gets the same rows in the same order, the same m and ef_construction, one thread, and the same queries, of
which the exact answers are computed here. Builds take turns (A, B, C, A, B, C, ...) and medians are quoted. All run with
the allocator on huge pages and pre-touched memory (GLIBC_TUNABLES, MALLOC_PERTURB_), as Vectide's own code arena is.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = pathlib.Path(os.environ["VECTIDE_BENCH_CACHE"])
WIDTHS = "10,12,16,24,32,48,64,96,128,192,256,384"
K, M, EF_CONSTRUCTION = 10, 16, 100
# Recall at which search rates are compared, and how many rows a quick run takes.
SETS = {
    "packages1024": ("packages-1024.parquet", 1024, None, 0.98),
    "packages384": ("packages-1024.parquet", 384, None, 0.98),
    "glove100": ("glove-100d-100k.arrow", 100, None, 0.95),
}
EQUAL_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_PERTURB_": "85"}


def read_vectors(path, dim):
    if path.suffix == ".parquet":
        column = pyarrow.parquet.read_table(path, columns=["vec"]).column("vec").combine_chunks()
    else:
        with pa.memory_map(str(path)) as source:
            column = pyarrow.ipc.open_file(source).read_all().column("vec").combine_chunks()
    values = np.asarray(column.flatten()).astype("<f4").reshape(len(column), -1)
    return np.ascontiguousarray(values[:, :dim])


def exact(base, queries):
    """The K nearest rows by cosine, ids by query."""
    unit = base / np.maximum(np.linalg.norm(base, axis=1, keepdims=True), 1e-30)
    return np.argsort(-(queries @ unit.T), axis=1, kind="stable")[:, :K].astype("<u4")


def export(name, data, rows):
    file, dim, _, _ = SETS[name]
    all_rows = read_vectors(data / file, dim)
    base, queries = all_rows[:-1000], all_rows[-1000:]
    base = base[:rows] if rows else base
    paths = {}
    for part, array in {"base": base, "queries": queries, "truth": exact(base, queries)}.items():
        paths[part] = CACHE / f"{name}-{len(base)}-{part}.raw"
        array.tofile(paths[part])
    return paths, len(base)


def run(command, **env):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **EQUAL_PAGES, **env})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def vectide(data, dim, rows, ef_construction, batch):
    binary = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "vectide"
    command = [binary, "bench", "graph", "--data", data, "--dim", str(dim), "--metric", "cosine", "-k", str(K)]
    command += ["--m", str(M), "--ef-construction", str(ef_construction), "--codes", "auto", "--batch", str(batch)]
    command += ["--ef-search", WIDTHS, "--repeat", "1", "--rows", str(rows), "--json"]
    return run(command)["results"][0]


def rival(engine, paths, dim, batch):
    arguments = [paths["base"], paths["queries"], paths["truth"], dim, "cosine", M, EF_CONSTRUCTION, WIDTHS, K, batch]
    arguments = [str(argument) for argument in arguments]
    if engine == "hnswlib":
        return run([sys.executable, str(HERE / "hnswlib_graph.py"), *arguments])
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "bench-compare"
    return run([str(target / "release" / "rival-graphs"), engine, *arguments])


def median_of(results):
    """One result of several: medians of rates, the first one's recall (builds are alike)."""
    merged = dict(results[0])
    for figure in ["inserts_per_s", "inserts_per_cpu_s", "last_quarter_inserts_per_cpu_s"]:
        merged[figure] = statistics.median(result[figure] for result in results)
    merged["search"] = [
        {**points[0], "searches_per_s": statistics.median(p["searches_per_s"] for p in points)}
        for points in zip(*(result["search"] for result in results))
    ]
    return merged


def recall_at(result, width):
    return next(p["recall"] for p in result["search"] if p["ef_search"] == width)


def rate_at(result, recall):
    """Searches a second at a recall, interpolated between beam widths on a logarithmic scale."""
    points = sorted((p["recall"], math.log(p["searches_per_s"])) for p in result["search"])
    if recall < points[0][0]:
        return math.exp(points[0][1])
    for (low, low_rate), (high, high_rate) in zip(points, points[1:]):
        if low <= recall <= high:
            share = 0.0 if high == low else (recall - low) / (high - low)
            return math.exp(low_rate + share * (high_rate - low_rate))
    return None


def insert_rate_at_equal_recall(ours_by_width, theirs, figure):
    """Our insert rate where our recall@64 is the rival's, interpolated over ef_construction; ours at the rival's
    ef_construction where that is as good or better."""
    wanted = recall_at(theirs, 64)
    points = sorted((recall_at(r, 64), r[figure]) for r in ours_by_width.values())
    ours = ours_by_width[EF_CONSTRUCTION]
    if recall_at(ours, 64) >= wanted:
        return ours[figure]
    for (low, low_rate), (high, high_rate) in zip(points, points[1:]):
        if low <= wanted <= high:
            share = 0.0 if high == low else (wanted - low) / (high - low)
            return low_rate + share * (high_rate - low_rate)
    return None


def build_binaries():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "bench-compare"
    subprocess.run(["cargo", "build", "--release", "--manifest-path", ROOT / "Cargo.toml"], check=True)
    env = {**os.environ, "CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-C target-cpu=native"}
    subprocess.run(["cargo", "build", "--release", "--manifest-path", HERE / "Cargo.toml"], check=True, env=env)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # From source: its build asks for this machine's own instructions.
    subprocess.run([*pip, "setuptools", "wheel", "pybind11", "numpy>=2,<3"], check=True)
    subprocess.run([*pip, "--no-binary", "hnswlib", "--no-build-isolation", "hnswlib==0.8.0"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 rows, one repeat")
    parser.add_argument("--json", type=pathlib.Path, help="write the report into this file")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data", help="folder of data sets")
    parser.add_argument("--sets", default=",".join(SETS), help="which data sets")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, help="take only so many base rows")
    arguments = parser.parse_args()
    build_binaries()
    rows = arguments.rows or (10_000 if arguments.quick else None)
    repeat = 1 if arguments.quick else arguments.repeat
    report = {"bench": "graph", "machine": None, "dataset": {}, "params": {"m": M, "ef_construction": EF_CONSTRUCTION,
              "k": K, "repeat": repeat, "batch": 1000}, "results": [], "ratios": {}}
    lines = ["| set | engine | inserts/s | last quarter | recall@64 | recall@128 | searches/s at equal recall |", "|---|---|---|---|---|---|---|"]
    for name in arguments.sets.split(","):
        file, dim, _, recall = SETS[name]
        paths, count = export(name, arguments.data, rows)
        report["dataset"][name] = {"file": file, "dim": dim, "rows": count, "queries": 1000}
        runs = {}
        for _ in range(repeat):
            for width in (EF_CONSTRUCTION, 130):
                runs.setdefault(("vectide", width), []).append(vectide(arguments.data / file, dim, count, width, 1000))
            for engine in ("hnswlib", "usearch", "lance"):
                runs.setdefault((engine, EF_CONSTRUCTION), []).append(rival(engine, paths, dim, 1000))
        merged = {key: median_of(results) for key, results in runs.items()}
        ours_by_width = {width: result for (engine, width), result in merged.items() if engine == "vectide"}
        ours = ours_by_width[EF_CONSTRUCTION]
        for (engine, width), result in merged.items():
            report["results"].append({**result, "engine": engine, "set": name, "ef_construction": width})
            rate = rate_at(result, recall)
            lines.append(
                f"| {name} | {engine} (ef_construction {width}) | {result['inserts_per_cpu_s']:.0f} "
                f"| {result['last_quarter_inserts_per_cpu_s']:.0f} | {recall_at(result, 64):.4f} "
                f"| {recall_at(result, 128):.4f} | {'-' if rate is None else f'{rate:.0f} at {recall}'} |"
            )
            if engine == "vectide":
                continue
            for ratio, figure in {"insert": "inserts_per_cpu_s", "insert_last_quarter": "last_quarter_inserts_per_cpu_s"}.items():
                ours_rate = insert_rate_at_equal_recall(ours_by_width, result, figure)
                if ours_rate is not None:
                    report["ratios"][f"graph.{name}.{ratio}_at_equal_recall.{engine}"] = round(ours_rate / result[figure], 3)
                report["ratios"][f"graph.{name}.{ratio}.{engine}"] = round(ours[figure] / result[figure], 3)
            ours_search, theirs_search = rate_at(ours, recall), rate_at(result, recall)
            if ours_search and theirs_search:
                report["ratios"][f"graph.{name}.search_at_recall{recall}.{engine}"] = round(ours_search / theirs_search, 3)
    report["machine"] = machine()
    print("\n".join(lines))
    for name, ratio in report["ratios"].items():
        print(f"{name} = {ratio}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def machine():
    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"cpu": cpu[0] if cpu else "unknown", "cores": os.cpu_count()}


if __name__ == "__main__":
    main()
