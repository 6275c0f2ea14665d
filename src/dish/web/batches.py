"""Batches of queries: queries that arrive while another search runs share one call of the hasher and the index.

A query never waits for others to join it: when no search is running, it starts at once, alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from dish.codes import n_bytes
from dish.errors import InputError, ShardError
from dish.index.snapshot import Snapshot
from dish.progress import Stopwatch
from dish.web.collection import Codes, Collection, Hits, Id, SearchRange, to_hex
from dish.web.limits import Limits, in_words

MAX_BATCH = 256  # queries
EXTRA_WORKER_DELAY = 0.1  # seconds that queries wait for a running batch before another worker starts on them

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Queue(Generic[Item, Result]):
    """The waiting items of one event loop and the workers that process them."""

    waiting: list[tuple[Item, asyncio.Future[Result]]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # the event loop keeps only weak references to tasks
    n_workers: int = 0
    batch_started: float = 0.0  # start of the newest batch
    timer: asyncio.TimerHandle | None = None  # starts an extra worker


class BatchQueue(Generic[Item, Result]):
    """Collects items and passes them to ``process`` in batches, in threads.

    Usually one worker runs, so that batches are large. Another one starts when a batch takes long.
    """

    def __init__(
        self,
        process: Callable[[list[Item]], Sequence[Result | Exception]],
        max_workers: int,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self.process, self.max_workers = process, max_workers
        self.threads = threads or ThreadPoolExecutor(max_workers, "dish-search")
        self.queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Item, Result]] = WeakKeyDictionary()

    async def submit(self, item: Item) -> Result:
        """Return the result for one item."""
        loop = asyncio.get_running_loop()
        queue = self.queues.setdefault(loop, _Queue())
        future: asyncio.Future[Result] = loop.create_future()
        queue.waiting.append((item, future))
        if not queue.n_workers:
            self._start_worker(queue)
        elif queue.timer is None and queue.n_workers < self.max_workers:
            queue.timer = loop.call_later(EXTRA_WORKER_DELAY, self._start_extra_worker, queue)
        return await future

    def _start_worker(self, queue: _Queue[Item, Result]) -> None:
        task = asyncio.get_running_loop().create_task(self._work(queue, is_extra=queue.n_workers > 0))
        queue.n_workers += 1
        queue.tasks.add(task)
        task.add_done_callback(queue.tasks.discard)

    def _start_extra_worker(self, queue: _Queue[Item, Result]) -> None:
        queue.timer = None
        if queue.waiting and time.monotonic() - queue.batch_started > EXTRA_WORKER_DELAY / 2:
            self._start_worker(queue)

    async def _work(self, queue: _Queue[Item, Result], is_extra: bool) -> None:
        """Process batches until none is waiting. An extra worker processes one batch."""
        loop = asyncio.get_running_loop()
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        try:
            while queue.waiting and not (is_extra and batch):
                queue.batch_started = time.monotonic()
                batch, queue.waiting = queue.waiting[:MAX_BATCH], queue.waiting[MAX_BATCH:]
                items = [item for item, _ in batch]
                results = await loop.run_in_executor(self.threads, self._process_all, items)
                for (_, future), result in zip(batch, results, strict=True):
                    if future.cancelled():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            for _, future in batch:  # no effect on futures that have their result: only a stopping server cancels
                future.cancel()
            queue.n_workers -= 1
            if queue.waiting and not queue.n_workers:
                self._start_worker(queue)

    def _process_all(self, items: list[Item]) -> Sequence[Result | Exception]:
        """Process a batch. If it fails, process its items one by one, so that only the faulty ones fail."""
        try:
            return self.process(items)
        except ShardError as error:  # no fault of an item: to ask for each alone would only take longer
            return [error for _ in items]
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [self._process_all([item])[0] for item in items]


@dataclass(frozen=True)
class Query:
    """One search: from a vector, an item's id or a code (exactly one of the three), for the items in a range.

    A search from a picture has the picture's ``code`` and, if it is rescored, its outputs or its vector as ``finer``.
    """

    range: SearchRange
    vector: NDArray[np.float32] | None = None
    id: Id | None = None
    code: Codes | None = None
    finer: NDArray[np.float32] | None = None
    encode_ms: float = 0.0  # already spent on ``code``


class StageTimes(Stopwatch):
    """Milliseconds spent in each stage of a response."""

    def __init__(self) -> None:
        self.timings_ = {}
        self.stage = self._stage

    @property
    def ms(self) -> dict[str, float]:
        """Milliseconds by stage."""
        return {name: round(1000 * seconds, 3) for name, seconds in self.timings_.items()}


def search_batch(collection: Collection, limits: Limits, queries: list[Query]) -> list[bytes | Exception]:
    """Return the response of each query as JSON, or the error of a query that cannot be answered."""
    snapshot, times = collection.index.snapshot(), StageTimes()
    with times.stage("encode"):
        codes, errors = _encode_queries(collection, queries, snapshot)
        finer = _finer_rows(collection, queries, snapshot, errors)
    with times.stage("search"):
        ranges = [SearchRange(1) if i in errors else query.range for i, query in enumerate(queries)]
        try:
            hits = collection.search_many(codes, ranges, limits.max_k, snapshot, finer)
        except InputError as error:  # about a filter, or an item without a vector
            raise HTTPException(422, str(error)) from None
    query_codes, ms = to_hex(codes), times.ms
    responses: list[bytes | Exception] = []
    room = limits.answers
    for i, query in enumerate(queries):
        time_ms = ms if not query.encode_ms else ms | {"encode": query.encode_ms}
        about = {"code": query_codes[i], "n_bits": collection.n_bits, "time_ms": time_ms}
        problem = errors.get(i) or _too_large(hits[i], limits.max_answer, room)
        responses.append(problem or to_json({**vars(hits[i]), **about}))
        room -= 0 if problem else len(responses[-1])  # type: ignore[arg-type]
    return responses


def _too_large(hits: Hits, most: int, room: int) -> HTTPException | None:
    """Return the error of a query whose answer is too large, or leaves too little room for those of its batch."""
    size = sum(map(json_size, (*hits.ids, *hits.labels, *hits.codes, *(hits.scores or ()))))
    if size > most:
        text = f"the answer would have {in_words(size)}, at most {in_words(most)} are allowed: ask for fewer hits"
        return HTTPException(413, text)
    if size > room:
        return HTTPException(503, "busy: too many bytes are in memory; try again", {"retry-after": "1"})
    return None


def json_size(value: Any) -> int:
    """Return about how many bytes a value takes in JSON, at least as many as it really takes for almost all."""
    if not isinstance(value, str):
        return 24
    return len(value) + 4 if value.isascii() and value.isprintable() else 6 * len(value) + 4


def to_json(content: Any) -> bytes:
    """Return JSON. The slow fallback escapes ids with characters that UTF-8 cannot hold (lone surrogates)."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return json.dumps(content).encode()


def _encode_queries(
    collection: Collection, queries: list[Query], snapshot: Snapshot
) -> tuple[Codes, dict[int, Exception]]:
    """Return the codes (n, bytes) of queries, and by position the errors of those whose id is unknown."""
    codes = np.zeros((len(queries), n_bytes(collection.n_bits)), np.uint8)
    errors: dict[int, Exception] = {}
    vectors = [i for i, query in enumerate(queries) if query.vector is not None]
    if vectors:
        codes[vectors] = collection.encode([queries[i].vector for i in vectors])
    for i, query in enumerate(queries):
        if query.code is not None:
            codes[i] = query.code[0]
        elif query.id is not None:
            try:
                codes[i] = collection.code_of(query.id, snapshot)[0]
            except HTTPException as error:
                errors[i] = error
    return codes, errors


def _finer_rows(
    collection: Collection, queries: list[Query], snapshot: Snapshot, errors: dict[int, Exception]
) -> dict[int, NDArray[np.float32]]:
    """Return the outputs or float vectors of rescored queries, by position. Queries without any go to ``errors``."""
    finer: dict[int, NDArray[np.float32]] = {}
    by_outputs = [i for i, query in enumerate(queries) if query.range.rescore == "asymmetric" and query.finer is None]
    if by_outputs:
        outputs = collection.outputs(np.stack([queries[i].vector for i in by_outputs]))  # type: ignore[misc]
        finer |= dict(zip(by_outputs, outputs, strict=True))
    for i, query in enumerate(queries):
        if query.finer is not None:
            finer[i] = query.finer
        elif query.range.rescore == "float" and i not in errors:
            try:
                finer[i] = query.vector if query.id is None else collection.vector_of(query.id, snapshot)  # type: ignore[assignment]
            except HTTPException as error:
                errors[i] = error
    return finer
