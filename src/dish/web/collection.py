"""A hasher, an index of its codes, and what belongs to them: pictures, samples, durable writes."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dish.codes import hamming, n_bytes
from dish.errors import InputError
from dish.index.hamming import HammingIndex
from dish.index.snapshot import Snapshot
from dish.web.errors import Refused
from dish.web.journal import Journal, JournalError, sync_folder
from dish.web.pictures import KINDS, PREPARE, FolderPictures, Pictures, decode

if TYPE_CHECKING:
    from dish.hasher import Hasher

Id = int | str
Label = int | str
Codes = NDArray[np.uint8]

log = logging.getLogger("dish.web")

TOGETHER = 16  # searches within a small radius that go into one call of the index
SAMPLE, CLOSE = 200, 0.05  # items whose distances tell what is close, and the share of pairs that is
JOURNAL_LIMIT = 64 << 20  # bytes of journal beyond which the index itself is written again


@dataclass(frozen=True)
class Sample:
    """Something to click on: a row of the index (``id``), or a picture that is not in it (``picture``)."""

    label: Label | None
    id: Id | None = None
    picture: str | None = None


@dataclass(frozen=True)
class Extent:
    """How far a search goes: the ``k`` nearest, or all within a ``radius``."""

    k: int | None = None
    radius: int | None = None


@dataclass(frozen=True)
class Hits:
    """The answer to one query, nearest first; ``found`` counts also those beyond the limit."""

    ids: list[Id]
    distances: list[int]
    labels: list[Any]
    codes: list[str]
    found: int


class Collection:
    """Everything one server serves. Its methods may be called from many threads."""

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
        journal: Journal | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.kind = getattr(hasher, "kind", type(hasher).__name__)
        self.takes_images = bool(getattr(hasher, "takes_images", False))
        takes = takes or ("image" if self.takes_images else "vector")
        if takes not in PREPARE:
            raise InputError(f"--input must be one of {', '.join(PREPARE)}; got {takes!r}")
        if self.takes_images != (takes == "image"):
            kind = "pictures" if self.takes_images else "vectors"
            raise InputError(f"--input {takes} does not fit the model: this {self.kind} takes {kind}")
        if index.n_bits != hasher.n_bits:
            raise InputError(f"the model makes codes of {hasher.n_bits} bits, the index holds {index.n_bits}")
        index.check_model(getattr(hasher, "fingerprint_", None))
        self.hasher, self.index, self.takes, self.title = hasher, index, takes, title
        self.pictures, self.samples, self.duplicates = pictures, list(samples), duplicates
        self.n_bits = int(hasher.n_bits)
        self.n_features = None if self.takes_images else int(hasher.n_features_in_)
        self.journal, self.path = journal, None if path is None else Path(path)
        self.to_write = "start it with --writable"  # what would make it take items
        self._kind_of_ids: str | None = None
        self._close: float | None = None
        self._writing = threading.Lock()  # the journal and the index in step; searches wait for nobody
        self._compacting: threading.Thread | None = None
        if journal is not None:
            self._apply(journal.records)
            journal.records.clear()

    def __len__(self) -> int:
        return len(self.index)

    def kind_of_ids(self) -> str:
        """What the ids of the index are; an empty one takes either."""
        if self._kind_of_ids is None and len(self.index):
            self._kind_of_ids = "string" if isinstance(self.index.snapshot().ids[0], str) else "integer"
        return self._kind_of_ids or "integer"

    def as_id(self, text: str) -> Id:
        """An id as it stands in an address."""
        whole = self.kind_of_ids() == "integer" and re.fullmatch(r"-?\d{1,18}", text)
        return int(text) if whole else text

    def ids_like(self, text: str, n: int) -> list[Id]:
        """At most n ids that contain a text, in whatever case; those that begin with it first."""
        wanted = text.casefold()
        found = list(islice((id for id in self.index.snapshot().ids if wanted in str(id).casefold()), 8 * n))
        nearest = sorted(found, key=lambda id: not str(id).casefold().startswith(wanted))[:n]
        return np.array(nearest).tolist()

    def close_distance(self) -> float:
        """What "close" means here: nearer than all but a twentieth of the pairs of items, told from a sample."""
        if self._close is None:
            now = self.index.snapshot()
            if len(now) < 2:
                return self.n_bits / 4
            sample = now.get(now.sample_ids(min(SAMPLE, len(now)), np.random.default_rng(0)))
            pairs = hamming(sample, sample)[np.triu_indices(len(sample), 1)]
            self._close = float(np.quantile(pairs, CLOSE))
        return self._close

    def find_duplicates(self) -> list[list[Any]]:
        """Groups of copies, without what was removed since."""
        now = self.index.snapshot()
        try:
            groups = [[id for id in group if id in now] for group in (self.duplicates or list)()]
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return [group for group in groups if len(group) > 1]

    # --- rows → codes ---

    def encode(self, vectors: Sequence[Sequence[float]]) -> Codes:
        """Codes of vectors (n, d)."""
        return self.hasher.transform(np.array(vectors, np.float32))

    def encode_picture(self, data: bytes, max_pixels: int) -> Codes:
        """The code (1, bytes) of an uploaded picture: the one that ``dish encode`` gives the file."""
        prepare = PREPARE[self.takes]
        if prepare is None:
            raise Refused(415, "this model takes vectors, not pictures: send JSON")
        side = getattr(self.hasher, "image_side", None) if self.takes_images else prepare.side
        return self.hasher.transform(prepare.row(decode(data, max_pixels, side)))

    def code_of(self, id: Id, at: Snapshot | None = None) -> Codes:
        """The code (1, bytes) of a row of the index."""
        try:
            return (at or self.index.snapshot()).get([id])
        except (KeyError, ValueError, TypeError):
            raise Refused(404, f"the index has no item {id!r}") from None

    # --- search ---

    def search(self, code: Codes, *, k: int | None, radius: int | None, limit: int) -> Hits:
        """The k nearest, or all within a radius (the first ``limit`` of them)."""
        return self.search_many(code, [Extent(k, radius)], limit, self.index.snapshot())[0]

    def search_many(self, codes: Codes, extents: Sequence[Extent], limit: int, at: Snapshot) -> list[Hits]:
        """The hits of several queries; ids, distances, labels and codes are those of one snapshot."""
        found: dict[int, tuple[NDArray[Any], NDArray[Any], int]] = {}  # query → distances, ids, hits there are
        same: dict[Extent, list[int]] = defaultdict(list)
        for i, extent in enumerate(extents):
            same[extent].append(i)
        for extent, queries in same.items():
            found |= _find(at, codes, queries, extent, limit) if len(at) else {}
        listed = [found[i][1] for i in sorted(found)]
        if not sum(map(len, listed)):
            return [Hits([], [], [], [], 0) for _ in extents]
        ids = np.concatenate(listed)
        labels, hits_codes = at.labels_of(ids).tolist(), hexes(at.get(ids))
        answers, start = [], 0
        for i in range(len(extents)):
            D, own, n = found[i]
            end = start + len(own)
            answers.append(Hits(own.tolist(), D.tolist(), labels[start:end], hits_codes[start:end], n))
            start = end
        return answers

    def draw(self, n: int) -> list[Sample]:
        """Things to click on: the collection's own samples, else rows of the index."""
        rng = np.random.default_rng()
        if self.samples:
            chosen = rng.permutation(len(self.samples))[:n]
            return [self.samples[i] for i in chosen]
        now = self.index.snapshot()
        if len(now) == 0:
            return []
        ids = now.sample_ids(n, rng)
        labels = now.labels_of(ids).tolist()
        return [Sample(label, id=id) for id, label in zip(ids.tolist(), labels, strict=True)]

    # --- writes ---

    def check_writable(self) -> None:
        """Refuse where nothing may be written."""
        if self.journal is None:
            raise Refused(403, f"this server does not take items: {self.to_write}")

    def upsert(self, ids: Sequence[Id], codes: Codes, labels: Sequence[Label | None] | None) -> int:
        """Add items, or replace those whose ids are known. On return they are on the disk. The new size."""
        record = {
            "ids": list(ids),
            "codes": codes.tobytes().hex(),
            "labels": None if labels is None else list(labels),
        }
        return self._write(record)

    def remove(self, id: Id) -> int:
        """Remove an item. On return that is on the disk. The new size."""
        if id not in self.index:
            raise Refused(404, f"the index has no item {id!r}")
        return self._write({"ids": [id], "codes": "", "labels": None, "removed": True})

    def add_picture(self, data: bytes, id: str | None, file_name: str, label: str | None, max_pixels: int) -> Id:
        """Add a picture under an id, by default the name of its file; in a folder of pictures its file is kept.

        There the id is the path of the new file, which gets a number if the name is taken.
        """
        code = self.encode_picture(data, max_pixels)
        if not isinstance(self.pictures, FolderPictures) or self.kind_of_ids() == "integer":
            if id is None:
                raise Refused(422, "give the picture an id")
            given = self.as_id(id)
            if given in self.index:
                raise Refused(409, f"there is an item {given!r} already: remove it first")
            self.upsert([given], code, [label])
            return given
        key = self.pictures.add(id or file_name or "photo", data, label)
        there = self.index.snapshot()
        bare = len(there) > 0 and Path(str(there.ids[0])).suffix.lower() not in KINDS  # ids without endings
        name = str(Path(key).with_suffix("").as_posix()) if bare else key
        try:
            self.upsert([name], code, [label])
        except BaseException:
            self.pictures.discard(key)
            raise
        return name

    def _write(self, record: dict[str, Any]) -> int:
        """Into the journal, then into the index."""
        self.check_writable()
        assert self.journal is not None
        with self._writing:
            self._check_ids(record["ids"])
            try:
                n = self.journal.append(record)
            except (OSError, JournalError) as error:
                log.exception("items could not be written")
                raise Refused(503, "the items could not be written to the disk; none was saved") from error
            try:
                self._apply([record])
            except BaseException:
                self.journal.withdraw(n)  # what cannot be carried out must not stop the next start
                raise
            size = len(self.index)
            if self.journal.size > JOURNAL_LIMIT and not (self._compacting and self._compacting.is_alive()):
                self._compacting = threading.Thread(target=self._compact_quietly, name="compact")
                self._compacting.start()
        return size

    def close(self) -> None:
        """Write what the journal holds into the index file."""
        if self.journal is not None:
            if self._compacting is not None:
                self._compacting.join()
            with self._writing:
                try:
                    if self.journal.size:
                        self._compact(self.journal.last)
                finally:
                    self.journal.close()

    def _compact_quietly(self) -> None:
        """Beside searches and writes: records that come meanwhile stay in the journal."""
        assert self.journal is not None
        try:
            with self._writing:
                last = self.journal.last
            self._compact(last)
        except Exception:  # the items are safe in the journal; the next write tries again
            log.exception("the index could not be written")

    def _compact(self, last: int) -> None:
        """Write the index, then forget the records up to ``last``, which are in it.

        A crash between the two steps replays records over an index that has them: the same items.
        """
        assert self.journal is not None
        assert self.path is not None
        self.index.save(self.path)
        sync_folder(self.path)  # the new file must not be lost once the records are
        self.journal.forget(last)

    def _apply(self, records: Iterable[dict[str, Any]]) -> None:
        """Put records into the index, the last of an id winning, in as few upserts as the kinds of labels allow."""
        width = n_bytes(self.n_bits)
        last: dict[Id, tuple[bytes, Label | None]] = {}
        removed: set[Id] = set()
        for record in records:
            codes = bytes.fromhex(record["codes"])
            for i, id in enumerate(record["ids"]):
                last.pop(id, None)  # an item replaced counts as new: it goes to the end
                if record.get("removed"):
                    removed.add(id)
                    continue
                removed.discard(id)
                last[id] = codes[i * width : (i + 1) * width], record["labels"] and record["labels"][i]
        if removed:
            self.index.remove(list(removed))
        for kind, group in groupby(last.items(), key=lambda item: type(item[1][1])):  # 1 must not become "1"
            items = list(group)
            codes_of = np.frombuffer(b"".join(code for _, (code, _) in items), np.uint8).reshape(-1, width)
            labels: Any = None if kind is type(None) else [label for _, (_, label) in items]
            self.index.upsert(codes_of, [id for id, _ in items], labels=labels)

    def _check_ids(self, ids: Sequence[Id]) -> None:
        if len(set(ids)) < len(ids):
            raise Refused(422, "ids must differ from each other")
        kinds = {type(id) for id in ids}
        if len(self.index):
            kinds.add(str if self.kind_of_ids() == "string" else int)
        if len(kinds) > 1:
            raise Refused(422, "ids must be all whole numbers or all strings, as those of the index are")


def hexes(codes: Codes) -> list[str]:
    """Every code in hex."""
    text, width = codes.tobytes().hex(), 2 * codes.shape[1]
    return [text[i : i + width] for i in range(0, len(text), width)]


def _find(
    at: Snapshot, codes: Codes, queries: list[int], extent: Extent, limit: int
) -> dict[int, tuple[NDArray[Any], NDArray[Any], int]]:
    """Distances, ids and number of the hits of some queries, all to the same extent."""
    if extent.radius is None:
        assert extent.k is not None
        D, ids = at.search(codes[queries], k=min(extent.k, limit))
        return {query: (D[i], ids[i], len(ids[i])) for i, query in enumerate(queries)}
    found = {}
    at_once = TOGETHER if extent.radius <= at.n_bits // 8 else 1  # a wide ball may hold all rows
    for start in range(0, len(queries), at_once):
        some = queries[start : start + at_once]
        counts, lims, D, ids = at.within(codes[some], extent.radius, limit=limit)
        for query, first, last, n in zip(some, lims[:-1], lims[1:], counts.tolist(), strict=True):
            found[query] = D[first:last], ids[first:last], n
    return found
