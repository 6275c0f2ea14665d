"""Queries that wait together are answered together, and none waits for ever."""

import asyncio
import threading
import time

import pytest

from dish.web import batches
from dish.web.batches import Batches


def test_what_waits_is_one_batch_and_each_gets_its_own_answer():
    sizes, go = [], threading.Event()

    def run(items):
        sizes.append(len(items))
        assert go.wait(10)
        return [10 * item for item in items]

    async def ask():
        work = Batches(run, workers=1)
        first = asyncio.create_task(work.ask(0))
        while not sizes:
            await asyncio.sleep(0.01)
        rest = [asyncio.create_task(work.ask(i)) for i in range(1, 21)]
        await asyncio.sleep(0.05)
        go.set()
        return await asyncio.gather(first, *rest)

    assert asyncio.run(ask()) == [10 * i for i in range(21)]
    assert sizes == [1, 20]


def test_an_error_is_of_the_query_that_caused_it():
    def run(items):
        return [1 / item for item in items]

    async def ask():
        work = Batches(run, workers=2)
        return await asyncio.gather(*(work.ask(i) for i in (1, 0, 2)), return_exceptions=True)

    one, zero, two = asyncio.run(ask())
    assert (one, two) == (1.0, 0.5)
    assert isinstance(zero, ZeroDivisionError)


def test_a_long_batch_does_not_hold_up_the_next():
    go = threading.Event()

    def run(items):
        if "long" in items:
            assert go.wait(20)
        return items

    async def ask():
        work = Batches(run, workers=2)
        long = asyncio.create_task(work.ask("long"))
        await asyncio.sleep(0.05)
        start = time.monotonic()
        for i in range(3):  # also after the worker that helps has ended
            assert await asyncio.wait_for(work.ask(i), 10) == i
        waited = time.monotonic() - start
        go.set()
        assert await long == "long"
        return waited

    assert asyncio.run(ask()) < 10 * batches.PATIENCE + 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_query_is_forgotten(workers):
    """Queries that come at every moment of a worker's life."""

    def run(items):
        time.sleep(0.001 * (len(items) % 3))
        return items

    async def one(work, i):
        for j in range(100):
            await asyncio.sleep(0.0001 * ((i * j) % 7))
            assert await work.ask((i, j)) == (i, j)

    async def ask():
        work = Batches(run, workers)
        await asyncio.wait_for(asyncio.gather(*(one(work, i) for i in range(20))), 60)

    asyncio.run(ask())


def test_event_loops_do_not_meet():
    work = Batches(lambda items: items, workers=2)
    seen = []

    def ask():
        for i in range(20):
            seen.append(asyncio.run(work.ask(i)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 120
