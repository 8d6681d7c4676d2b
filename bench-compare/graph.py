"""`bench-compare/run graph`: Vectide's live graph beside hnswlib, usearch and Lance's MemWAL graph.

Every engine gets the same rows in the same order, the same m and ef_construction, one thread, and the same queries, of
which the exact answers are computed here. Builds take turns (A, B, C, A, B, C, ...) and medians are quoted. All run with
the allocator on huge pages and pre-touched memory (GLIBC_TUNABLES, MALLOC_PERTURB_), as Vectide's own code arena is.
"""

import math
import pathlib
import statistics
import sys

import rivals

WIDTHS = "10,12,16,24,32,48,64,96,128,192,256,384"
K, M, EF_CONSTRUCTION = rivals.K, 16, 100
# Recall at which search rates are compared, and how many rows a quick run takes.
SETS = {
    "packages1024": ("packages-1024.parquet", 1024, None, 0.98),
    "packages384": ("packages-1024.parquet", 384, None, 0.98),
    "glove100": ("glove-100d-100k.arrow", 100, None, 0.95),
}
EQUAL_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_PERTURB_": "85"}


def vectide(binary, data, dim, rows, ef_construction, batch):
    command = [binary, "bench", "graph", "--data", data, "--dim", str(dim), "--metric", "cosine", "-k", str(K)]
    command += ["--m", str(M), "--ef-construction", str(ef_construction), "--codes", "auto", "--batch", str(batch)]
    command += ["--ef-search", WIDTHS, "--repeat", "1", "--rows", str(rows), "--json"]
    report = rivals.run_json(command, **EQUAL_PAGES)
    return report["machine"], report["results"][0]


def rival(binary, engine, paths, dim, batch):
    arguments = [paths["base"], paths["queries"], paths["truth"], dim, "cosine", M, EF_CONSTRUCTION, WIDTHS, K, batch]
    command = [binary, engine]
    if engine == "hnswlib":
        command = [sys.executable, rivals.HERE / "graph" / "hnswlib_graph.py"]
    return rivals.run_json([*command, *arguments], **EQUAL_PAGES)


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


def build_hnswlib():
    """From source: its build asks for this machine's own instructions."""
    rivals.pip_install("setuptools", "wheel", "pybind11", "numpy>=2,<3")
    rivals.pip_install("--no-binary", "hnswlib", "--no-build-isolation", "hnswlib==0.8.0")


def main():
    parser = rivals.parser(__doc__)
    parser.add_argument("--data", type=pathlib.Path, default=rivals.DATA, help="folder of data sets")
    parser.add_argument("--sets", default=",".join(SETS), help="which data sets")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, help="take only so many base rows")
    arguments = parser.parse_args()
    missing = [SETS[name][0] for name in arguments.sets.split(",") if not (arguments.data / SETS[name][0]).exists()]
    if missing:
        sys.exit(f"{', '.join(missing)} is not in {arguments.data}: name another folder by --data, or fewer --sets")
    ours, theirs = rivals.build_vectide(), rivals.build_rival("rival-graphs")
    build_hnswlib()
    rows = arguments.rows or (10_000 if arguments.quick else None)
    repeat = 1 if arguments.quick else arguments.repeat
    report = {"bench": "graph", "machine": None, "dataset": {}, "params": {"m": M, "ef_construction": EF_CONSTRUCTION,
              "k": K, "repeat": repeat, "batch": 1000}, "results": [], "ratios": {}}
    table = []
    for name in arguments.sets.split(","):
        file, dim, _, recall = SETS[name]
        paths, count = rivals.export(name, arguments.data / file, dim, rows)
        report["dataset"][name] = {"file": file, "dim": dim, "rows": count, "queries": 1000}
        runs = {}
        for _ in range(repeat):
            for width in (EF_CONSTRUCTION, 130):
                report["machine"], result = vectide(ours, arguments.data / file, dim, count, width, 1000)
                runs.setdefault(("vectide", width), []).append(result)
            for engine in ("hnswlib", "usearch", "lance"):
                runs.setdefault((engine, EF_CONSTRUCTION), []).append(rival(theirs, engine, paths, dim, 1000))
        merged = {key: median_of(results) for key, results in runs.items()}
        ours_by_width = {width: result for (engine, width), result in merged.items() if engine == "vectide"}
        best = ours_by_width[EF_CONSTRUCTION]
        for (engine, width), result in merged.items():
            report["results"].append({**result, "engine": engine, "set": name, "ef_construction": width})
            rate = rate_at(result, recall)
            table.append([
                name, f"{engine} (ef_construction {width})", f"{result['inserts_per_cpu_s']:.0f}",
                f"{result['last_quarter_inserts_per_cpu_s']:.0f}", f"{recall_at(result, 64):.4f}",
                f"{recall_at(result, 128):.4f}", "-" if rate is None else f"{rate:.0f} at {recall}",
            ])
            if engine == "vectide":
                continue
            for ratio, figure in {"insert": "inserts_per_cpu_s", "insert_last_quarter": "last_quarter_inserts_per_cpu_s"}.items():
                ours_rate = insert_rate_at_equal_recall(ours_by_width, result, figure)
                if ours_rate is not None:
                    report["ratios"][f"graph.{name}.{ratio}_at_equal_recall.{engine}"] = ours_rate / result[figure]
                report["ratios"][f"graph.{name}.{ratio}.{engine}"] = best[figure] / result[figure]
            ours_search, theirs_search = rate_at(best, recall), rate_at(result, recall)
            if ours_search and theirs_search:
                report["ratios"][f"graph.{name}.search_at_recall{recall}.{engine}"] = ours_search / theirs_search
    heads = ["set", "engine", "inserts/s", "last quarter", "recall@64", "recall@128", "searches/s at equal recall"]
    rivals.show(report, heads, table, arguments.json)


if __name__ == "__main__":
    main()
