"""Batches of queries."""

import asyncio
import threading
import time

import pytest

from dish.web import batches
from dish.web.batches import BatchQueue
from helpers.web import run_async


def test_waiting_queries_form_one_batch():
    sizes, go = [], threading.Event()

    def run(items):
        sizes.append(len(items))
        assert go.wait(10)
        return [10 * item for item in items]

    async def run_all():
        work = BatchQueue(run, max_workers=1)
        first = asyncio.create_task(work.submit(0))
        while not sizes:
            await asyncio.sleep(0.01)
        rest = [asyncio.create_task(work.submit(i)) for i in range(1, 21)]
        await asyncio.sleep(0.05)
        go.set()
        return await asyncio.gather(first, *rest)

    assert run_async(run_all()) == [10 * i for i in range(21)]
    assert sizes == [1, 20]


def test_only_the_faulty_query_fails():
    def run(items):
        return [1 / item for item in items]

    async def run_all():
        work = BatchQueue(run, max_workers=2)
        return await asyncio.gather(*(work.submit(i) for i in (1, 0, 2)), return_exceptions=True)

    one, zero, two = run_async(run_all())
    assert (one, two) == (1.0, 0.5)
    assert isinstance(zero, ZeroDivisionError)


def test_long_batch_does_not_block_the_next():
    go = threading.Event()

    def run(items):
        if "long" in items:
            assert go.wait(20)
        return items

    async def run_all():
        work = BatchQueue(run, max_workers=2)
        long = asyncio.create_task(work.submit("long"))
        await asyncio.sleep(0.05)
        start = time.monotonic()
        for i in range(3):  # also after the extra worker has ended
            assert await asyncio.wait_for(work.submit(i), 10) == i
        waited = time.monotonic() - start
        go.set()
        assert await long == "long"
        return waited

    assert run_async(run_all()) < 10 * batches.EXTRA_WORKER_DELAY + 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_query_is_forgotten(workers):
    """Queries arrive at every moment of a worker's life."""

    def run(items):
        time.sleep(0.001 * (len(items) % 3))
        return items

    async def one(work, i):
        for j in range(100):
            await asyncio.sleep(0.0001 * ((i * j) % 7))
            assert await work.submit((i, j)) == (i, j)

    async def run_all():
        work = BatchQueue(run, workers)
        await asyncio.wait_for(asyncio.gather(*(one(work, i) for i in range(20))), 60)

    run_async(run_all())


def test_event_loops_have_separate_queues():
    work = BatchQueue(lambda items: items, max_workers=2)
    seen = []

    def ask():
        for i in range(20):
            seen.append(asyncio.run(work.submit(i)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 120
