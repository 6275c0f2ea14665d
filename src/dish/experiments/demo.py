"""`dish demo`: DISH-K and DISH on scikit-learn's handwritten digits, compared with l2 distance and LSH."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import machine, metrics
from dish.baselines.lsh import LSH
from dish.experiments import bench
from dish.index.hamming import HammingIndex
from dish.io.atomic import write_atomically
from dish.kernel.dish_k import DISHK
from dish.posterior.dish import DISH

BITS = (16, 32, 64)


@dataclass
class DemoRow:
    """A row of the table. Rankings by l2 distance have no precision within radius 2."""

    method: str
    bytes: int  # per vector
    map: float
    precision: float | None


@dataclass
class DemoResult:
    """The table, the 64-bit model, and one search for every digit."""

    rows: list[DemoRow]
    hasher: DISH
    images: NDArray[Any]  # database images (n, 8, 8)
    labels: NDArray[Any]
    query_images: NDArray[Any]
    query_labels: NDArray[Any]
    neighbours: NDArray[np.int64]  # (queries, 10) database rows
    distances: NDArray[np.int32]


def run(n_queries: int = 300, seed: int = 0) -> DemoResult:
    """Train and score on scikit-learn's digits: 1,797 real images of 8 × 8 pixels."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    query, base = order[:n_queries], order[n_queries:]
    l2 = metrics.l2_mean_average_precision(X[query], y[query], X[base], y[base])
    rows = [DemoRow("l2 distance", 4 * X.shape[1], l2, None)]
    for r in BITS:
        paper = DISHK(n_bits=r, n_anchors=500, random_state=seed)
        hasher = DISH(n_bits=r, n_anchors=500, random_state=seed)
        for name, method in {"LSH": LSH(n_bits=r, random_state=seed), "DISH-K": paper, "DISH": hasher}.items():
            method.fit(X[base], y[base])
            report = metrics.evaluate(method.transform(X[query]), y[query], method.transform(X[base]), y[base])
            rows.append(DemoRow(f"{name}, {r} bits", r // 8, report.map, report.precision_within_2))
    shown = query[np.unique(y[query], return_index=True)[1]]  # one query of every digit
    index = HammingIndex(n_bits=hasher.n_bits)
    index.add(hasher.transform(X[base]))
    distances, neighbours = index.search(hasher.transform(X[shown]), k=10)
    images, queries = X[base].reshape(-1, 8, 8), X[shown].reshape(-1, 8, 8)
    return DemoResult(rows, hasher, images, y[base], queries, y[shown], neighbours, distances)


def write_table(result: DemoResult, path: Path) -> None:
    """Write the table as JSON, with the machine, versions and commit."""
    rows = [asdict(row) for row in result.rows]
    content = {"what": "scikit-learn digits (real), 300 queries, 1,497 database rows", "seed": 0, "rows": rows}
    bench.write_json(path, content | {"environment": machine.environment()})


def write_page(result: DemoResult, path: Path) -> None:
    """Write a self-contained HTML page: the table, and every query with its nearest neighbours."""
    searches = []
    for i, image in enumerate(result.query_images):
        hits = "".join(
            _figure(
                result.images[j],
                f"{result.labels[j]} · {d}",
                "right" if result.labels[j] == result.query_labels[i] else "wrong",
                f"digit {result.labels[j]} at Hamming distance {d}",
            )
            for j, d in zip(result.neighbours[i], result.distances[i], strict=True)
        )
        label = result.query_labels[i]
        searches.append(
            f"<section>{_figure(image, f'query {label}', 'query', f'query, digit {label}')}{hits}</section>"
        )
    lines = "".join(
        f"<tr><td>{html.escape(row.method)}</td><td>{row.bytes}</td><td>{row.map:.3f}</td>"
        f"<td>{'–' if row.precision is None else f'{row.precision:.3f}'}</td></tr>"
        for row in result.rows
    )
    write_atomically(path, _PAGE.format(table=lines, searches="".join(searches)).encode())


def _figure(image: NDArray[Any], caption: str, kind: str, alt: str) -> str:
    data = base64.b64encode(_png(255 - image * 255 / 16)).decode()
    return (
        f'<figure class="{kind}"><img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _png(grey: NDArray[Any]) -> bytes:
    """A greyscale image as PNG."""
    height, width = grey.shape
    lines = b"".join(b"\0" + row.tobytes() for row in grey.astype(np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>DISH on handwritten digits</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --right: #2a9d5c; --wrong: #d1495b; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0 2rem; }}
td, th {{ padding: .3rem 1rem; border-bottom: 1px solid var(--line); text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
section {{ display: flex; flex-wrap: wrap; gap: .5rem; padding: .6rem 0; border-bottom: 1px solid var(--line); }}
figure {{ margin: 0; width: 64px; text-align: center; font-size: .75rem; }}
img {{ width: 60px; height: 60px; image-rendering: pixelated; border: 2px solid transparent; border-radius: 6px; }}
.right img {{ border-color: var(--right); }} .wrong img {{ border-color: var(--wrong); }}
.query {{ margin-right: 1.2rem; font-weight: 600; }}
</style></head><body>
<h1>DISH on handwritten digits</h1>
<p>1,797 real images of 8 × 8 pixels, from scikit-learn: 300 queries, and 1,497 for both training and database. The
learned hash function encodes both. LSH uses random hyperplanes; DISH-K is the paper's method; DISH is the default
method of this library.</p>
<table><thead><tr><th>ranking by</th><th>bytes per row</th><th>MAP</th>
<th>precision within radius 2</th></tr></thead>
<tbody>{table}</tbody></table>
<h2>Nearest neighbours by the 64-bit codes of DISH</h2>
<p>Below each image: its digit and its Hamming distance from the query. Green: the right digit; red: another.</p>
{searches}
</body></html>
"""
