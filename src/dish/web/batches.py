"""Queries that wait together are answered together: one call of the hasher and one of the index for all of them.

Nobody waits for company: a query that finds the worker free goes at once, alone. Under load the queries that came
while the worker was busy are its next batch.
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

from dish.progress import Stopwatch
from dish.web.collection import Codes, Collection, Extent, Id, hexes
from dish.web.errors import Refused

MOST = 256  # queries of a batch
PATIENCE = 0.1  # seconds that queries wait for a batch under way before another worker takes them

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Queue(Generic[Item, Result]):
    """What waits in one event loop, and who works on it."""

    waiting: list[tuple[Item, asyncio.Future[Result]]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # of the workers: a task that nobody holds may vanish
    working: int = 0
    began: float = 0.0  # when the newest batch did
    help: asyncio.TimerHandle | None = None


class Batches(Generic[Item, Result]):
    """Hands what waits to ``run``, in threads, a batch at a time.

    One worker as a rule, so that batches are large; more of them while a batch takes long.
    """

    def __init__(self, run: Callable[[list[Item]], Sequence[Result | Exception]], workers: int) -> None:
        self.run, self.workers = run, workers
        self.threads = ThreadPoolExecutor(workers, "dish-search")
        self.queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Item, Result]] = WeakKeyDictionary()

    async def ask(self, item: Item) -> Result:
        """The result of one item."""
        loop = asyncio.get_running_loop()
        queue = self.queues.setdefault(loop, _Queue())
        future: asyncio.Future[Result] = loop.create_future()
        queue.waiting.append((item, future))
        if not queue.working:
            self._start(queue)
        elif queue.help is None and queue.working < self.workers:
            queue.help = loop.call_later(PATIENCE, self._help, queue)
        return await future

    def _start(self, queue: _Queue[Item, Result]) -> None:
        worker = asyncio.get_running_loop().create_task(self._work(queue, alone=not queue.working))
        queue.working += 1
        queue.tasks.add(worker)
        worker.add_done_callback(queue.tasks.discard)

    def _help(self, queue: _Queue[Item, Result]) -> None:
        """A batch that takes long must not hold up the next: another worker takes what waits."""
        queue.help = None
        if queue.waiting and time.monotonic() - queue.began > PATIENCE / 2:
            self._start(queue)

    async def _work(self, queue: _Queue[Item, Result], alone: bool) -> None:
        loop = asyncio.get_running_loop()
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        try:
            while queue.waiting and (alone or not batch):  # who helps takes one batch
                queue.began = time.monotonic()
                batch, queue.waiting = queue.waiting[:MOST], queue.waiting[MOST:]
                items = [item for item, _ in batch]
                results = await loop.run_in_executor(self.threads, self._run_all, items)
                for (_, future), result in zip(batch, results, strict=True):
                    if future.cancelled():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            for _, future in batch:  # all have their result, unless the server is being stopped
                future.cancel()
            queue.working -= 1
            if queue.waiting and not queue.working:
                self._start(queue)

    def _run_all(self, items: list[Item]) -> Sequence[Result | Exception]:
        """One call for all; where it fails, one call each, so that a query fails for its own reasons only."""
        try:
            return self.run(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [self._run_all([item])[0] for item in items]


@dataclass(frozen=True)
class Query:
    """What a search starts from (one of ``vector``, ``id`` and ``code``) and how far it goes."""

    extent: Extent
    vector: list[float] | None = None
    id: Id | None = None
    code: Codes | None = None
    encode_ms: float = 0.0  # spent on ``code`` already


class Stages(Stopwatch):
    """Milliseconds of the stages of an answer."""

    def __init__(self) -> None:
        self.timings_ = {}
        self.stage = self._stage

    @property
    def ms(self) -> dict[str, float]:
        """By stage."""
        return {name: round(1000 * seconds, 3) for name, seconds in self.timings_.items()}


def search_all(collection: Collection, limit: int, queries: list[Query]) -> list[bytes | Exception]:
    """The answers to queries, as JSON; a refusal instead where a query cannot be answered."""
    now, stages = collection.index.snapshot(), Stages()
    with stages.stage("encode"):
        codes, refusals = _codes_of(collection, queries, now)
    with stages.stage("search"):
        hits = collection.search_many(codes, [query.extent for query in queries], limit, now)
    own, ms = hexes(codes), stages.ms
    answers: list[bytes | Exception] = []
    for i, query in enumerate(queries):
        spent = ms if not query.encode_ms else ms | {"encode": query.encode_ms}
        about = {"code": own[i], "n_bits": collection.n_bits, "time_ms": spent}
        answers.append(refusals.get(i) or to_json({**vars(hits[i]), **about}))
    return answers


def to_json(content: Any) -> bytes:
    """JSON, fast; ids may hold characters that only an escape can show."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return json.dumps(content).encode()


def _codes_of(collection: Collection, queries: list[Query], at: Any) -> tuple[Codes, dict[int, Exception]]:
    """Codes (n, bytes) of queries, zeros for those that are refused, and the refusals."""
    codes = np.zeros((len(queries), -(-collection.n_bits // 8)), np.uint8)
    refusals: dict[int, Exception] = {}
    vectors = [i for i, query in enumerate(queries) if query.vector is not None]
    if vectors:
        codes[vectors] = collection.encode([queries[i].vector or [] for i in vectors])
    for i, query in enumerate(queries):
        if query.code is not None:
            codes[i] = query.code[0]
        elif query.id is not None:
            try:
                codes[i] = collection.code_of(query.id, at)[0]
            except Refused as refusal:
                refusals[i] = refusal
    return codes, refusals
