"""What one server serves: a hasher, an index of its codes, pictures, samples, and durable writes."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from dish.alias import check_pair
from dish.codes import hamming
from dish.errors import FileReplacedError, InputError, ModelFileError
from dish.ids_and_labels import as_ids
from dish.index.hamming import HammingIndex
from dish.index.snapshot import Snapshot
from dish.web.drift_metrics import DriftMonitor
from dish.web.index_writer import IndexWriter
from dish.web.pictures import MEDIA_TYPES, PREPARATIONS, FolderPictures, Pictures, decode

if TYPE_CHECKING:
    from dish.hasher import Hasher

Id = int | str
Label = int | str | float | bool
Codes = NDArray[np.uint8]

log = logging.getLogger("dish.web")

RADIUS_BATCH = 16  # radius searches per call of the index, if the radius is small
CLOSE_SAMPLE, CLOSE_SHARE = 200, 0.05  # items whose pairwise distances are measured; share of pairs that are "close"


@dataclass(frozen=True)
class Sample:
    """An example to search with: an item of the index (``id``), or a picture that is not in it (``picture``)."""

    label: Label | None
    id: Id | None = None
    picture: str | None = None


@dataclass(frozen=True)
class SearchRange:
    """The ``k`` nearest items, or all within a ``radius``; among those that match the filters, if there are any.

    With ``rescore``, the ``shortlist`` nearest items are ordered by outputs or float vectors instead of codes, see
    ``HammingIndex.search``.
    """

    k: int | None = None
    radius: int | None = None
    ids: tuple[Id, ...] | None = None
    labels: tuple[Label | None, ...] | None = None
    rescore: str | None = None
    shortlist: int | None = None


@dataclass(frozen=True)
class Hits:
    """The result of one search, best first. ``found`` includes the hits beyond the limit.

    ``scores`` are those of a rescored search.
    """

    ids: list[Id]
    distances: list[int]
    labels: list[Any]
    codes: list[str]
    found: int
    scores: list[float] | None = None


class Collection:
    """A hasher, its index and their pictures. The methods are thread-safe."""

    def __init__(
        self,
        hasher: Hasher,
        index: HammingIndex,
        *,
        takes: str | None = None,
        pictures: Pictures | None = None,
        samples: Sequence[Sample] = (),
        title: str = "dish",
        duplicates: Callable[[], list[list[Any]]] | None = None,
        writer: IndexWriter | None = None,
    ) -> None:
        self.kind = getattr(hasher, "kind", type(hasher).__name__)
        self.takes_images = bool(getattr(hasher, "takes_images", False))
        takes = takes or ("image" if self.takes_images else "vector")
        if takes not in PREPARATIONS:
            raise InputError(f"--input must be one of {', '.join(PREPARATIONS)}; got {takes!r}")
        if self.takes_images != (takes == "image"):
            kind = "pictures" if self.takes_images else "vectors"
            raise InputError(f"--input {takes} does not fit the model: this {self.kind} takes {kind}")
        check_pair(hasher, index)
        self.fingerprint: str | None = getattr(hasher, "fingerprint_", None)
        self.hasher, self.index, self.takes, self.title = hasher, index, takes, title
        self.pictures, self.samples, self.duplicates = pictures, list(samples), duplicates
        self.queries = DriftMonitor(hasher)
        self.n_bits = int(hasher.n_bits)
        self.n_features = None if self.takes_images else int(hasher.n_features_in_)
        self.writer = writer
        self.read_only_reason = "start it with --writable"
        self._close_distance: float | None = None
        if writer is not None:
            writer.start(self.fingerprint)

    def __len__(self) -> int:
        return len(self.index)

    def id_type(self) -> str:
        """Return "integer" or "string", the type of the ids.

        An empty index accepts both, but the ids of pictures in a folder are their paths.
        """
        if self._has_integer_ids():
            return "integer"
        return "string" if len(self.index) or isinstance(self.pictures, FolderPictures) else "integer"

    def _has_integer_ids(self) -> bool:
        snapshot = self.index.snapshot()
        return len(snapshot) > 0 and not snapshot.has_string_ids

    def parse_id(self, text: str) -> Id:
        """Convert an id from a URL or a form to the type of the ids in the index; an empty one gets strings."""
        if self._has_integer_ids() and len(text) <= 20:
            with suppress(ValueError):
                number = int(text)
                if str(number) == text and -(2**63) <= number < 2**63:  # neither "007" nor other scripts' digits
                    return number
        return text

    def ids_like(self, text: str, n: int) -> list[Id]:
        """Return at most n ids that contain a text, ignoring case. Those that start with it come first."""
        wanted = text.casefold()
        found = list(islice((id for id in self.index.snapshot().ids if wanted in str(id).casefold()), 8 * n))
        nearest = sorted(found, key=lambda id: not str(id).casefold().startswith(wanted))[:n]
        return [id if isinstance(id, str) else int(id) for id in nearest]

    def close_distance(self) -> float:
        """Return the distance below which the page calls a hit "close": 5 % of all pairs, estimated on a sample."""
        if self._close_distance is None:
            snapshot = self.index.snapshot()
            if len(snapshot) < 2:
                return self.n_bits / 4
            ids = snapshot.sample_ids(min(CLOSE_SAMPLE, len(snapshot)), np.random.default_rng(0))
            sample = snapshot.get(ids)
            pairs = hamming(sample, sample)[np.triu_indices(len(sample), 1)]
            self._close_distance = float(np.quantile(pairs, CLOSE_SHARE))
        return self._close_distance

    def find_duplicates(self) -> list[list[Any]]:
        """Return groups of copies, without items that have been removed."""
        snapshot = self.index.snapshot()
        try:
            groups = [[id for id in group if id in snapshot] for group in (self.duplicates or list)()]
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return [group for group in groups if len(group) > 1]

    # --- encoding ---

    def encode(self, vectors: Sequence[Any] | NDArray[np.float32]) -> Codes:
        """Return the codes of vectors (n, d)."""
        rows = np.asarray(vectors, np.float32)
        codes = self.hasher.transform(rows)
        self.queries.observe(rows)
        return codes

    def outputs(self, rows: Any) -> NDArray[np.float32]:
        """Return the real outputs (n, n_bits) whose signs are the bits of the rows' codes."""
        return self.hasher.decision_function(rows)

    def encode_items(self, rows: Any, labels: Sequence[Label | None] | None) -> tuple[Codes, int]:
        """Return the codes of items, and how many are codes of labels: those whose label is a class of the model."""
        known = [] if labels is None else self.hasher.knows_labels(labels).tolist()
        if labels is None or not any(known):
            return self.hasher.transform(rows), 0
        usable = [label if is_known else None for label, is_known in zip(labels, known, strict=True)]
        return self.hasher.transform(rows, labels=usable), sum(known)

    def encode_picture(self, data: bytes, max_pixels: int) -> Codes:
        """Return the code (1, bytes) of an uploaded picture, the same as from ``dish encode``."""
        row = self.row_of(data, max_pixels)
        code = self.hasher.transform(row)
        self.queries.observe(row)
        return code

    def row_of(self, data: bytes, max_pixels: int) -> Any:
        """Return an uploaded picture as the model's input."""
        preparation = PREPARATIONS[self.takes]
        if preparation is None:
            raise HTTPException(415, "this model takes vectors, not pictures: send JSON")
        side = getattr(self.hasher, "image_side", None) if self.takes_images else preparation.side
        return preparation.to_row(decode(data, max_pixels, side))

    def code_of(self, id: Id, snapshot: Snapshot | None = None) -> Codes:
        """Return the code (1, bytes) of an item."""
        try:
            return (snapshot or self.index.snapshot()).get([id])
        except (KeyError, ValueError, TypeError):
            raise HTTPException(404, f"the index has no item {id!r}") from None

    def vector_of(self, id: Id, snapshot: Snapshot) -> NDArray[np.float32]:
        """Return the float vector (d,) of an item, for a search from the item that is rescored by vectors."""
        assert snapshot.vectors is not None
        row = int(snapshot.vectors.rows_of(as_ids([id]))[0])
        if row < 0:
            raise HTTPException(422, f"item {id!r} has no float vector")
        return np.asarray(snapshot.vectors.rows[row], np.float32)

    # --- search ---

    def search_many(
        self,
        codes: Codes,
        ranges: Sequence[SearchRange],
        max_hits: int,
        snapshot: Snapshot,
        finer: dict[int, NDArray[np.float32]] | None = None,
    ) -> list[Hits]:
        """Return the hits of several queries, at most ``max_hits`` each, from one snapshot.

        ``finer`` has the real outputs or the float vectors of the rescored queries, by their position.
        """
        found: dict[int, tuple[NDArray[Any], NDArray[Any], int]] = {}  # query → distances, ids, total number of hits
        by_range: dict[tuple[SearchRange, tuple[type, ...]], list[int]] = defaultdict(list)
        for i, one in enumerate(ranges):
            by_range[one, tuple(map(type, one.labels or ()))].append(i)  # the labels 1, 1.0 and True are equal
        for (one, _), queries in by_range.items():
            if len(snapshot):
                rows = np.stack([(finer or {})[i] for i in queries]) if one.rescore else None
                found |= _find(snapshot, codes, queries, one, max_hits, rows)
        if not any(len(ids) for _, ids, _ in found.values()):
            return [Hits([], [], [], [], 0, [] if one.rescore else None) for one in ranges]
        all_ids = np.concatenate(
            [ids for i in sorted(found) if len(ids := found[i][1])]
        )  # one lookup for all queries
        labels, hit_codes = snapshot.label_list(all_ids), snapshot.get(all_ids)
        as_text = to_hex(hit_codes)
        results, start = [], 0
        for i in sorted(found):
            D, ids, n = found[i]
            end, scores = start + len(ids), None
            if ranges[i].rescore is not None:
                scores, D = D.tolist(), hamming(codes[i : i + 1], hit_codes[start:end])[0]
            results.append(Hits(ids.tolist(), D.tolist(), labels[start:end], as_text[start:end], n, scores))
            start = end
        return results

    def random_samples(self, n: int) -> list[Sample]:
        """Return random examples to search with: the collection's own samples if it has any, else items."""
        rng = np.random.default_rng()
        if self.samples:
            chosen = rng.permutation(len(self.samples))[:n]
            return [self.samples[i] for i in chosen]
        snapshot = self.index.snapshot()
        if len(snapshot) == 0:
            return []
        ids = snapshot.sample_ids(n, rng)
        labels = snapshot.label_list(ids)
        return [Sample(label, id=id) for id, label in zip(ids.tolist(), labels, strict=True)]

    # --- writes ---

    def check_writable(self) -> None:
        """Reject the request if the server is read-only."""
        if self.writer is None:
            raise HTTPException(403, f"this server is read-only: {self.read_only_reason}")

    def announce(self, url: str) -> None:
        """Tell processes that find the index locked where it is served, so that they can say where to change it."""
        if self.writer is not None:
            self.writer.sign(url)

    def upsert(
        self, ids: Sequence[Id], codes: Codes, labels: Sequence[Label | None] | None, *, replace: bool = True
    ) -> int:
        """Add or replace items and return the new size. They are on disk when this returns."""
        given = None if labels is None else list(labels)
        record = {"ids": list(ids), "codes": codes.tobytes().hex(), "labels": given}
        return self._write(record, (lambda: None) if replace else partial(self._check_absent, ids))

    def remove(self, id: Id) -> int:
        """Remove an item and return the new size. The removal is on disk when this returns."""

        def check() -> None:
            if id not in self.index:
                raise HTTPException(404, f"the index has no item {id!r}")

        return self._write({"ids": [id]}, check)

    def remove_many(self, ids: Sequence[Id]) -> tuple[int, list[Id]]:
        """Remove items in one step; return the new size and the ids that the index did not have."""
        given, unknown = list(dict.fromkeys(ids)), list[Id]()
        size = self._write({"ids": given}, lambda: unknown.extend(_unknown(self.index.snapshot(), given)))
        return size, unknown

    def add_items(self, ids: Sequence[Id], vectors: Any, labels: Sequence[Label | None] | None) -> tuple[int, int]:
        """Add or replace items by their vectors; return the new size and how many got the code of their label."""
        codes, n = self.encode_items(np.asarray(vectors, np.float32), labels)
        return self.upsert(ids, codes, labels), n

    def add_picture(
        self, data: bytes, id: str | None, file_name: str, label: str | None, max_pixels: int
    ) -> tuple[Id, int]:
        """Add a picture; return its id, and 1 if it got the code of its label, else 0.

        If the collection has a folder of pictures, the file is stored there and its path becomes the id. A number
        is appended to a name that is taken. If the ids are integers, no file is stored.
        """
        code, n = self.encode_items(self.row_of(data, max_pixels), None if label is None else [label])
        if not isinstance(self.pictures, FolderPictures) or self._has_integer_ids():
            if id is None:
                raise HTTPException(422, "give the picture an id")
            new_id = self.parse_id(id)
            self.upsert([new_id], code, [label], replace=False)
            return new_id, n
        snapshot = self.index.snapshot()
        without_suffix = len(snapshot) > 0 and Path(str(snapshot.ids[0])).suffix.lower() not in MEDIA_TYPES

        def name_of(key: str) -> str:
            return Path(key).with_suffix("").as_posix() if without_suffix else key

        key = self.pictures.add(id or file_name or "photo", data, label, lambda key: name_of(key) in self.index)
        try:
            self.upsert([name_of(key)], code, [label], replace=False)
        except BaseException:
            self.pictures.discard(key)
            raise
        return name_of(key), n

    def _write(self, record: dict[str, Any], check: Callable[[], None]) -> int:
        """Write a change to disk and to the index. No other change comes between ``check`` and this one."""
        self.check_writable()
        assert self.writer is not None
        try:
            return self.writer.change(record, check)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        except (OSError, ModelFileError) as error:
            log.exception("items could not be written")
            reason = f": {error}" if isinstance(error, FileReplacedError) else ""
            raise HTTPException(503, f"the change could not be written to disk and was not made{reason}") from error

    def _check_absent(self, ids: Sequence[Id]) -> None:
        """Reject new items whose ids exist."""
        for id in ids:
            if id in self.index:
                raise HTTPException(409, f"item {id!r} exists already: remove it first")

    def save(self) -> None:
        """Write all changes so far to the index file. Requests go on meanwhile."""
        if self.writer is not None:
            self.writer.save()

    def close(self) -> None:
        """Write all changes to the index file."""
        if self.writer is not None:
            self.writer.close()

    def release(self) -> None:
        """Free the model and the index after the last request. FastAPI's caches may keep the routes, and so this."""
        del self.hasher, self.index, self.writer, self.pictures, self.duplicates, self.queries


def _unknown(snapshot: Snapshot, ids: Sequence[Id]) -> list[Id]:
    """Return the ids, of either type, that are not in the index."""
    known: set[Id] = set()
    for kind in (int, str):
        some = [id for id in ids if isinstance(id, kind)]
        known.update(id for id, row in zip(some, snapshot.rows_of(as_ids(some)).tolist(), strict=True) if row >= 0)
    return [id for id in ids if id not in known]


def to_hex(codes: Codes) -> list[str]:
    """Return every code in hexadecimal."""
    text, width = codes.tobytes().hex(), 2 * codes.shape[1]
    return [text[i : i + width] for i in range(0, len(text), width)]


def _find(
    snapshot: Snapshot,
    codes: Codes,
    queries: list[int],
    range_: SearchRange,
    max_hits: int,
    finer: NDArray[np.float32] | None,
) -> dict[int, tuple[NDArray[Any], NDArray[Any], int]]:
    """Return distances (or scores), ids and total number of hits by query. All queries have the same range."""
    filters: dict[str, Any] = {"ids": range_.ids, "labels": range_.labels}
    filters = {name: list(given) for name, given in filters.items() if given is not None}
    if range_.radius is None:
        assert range_.k is not None
        k = min(range_.k, max_hits)
        D, ids = (
            snapshot.search(codes[queries], k, **filters)
            if finer is None
            else _rescored(snapshot, codes[queries], finer, k, range_, filters)
        )
        return {query: (D[i], ids[i], len(ids[i])) for i, query in enumerate(queries)}
    found = {}
    batch = RADIUS_BATCH if range_.radius <= snapshot.n_bits // 8 else 1  # a large radius may find every item
    for start in range(0, len(queries), batch):
        some = queries[start : start + batch]
        counts, lims, D, ids = snapshot.within(codes[some], range_.radius, limit=max_hits, **filters)
        for query, first, last, n in zip(some, lims[:-1], lims[1:], counts.tolist(), strict=True):
            found[query] = D[first:last], ids[first:last], n
    return found


def _rescored(
    snapshot: Snapshot,
    codes: Codes,
    finer: NDArray[np.float32],
    k: int,
    range_: SearchRange,
    filters: dict[str, Any],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scores and ids of the k best items of the shortlist, by outputs or by float vectors."""
    options: dict[str, Any] = {**filters, "rescore": range_.rescore, "shortlist": range_.shortlist}
    if range_.rescore == "asymmetric":
        return snapshot.search(finer, k, **options)
    return snapshot.search(codes, k, query_vectors=finer, **options)
