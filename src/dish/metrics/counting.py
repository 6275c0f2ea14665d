"""Scores of Hamming rankings, without sorting anything.

Per query two histograms over the distances 0 … r, of all database rows and of the relevant ones, hold all that
MAP, precision within a radius, precision@k, recall and the precision–recall curve need. Rows at the same
distance have no order of their own: ``ties="expected"`` gives the exact mean over all their orders,
``ties="stable"`` takes them in database order, as papers that sort do.

Labels are (n,) classes (relevant: equal) or (n, l) of 0/1 (relevant: at least one shared label).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit, prange
from numpy.typing import ArrayLike, NDArray

from dish.codes import as_words, byte_table, check_codes, n_bytes, popcount
from dish.labels import encode_classes
from dish.progress import progress

Floats = NDArray[np.float64]
_TILE = 2048  # database rows worked on at a time


@dataclass
class Report:
    """What ``evaluate`` measures; ``curve`` arrays are indexed by Hamming radius."""

    map: float
    precision_within_2: float
    empty_balls: float  # share of queries with no database row within radius 2
    precision_at: dict[int, float]
    curve_precision: list[float]
    curve_recall: list[float]
    n_queries: int
    n_database: int
    n_bits: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@dataclass
class Histograms:
    """Database rows by distance from each query: ``all_`` and ``relevant``, (n_queries, r + 1)."""

    all_: NDArray[np.int64]
    relevant: NDArray[np.int64]


def histograms(
    q_codes: ArrayLike,
    q_labels: Any,
    db_codes: ArrayLike,
    db_labels: Any,
    n_bits: int | None = None,
    device: str = "cpu",
) -> Histograms:
    """Count the database rows, and the relevant ones, at every distance from every query.

    On the CPU a popcount kernel on all cores; on another torch ``device`` a matrix product of ±1 codes.
    """
    Q, B = _check_pair(q_codes, db_codes)
    r = 8 * Q.shape[1] if n_bits is None else n_bits
    if n_bytes(r) != Q.shape[1]:
        raise ValueError(f"n_bits={n_bits}, but q_codes have {Q.shape[1]} bytes a row")
    y = _labels(q_labels, db_labels, len(Q), len(B))
    if device == "cpu":
        counts = _count_in_blocks(as_words(Q), as_words(B), y, 8 * Q.shape[1])
    else:
        counts = _histograms_torch(Q, B, y, device)
    return Histograms((counts[:, :, 0] + counts[:, :, 1])[:, : r + 1], counts[:, : r + 1, 1])


def mean_average_precision(
    q_codes: ArrayLike,
    q_labels: Any,
    db_codes: ArrayLike,
    db_labels: Any,
    k: int | None = None,
    ties: str = "expected",
) -> float:
    """MAP of the Hamming ranking. A query without relevant rows counts 0.

    With ``k`` only the first k places count, and a query's precisions are averaged over the relevant rows found
    there (for expected ties: over their expected number).
    """
    if ties not in ("expected", "stable"):
        raise ValueError(f"ties must be 'expected' or 'stable', got {ties!r}")
    Q, B = _check_pair(q_codes, db_codes)
    k = len(B) if k is None else _check_k(k, len(B))
    if ties == "expected":
        return float(expected_average_precision(histograms(Q, q_labels, B, db_labels), k).mean())
    y = _labels(q_labels, db_labels, len(Q), len(B))
    return float(_stable_ap(as_words(Q), y.queries, as_words(B), y.rows, y.sets, 8 * Q.shape[1], k).mean())


def expected_average_precision(h: Histograms, k: int | None = None) -> Floats:
    """Average precision of every query, in expectation over the order of rows at equal distance.

    With a rows before a group of g at one distance, R of them relevant, and ρ of the g relevant, the j-th of the
    group is relevant with probability ρ/g, and then R + 1 + (j−1)(ρ−1)/(g−1) relevant rows are expected up to it.
    Summed over j ≤ t (t = g, or what is left up to k) with Σ 1/(a+j) = harmonic(a+t) − harmonic(a):

        ρ/g · [ (R + 1) Σ + (ρ−1)/(g−1) · (t − (a+1) Σ) ] .
    """
    g, rho = h.all_.astype(np.float64), h.relevant.astype(np.float64)
    a, R = np.cumsum(g, 1) - g, np.cumsum(rho, 1) - rho
    t = g if k is None else np.clip(k - a, 0, g)
    harmonic = _harmonic(a + t) - _harmonic(a)
    slope = (rho - 1) / np.maximum(g - 1, 1)
    share = rho / np.maximum(g, 1)
    precisions = (share * ((R + 1) * harmonic + slope * (t - (a + 1) * harmonic))).sum(1)
    found = (share * t).sum(1)
    return np.asarray(precisions / np.where(found > 0, found, 1))


def precision_within_radius(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, radius: int = 2
) -> float:
    """Mean share of relevant rows among those at distance ≤ radius; a query with none there counts 0."""
    h = histograms(q_codes, q_labels, db_codes, db_labels)
    return float(_ball(h, radius)[0].mean())


def precision_at_k(q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int = 100) -> float:
    """Mean share of relevant rows among the k nearest (expected, over the order of ties)."""
    h = histograms(q_codes, q_labels, db_codes, db_labels)
    return float(_precision_at(h, _check_k(k, int(h.all_[0].sum()))).mean())


def precision_recall_curve(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any
) -> tuple[Floats, Floats]:
    """Precision and recall of the balls of radius 0, 1, …, r, summed over queries."""
    return _curve(histograms(q_codes, q_labels, db_codes, db_labels))


def evaluate(
    q_codes: ArrayLike,
    q_labels: Any,
    db_codes: ArrayLike,
    db_labels: Any,
    *,
    n_bits: int | None = None,
    k: int | None = None,
    at: tuple[int, ...] = (1, 10, 100, 1000),
) -> Report:
    """Everything at once, from one pass over the codes; ``k`` cuts the MAP."""
    return report(histograms(q_codes, q_labels, db_codes, db_labels, n_bits), k, at)


def report(h: Histograms, k: int | None = None, at: tuple[int, ...] = (1, 10, 100, 1000)) -> Report:
    """Everything that histograms tell; those of parts of a database can be added up first."""
    n_queries, n_database = len(h.all_), int(h.all_[0].sum())
    k = None if k is None else _check_k(k, n_database)
    within, size = _ball(h, 2)
    precision, recall = _curve(h)
    return Report(
        map=float(expected_average_precision(h, k).mean()),
        precision_within_2=float(within.mean()),
        empty_balls=float((size == 0).mean()),
        precision_at={k: float(_precision_at(h, k).mean()) for k in at if k <= n_database},
        curve_precision=precision.tolist(),
        curve_recall=recall.tolist(),
        n_queries=n_queries,
        n_database=n_database,
        n_bits=h.all_.shape[1] - 1,
    )


def asymmetric_mean_average_precision(
    F: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int | None = None
) -> float:
    """MAP of ranking database codes by their inner product with the queries' real-valued F (n_queries, r).

    ``F`` is ``hasher.decision_function(queries)``: only the database is rounded to bits. Equal scores come in
    database order.
    """
    F = np.asarray(F, np.float64)
    H = check_codes(db_codes, F.shape[1], name="db_codes")
    y = _labels(q_labels, db_labels, len(F), len(H))
    k = len(H) if k is None else _check_k(k, len(H))
    scores = (_byte_scores(f, H) for f in F)
    return float(np.mean([_sorted_ap(-s, y.relevant(i), k) for i, s in enumerate(scores)]))


def l2_mean_average_precision(Xq: ArrayLike, q_labels: Any, X: ArrayLike, labels: Any, k: int | None = None) -> float:
    """MAP of ranking raw vectors by l2 distance: what the codes replace. Equal distances in database order."""
    Xq, X = np.asarray(Xq), np.asarray(X)
    y = _labels(q_labels, labels, len(Xq), len(X))
    norms = np.einsum("ij,ij->i", X, X)
    precisions = []
    for start in range(0, len(Xq), 64):
        squared = norms - 2 * (Xq[start : start + 64] @ X.T)
        precisions += [_sorted_ap(d, y.relevant(start + i), k or len(X)) for i, d in enumerate(squared)]
    return float(np.mean(precisions))


def _sorted_ap(distances: NDArray[Any], relevant: NDArray[np.bool_], k: int) -> float:
    """Average precision at k of one ranking by distance."""
    ranks = np.flatnonzero(relevant[np.argsort(distances, kind="stable")[:k]]) + 1.0
    return float((np.arange(1, len(ranks) + 1) / ranks).mean()) if len(ranks) else 0.0


# --- from histograms --------------------------------------------------------------------------------------


def _ball(h: Histograms, radius: int) -> tuple[Floats, NDArray[np.int64]]:
    if radius < 0:
        raise ValueError(f"radius must be at least 0, got {radius}")
    size, relevant = h.all_[:, : radius + 1].sum(1), h.relevant[:, : radius + 1].sum(1)
    return relevant / np.maximum(size, 1), size


def _precision_at(h: Histograms, k: int) -> Floats:
    before = np.cumsum(h.all_, 1) - h.all_
    taken = np.clip(k - before, 0, h.all_)
    return np.asarray((h.relevant / np.maximum(h.all_, 1) * taken).sum(1) / k)


def _curve(h: Histograms) -> tuple[Floats, Floats]:
    found, relevant = np.cumsum(h.all_.sum(0)), np.cumsum(h.relevant.sum(0))
    return relevant / np.maximum(found, 1), relevant / max(int(relevant[-1]), 1)


def _harmonic(n: Floats) -> Floats:
    """1 + 1/2 + … + 1/n."""
    from scipy.special import digamma

    return np.asarray(digamma(n + 1) + np.euler_gamma)


# --- kernels and checks -----------------------------------------------------------------------------------


@dataclass
class _Labels:
    """Labels of queries and rows as uint64 words: a class number each, or (``sets``) a bit for every label."""

    queries: NDArray[np.uint64]  # (n_queries, words)
    rows: NDArray[np.uint64]  # (n, words)
    sets: bool

    def relevant(self, i: int) -> NDArray[np.bool_]:
        """Which rows are relevant to query i."""
        if self.sets:
            return np.asarray(((self.rows & self.queries[i]) != 0).any(axis=1))
        return np.asarray((self.rows == self.queries[i]).all(axis=1))


def _labels(q_labels: Any, db_labels: Any, n_queries: int, n: int) -> _Labels:
    q, b = (y if sp.issparse(y) else np.asarray(y) for y in (q_labels, db_labels))
    q, b = (y.ravel() if y.ndim == 2 and y.shape[1] == 1 and not sp.issparse(y) else y for y in (q, b))
    for name, y, rows in (("q_labels", q, n_queries), ("db_labels", b, n)):
        if y.shape[0] != rows:
            raise ValueError(f"{name} has {y.shape[0]} labels for {rows} codes")
    if q.ndim != b.ndim or (q.ndim == 2 and q.shape[1] != b.shape[1]):
        raise ValueError(f"q_labels and db_labels differ in kind: shapes {q.shape} and {b.shape}")
    if q.ndim == 1 and (q.dtype.kind in "US") != (b.dtype.kind in "US") and "O" not in (q.dtype.kind, b.dtype.kind):
        raise ValueError(f"q_labels and db_labels differ in kind: {q.dtype} and {b.dtype}")
    if q.ndim == 2:
        return _Labels(_label_words(q, "q_labels"), _label_words(b, "db_labels"), True)
    classes = encode_classes(np.concatenate([q, b]), "labels")[0].astype(np.uint64)[:, None]
    return _Labels(classes[:n_queries], classes[n_queries:], False)


def _label_words(Y: Any, name: str) -> NDArray[np.uint64]:
    Y = Y.toarray() if sp.issparse(Y) else Y
    if not np.isin(Y, (0, 1)).all():
        raise ValueError(f"a 2-D {name} must hold only 0 and 1, a column a label")
    return as_words(np.packbits(Y.astype(bool), axis=1))


def _check_pair(q_codes: ArrayLike, db_codes: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    Q, B = check_codes(q_codes, name="q_codes"), check_codes(db_codes, name="db_codes")
    if Q.shape[1] != B.shape[1]:
        raise ValueError(f"q_codes have {Q.shape[1]} bytes a row, db_codes {B.shape[1]}")
    if len(Q) == 0 or len(B) == 0:
        raise ValueError(f"there is nothing to score: {len(Q)} queries, {len(B)} database rows")
    return Q, B


def _check_k(k: int, n: int) -> int:
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} database rows, got {k}")
    return int(k)


@njit(inline="always")
def _distance(Q: Any, i: int, B: Any, j: int) -> Any:
    d = np.uint64(0)
    for w in range(Q.shape[1]):
        d += popcount(Q[i, w] ^ B[j, w])
    return np.int64(d)


@njit(inline="always")
def _is_relevant(yq: Any, i: int, yb: Any, j: int, sets: bool) -> Any:
    if not sets:
        return np.int64(yq[i, 0] == yb[j, 0])
    shared = np.uint64(0)
    for w in range(yq.shape[1]):
        shared |= yq[i, w] & yb[j, w]
    return np.int64(shared != 0)


def _count_in_blocks(Q: NDArray[np.uint64], B: NDArray[np.uint64], y: _Labels, r: int) -> NDArray[np.int64]:
    """Queries in blocks, with a progress bar where it takes long and someone is watching."""
    out = np.empty((len(Q), r + 1, 2), np.int64)
    if not y.sets:  # rows class by class: then a whole stretch is relevant to a query, or none of it
        order = np.argsort(y.rows[:, 0], kind="stable")
        starts = np.searchsorted(y.rows[order, 0], np.arange(y.rows.max() + 2, dtype=np.uint64))
        columns = np.ascontiguousarray(B[order].T)  # (words, n)
    distance = np.empty(_TILE, np.uint8 if r < 256 else np.uint16)
    block = 1024
    with progress("scoring", len(Q), worth=len(Q) * len(B) > 2e10) as step:
        for i in range(0, len(Q), block):
            some = slice(i, i + block)
            if y.sets:
                out[some] = _set_histograms(Q[some], y.queries[some], B, y.rows, r)
            else:
                out[some] = _class_histograms(Q[some], y.queries[some, 0], columns, starts, r, distance)
            step(len(Q[some]))
    return out


def _histograms_torch(
    Q: NDArray[np.uint8], B: NDArray[np.uint8], y: _Labels, device: str, cells: int = 2**28
) -> NDArray[np.int64]:
    """The same counts on any torch device: distance = (r − q·b)/2 as a matrix product of ±1 codes."""
    import torch

    r = 8 * Q.shape[1]

    def signs(codes: NDArray[np.uint8]) -> torch.Tensor:
        bits = torch.from_numpy(np.unpackbits(codes, axis=1)).to(device)
        return bits.to(torch.float32 if device == "cpu" else torch.float16).mul_(2).sub_(1)

    yq, yb = (torch.from_numpy(labels.view(np.int64)).to(device) for labels in (y.queries, y.rows))
    q = signs(Q)
    counts = torch.zeros(len(Q) * (r + 1) * 2, dtype=torch.int64, device=device)
    first = torch.arange(len(Q), device=device)[:, None] * (2 * (r + 1))
    step = max(1, cells // (8 * len(Q)))
    for start in range(0, len(B), step):
        rows = slice(start, start + step)
        cell = first + (r - (q @ signs(B[rows]).T).long())  # 2·distance
        same = yq[:, None] == yb[None, rows]  # (n_queries, rows, words)
        relevant = ((yq[:, None] & yb[None, rows]) != 0).any(2) if y.sets else same[:, :, 0]
        counts += torch.bincount((cell + relevant).ravel(), minlength=len(counts))
    return counts.view(len(Q), r + 1, 2).cpu().numpy()


def _byte_scores(f: Floats, H: NDArray[np.uint8]) -> Floats:
    """H f for packed ±1 codes: a table look-up for every byte of a code."""
    return np.asarray(_look_up(byte_table(f, -(-H.shape[1] // 8)), H))


@njit(parallel=True, cache=True)
def _look_up(table: Any, H: Any) -> Any:
    out = np.empty(len(H))
    for i in prange(len(H)):
        s = 0.0
        for j in range(H.shape[1]):
            s += table[j, H[i, j]]
        out[i] = s
    return out


@njit(parallel=True, cache=True)
def _class_histograms(Q: Any, yq: Any, columns: Any, starts: Any, r: int, distance: Any) -> Any:
    """(n_queries, r + 1, 2): rows at each distance, not relevant and relevant; rows of class c are starts[c:c+2].

    A tile of rows stays in cache for a few queries. Distances come first (vectorised), then four counters in
    turn, so that a row need not wait for the one before it.
    """
    words, group = len(columns), 8
    out = np.zeros((len(Q), r + 1, 2), np.int64)
    for block in prange((len(Q) + group - 1) // group):
        first, last = block * group, min(len(Q), (block + 1) * group)
        d = np.empty(_TILE, distance.dtype)
        counts = np.zeros((group, 2, 4, r + 1), np.uint32)
        for c in range(len(starts) - 1):
            for start in range(starts[c], starts[c + 1], _TILE):
                m = min(starts[c + 1] - start, _TILE)
                for i in range(first, last):
                    q, rows = Q[i, 0], columns[0, start : start + m]
                    for j in range(m):
                        d[j] = popcount(q ^ rows[j])
                    for w in range(1, words):
                        q, rows = Q[i, w], columns[w, start : start + m]
                        for j in range(m):
                            d[j] += popcount(q ^ rows[j])
                    count = counts[i - first, np.int64(yq[i] == c)]
                    c0, c1, c2, c3 = count[0], count[1], count[2], count[3]
                    whole = m - m % 4
                    for j in range(0, whole, 4):
                        c0[d[j]] += np.uint32(1)
                        c1[d[j + 1]] += np.uint32(1)
                        c2[d[j + 2]] += np.uint32(1)
                        c3[d[j + 3]] += np.uint32(1)
                    for j in range(whole, m):
                        c0[d[j]] += np.uint32(1)
        for i in range(first, last):
            for relevant in range(2):
                for t in range(4):
                    out[i, :, relevant] += counts[i - first, relevant, t]
    return out


@njit(parallel=True, cache=True)
def _set_histograms(Q: Any, yq: Any, B: Any, yb: Any, r: int) -> Any:
    """(n_queries, r + 1, 2): the same for label sets."""
    out = np.zeros((len(Q), r + 1, 2), np.int64)
    for i in prange(len(Q)):
        counts = np.zeros((r + 1, 2), np.int64)
        for j in range(len(B)):
            counts[_distance(Q, i, B, j), _is_relevant(yq, i, yb, j, True)] += 1
        out[i] = counts
    return out


@njit(parallel=True, cache=True)
def _stable_ap(Q: Any, yq: Any, B: Any, yb: Any, sets: bool, r: int, k: int) -> Any:
    """AP at k with equal distances in row order: a row's rank is known from counts, nothing is sorted."""
    ap = np.zeros(len(Q))
    for i in prange(len(Q)):
        count = np.zeros((r + 2, 2), np.int64)
        for j in range(len(B)):
            d = _distance(Q, i, B, j)
            count[d + 1, 0] += 1
            count[d + 1, 1] += _is_relevant(yq, i, yb, j, sets)
        rank, found = np.cumsum(count[:, 0]), np.cumsum(count[:, 1])  # rows before distance d
        precisions, n_found = 0.0, 0
        for j in range(len(B)):
            d = _distance(Q, i, B, j)
            rank[d] += 1
            if _is_relevant(yq, i, yb, j, sets):
                found[d] += 1
                if rank[d] <= k:
                    precisions += found[d] / rank[d]
                    n_found += 1
        ap[i] = precisions / max(n_found, 1)
    return ap
