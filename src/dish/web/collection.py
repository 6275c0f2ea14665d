"""A hasher, an index of its codes, and what belongs to them: pictures, samples, durable writes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.codes import n_bytes
from dish.hasher import Hasher
from dish.index.hamming import HammingIndex
from dish.web.errors import Refused
from dish.web.journal import Journal, JournalError, sync_folder
from dish.web.pictures import PREPARE, Pictures, decode

Id = int | str
Label = int | str
Codes = NDArray[np.uint8]

log = logging.getLogger("dish.web")

JOURNAL_LIMIT = 64 << 20  # bytes of journal beyond which the index itself is written again


@dataclass(frozen=True)
class Sample:
    """Something to click on: a row of the index (``id``), or a picture that is not in it (``picture``)."""

    label: Label | None
    id: Id | None = None
    picture: str | None = None


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
        journal: Journal | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.takes_images = bool(getattr(hasher, "takes_images", False))
        takes = takes or ("image" if self.takes_images else "vector")
        if takes not in PREPARE:
            raise ValueError(f"--input must be one of {', '.join(PREPARE)}; got {takes!r}")
        if self.takes_images != (takes == "image"):
            kind = "pictures" if self.takes_images else "vectors"
            raise ValueError(f"--input {takes} does not fit the model: a {type(hasher).__name__} takes {kind}")
        if index.n_bits != hasher.n_bits:
            raise ValueError(f"the model makes codes of {hasher.n_bits} bits, the index holds {index.n_bits}")
        self.hasher, self.index, self.takes, self.title = hasher, index, takes, title
        self.pictures, self.samples = pictures, list(samples)
        self.n_bits = int(hasher.n_bits)
        self.n_features = None if self.takes_images else int(hasher.n_features_in_)
        self.journal, self.path = journal, None if path is None else Path(path)
        self._kind_of_ids: str | None = None
        self._writing = threading.Lock()  # the journal and the index in step; searches wait for nobody
        if journal is not None:
            self._apply(journal.records)
            journal.records.clear()

    def __len__(self) -> int:
        return len(self.index)

    def kind_of_ids(self) -> str:
        """What the ids of the index are; an empty one takes either."""
        if self._kind_of_ids is None and len(self.index):
            self._kind_of_ids = "string" if isinstance(self.index.ids[0], str) else "integer"
        return self._kind_of_ids or "integer"

    # --- rows → codes ---

    def encode(self, vectors: Sequence[Sequence[float]]) -> Codes:
        """Codes of vectors (n, d)."""
        if self.n_features is None:
            raise Refused(422, "this model takes pictures, not vectors: upload one as multipart/form-data")
        for vector in vectors:
            if len(vector) != self.n_features:
                raise Refused(422, f"a vector must have {self.n_features} numbers, got {len(vector)}")
        with np.errstate(over="ignore"):
            X = np.asarray(vectors, np.float64).astype(np.float32)
        if not np.isfinite(X).all():
            raise Refused(422, "a vector holds a number beyond what float32 can hold")
        return self.hasher.transform(X)

    def encode_picture(self, data: bytes, max_pixels: int) -> Codes:
        """The code (1, bytes) of an uploaded picture."""
        prepare = PREPARE[self.takes]
        if prepare is None:
            raise Refused(415, "this model takes vectors, not pictures: send JSON")
        return self.hasher.transform(prepare(decode(data, max_pixels)))

    def code_of(self, id: Id) -> Codes:
        """The code (1, bytes) of a row of the index."""
        try:
            return self.index.get([id])
        except (KeyError, ValueError, TypeError):
            raise Refused(404, f"the index has no item {id!r}") from None

    # --- search ---

    def search(self, code: Codes, *, k: int | None, radius: int | None, limit: int) -> Hits:
        """The k nearest, or all within a radius (the first ``limit`` of them)."""
        if len(self.index) == 0:
            return Hits([], [], [], [], 0)
        if radius is None:
            assert k is not None
            D, ids = (a[0] for a in self.index.search(code, k=min(k, limit)))
            found = len(ids)
        else:
            _, D, ids = self.index.radius_search(code, radius=radius)
            D, ids, found = D[:limit], ids[:limit], len(ids)  # nearest first already
        if not found:
            return Hits([], [], [], [], 0)
        labels, codes = self.index.labels_of(ids).tolist(), self.index.get(ids)
        return Hits(ids.tolist(), D.tolist(), labels, [c.tobytes().hex() for c in codes], found)

    def draw(self, n: int) -> list[Sample]:
        """Things to click on: the collection's own samples, else rows of the index."""
        rng = np.random.default_rng()
        if self.samples:
            chosen = rng.permutation(len(self.samples))[:n]
            return [self.samples[i] for i in chosen]
        if len(self.index) == 0:
            return []
        ids = self.index.ids
        ids = ids[rng.choice(len(ids), min(n, len(ids)), replace=False)]
        labels = self.index.labels_of(ids).tolist()
        return [Sample(label, id=id) for id, label in zip(ids.tolist(), labels, strict=True)]

    # --- writes ---

    def upsert(self, ids: Sequence[Id], codes: Codes, labels: Sequence[Label] | None) -> int:
        """Add items, or replace those whose ids are known. On return they are on the disk. The new size."""
        if self.journal is None:
            raise Refused(403, "this server does not take items: start it with --writable")
        record = {
            "ids": list(ids),
            "codes": codes.tobytes().hex(),
            "labels": None if labels is None else list(labels),
        }
        with self._writing:
            self._check_ids(ids)
            try:
                self.journal.append(record)
            except (OSError, JournalError) as error:
                log.exception("items could not be written")
                raise Refused(503, "the items could not be written to the disk; none was saved") from error
            self._apply([record])
            if self.journal.size > JOURNAL_LIMIT:
                try:
                    self._compact()
                except OSError:  # the items are safe in the journal
                    log.exception("the index could not be written")
            return len(self.index)

    def close(self) -> None:
        """Write what the journal holds into the index file."""
        if self.journal is not None:
            with self._writing:
                try:
                    if self.journal.size:
                        self._compact()
                finally:
                    self.journal.close()

    def _compact(self) -> None:
        """A crash between the two steps replays the journal over an index that has it: the same items."""
        assert self.journal is not None
        assert self.path is not None
        self.index.save(self.path)
        sync_folder(self.path)  # the new file must not be lost once the journal is
        self.journal.clear()

    def _apply(self, records: Iterable[dict[str, Any]]) -> None:
        """Put records into the index, the last of an id winning, as one upsert a stretch of them."""
        width = n_bytes(self.n_bits)
        last: dict[Id, tuple[bytes, Label | None]] = {}
        for record in records:
            codes = bytes.fromhex(record["codes"])
            for i, id in enumerate(record["ids"]):
                last.pop(id, None)  # an item replaced counts as new: it goes to the end
                last[id] = codes[i * width : (i + 1) * width], record["labels"] and record["labels"][i]
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


class Stopwatch:
    """Milliseconds of the stages of one request."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage."""
        start = time.perf_counter()
        yield
        self.ms[name] = round(1000 * (time.perf_counter() - start), 3)
