"""Exact search over shards in Ray actors: the results of one ``HammingIndex`` of all rows, or an error."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_number
from dish.codes import Bytes, check_codes, check_unused_bits
from dish.errors import DishError, InputError, ShardError
from dish.ids_and_labels import Ids, as_ids, label_array
from dish.index.merge import merge
from dish.io import modelfile
from dish.io.atomic import StrPath
from dish.ray.connection import connected_ray, import_ray
from dish.ray.shards import FileRange, Shard, ShardPlan, merge_radius, plan_shards

PAUSE = 0.05  # seconds before a request that failed is sent again

Ask = Callable[..., list[Any]]  # (method of Shard, *arguments) → the answers of all shards, in order


def open_shards(
    paths: StrPath | Sequence[StrPath],
    shards: int | None = None,
    *,
    replicas: int = 1,
    threads: int | None = None,
    n_bits: int | None = None,
    timeout: float = 60.0,
) -> ShardedIndex:
    """Open files of codes in Ray actors, and return an index that searches all of them.

    Needs a connection to Ray (``dish.ray.cluster``). Every machine must see the files under the same path.

    Parameters
    ----------
    paths : path or sequence of paths
        Index files (.dish), packed codes (.npy; ids are positions) or files written by ``encode_files`` (.arrow), in
        order; or a folder of .arrow files.
    shards : int or None, default=None
        Number of contiguous ranges into which the rows are divided. None: one per file.
    replicas : int, default=1
        Actors per shard. Requests take turns; if an actor dies, its request goes to another one.
    threads : int or None, default=None
        Threads per actor. None: the cluster's CPUs divided by the number of actors, at least 1.
    n_bits : int or None, default=None
        Code length, if the files do not say and it is not a multiple of 8.
    timeout : float, default=60.0
        Seconds within which all shards must answer a request, including restarts of actors. After that, ShardError
        is raised.
    """
    check_integer("replicas", replicas, low=1)
    check_number("timeout", timeout, low=0.0, strict=True)
    plan = plan_shards(paths, shards, n_bits)
    actors = ShardActors(plan, replicas, threads, float(timeout))
    try:
        return ShardedIndex(plan, actors.ask, actors.close)
    except BaseException:
        actors.close()
        raise


class ShardedIndex:
    """Searches shards as if they were one ``HammingIndex``: same ids, distances and order. Read-only.

    ``open_shards`` returns one. It is a context manager; ``close`` ends the actors. Any number of threads may search.
    A search either covers all shards or raises an error.

    Attributes
    ----------
    n_bits : int
        Code length.
    model : str or None
        ``fingerprint_`` of the hasher that made the codes, if it is known.
    """

    def __init__(self, plan: ShardPlan, ask: Ask, close: Callable[[], None] = lambda: None) -> None:
        self.n_bits, self.model, self._n = plan.n_bits, plan.model, plan.n
        self._ask, self.close = ask, close
        self.has_string_ids = self._check_ids()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._n

    def __contains__(self, one: Any) -> bool:
        return len(self._found(as_ids([one], 1))[0]) > 0

    def __repr__(self) -> str:
        return f"ShardedIndex(n_bits={self.n_bits}): {len(self):,} rows"

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
    ) -> tuple[NDArray[Any], Ids]:
        """Return the k nearest rows of every query as (D, I). See ``HammingIndex.search``."""
        check_integer("k", k, low=1)
        Q = self._queries(queries)
        return merge(self._ask("search", Q, k, *_filters(ids, labels)), len(Q), k)

    def radius_search(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """Return all rows at distance ≤ ``radius`` as (lims, D, I). See ``HammingIndex.radius_search``."""
        if limit is not None:
            check_integer("limit", limit, low=1)
        return self.within(queries, radius, ids, labels=labels, limit=limit)[1:]

    def radius_count(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
    ) -> NDArray[np.int64]:
        """Return the number of rows at distance ≤ ``radius`` for every query, without listing them."""
        return self.within(queries, radius, ids, labels=labels, limit=0)[0]

    def within(
        self,
        queries: ArrayLike,
        radius: int,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], Ids]:
        """Return the number of rows within the radius of each query, then (lims, D, I) as ``radius_search`` does."""
        check_integer("radius", radius, low=0)
        Q = self._queries(queries)
        return merge_radius(self._ask("within", Q, radius, *_filters(ids, labels), limit), len(Q), limit)

    # --- content ---

    def snapshot(self) -> Self:
        """Return the index itself: its content never changes."""
        return self

    @property
    def ids(self) -> Ids:
        """All ids, in order of position. They are fetched from the shards."""
        return np.concatenate(self._ask("ids"))

    def get(self, ids: ArrayLike) -> Bytes:
        """Return the codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        return self._known(ids)[0]

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """Return the labels of some ids; None for a row without a label (the array then has dtype object)."""
        return label_array(self.label_list(ids))

    def label_list(self, ids: ArrayLike) -> list[Any]:
        """Return the labels of some ids as a list."""
        return self._known(ids)[1]

    def sample_ids(self, n: int, rng: np.random.Generator) -> Ids:
        """Return up to n distinct ids drawn at random."""
        found = np.concatenate(self._ask("sample_ids", n, int(rng.integers(2**31))))
        return rng.choice(found, min(n, len(found)), replace=False)

    def working_bytes(self, n_queries: int, k: int) -> int:
        """Return the memory that a search for the k nearest takes here, beside its results."""
        return 0

    def check_model(self, fingerprint: str | None, what: str = "the given model") -> None:
        """Raise ModelMismatchError if the codes come from another model. See ``HammingIndex.check_model``."""
        modelfile.check_same_model(self.model, fingerprint, "the index", what)

    def _queries(self, queries: ArrayLike) -> Bytes:
        return check_unused_bits(check_codes(queries, self.n_bits, "queries"), self.n_bits, "queries")

    def _found(self, ids: Ids) -> tuple[NDArray[np.int64], Bytes, list[Any]]:
        """Return the places in ``ids`` of those that are in the index, with their codes and labels."""
        answers = self._ask("get", ids)
        labels = [label for answer in answers for label in answer[2]]
        return np.concatenate([a[0] for a in answers]), np.concatenate([a[1] for a in answers]), labels

    def _known(self, ids: ArrayLike) -> tuple[Bytes, list[Any]]:
        given = as_ids(ids)
        distinct, where = np.unique(given, return_inverse=True) if len(given) else (given, np.empty(0, np.int64))
        places, found, labels = self._found(distinct)
        if len(places) < len(distinct):
            missing = np.setdiff1d(np.arange(len(distinct)), places)
            raise KeyError(f"id {distinct[missing].tolist()[0]!r} is not in the index")
        order = np.argsort(places)[where]
        return found[order], [labels[i] for i in order.tolist()]

    def _check_ids(self) -> bool:
        """Return whether the ids are strings. Raise InputError if they are mixed, or an id occurs twice."""
        ranges = [one for answer in self._ask("id_ranges") for one in answer]
        strings = {isinstance(first, str) for first, _, _ in ranges}
        if len(strings) > 1:
            raise InputError("the ids are integers in some files and strings in others")
        ordered = sorted((first, last) for first, last, _ in ranges)
        apart = all(a[1] < b[0] for a, b in itertools.pairwise(ordered))
        if not (apart and all(ascending for *_, ascending in ranges)):
            every = np.sort(self.ids)
            again = every[1:][every[1:] == every[:-1]]
            if len(again):
                raise InputError(
                    f"the id {again.tolist()[0]!r} occurs twice, and a search could not tell the rows apart: give "
                    "each row an id of its own, or search .npy files of codes"
                )
        return strings.pop()


class ShardActor(Shard):
    """A shard in a process of its own."""

    def __init__(self, ranges: Sequence[FileRange], n_bits: int, threads: int) -> None:
        # Read when numba is loaded. A runtime_env could set it, too, but an actor with one cannot restart in a
        # process that Ray keeps ready.
        os.environ["NUMBA_NUM_THREADS"] = str(threads)
        super().__init__(ranges, n_bits)


class ShardActors:
    """Ray actors that hold the shards, each in one or more replicas."""

    def __init__(self, plan: ShardPlan, replicas: int, threads: int | None, timeout: float) -> None:
        ray = connected_ray("open_shards")
        n_actors = replicas * len(plan.shards)
        cpus = ray.cluster_resources().get("CPU", 0.0)
        n_threads = max(1, int(cpus) // n_actors) if threads is None else check_integer("threads", threads, low=1)
        start = ray.remote(ShardActor).options(
            num_cpus=0,  # a search must not wait for other work on the cluster to end
            scheduling_strategy="SPREAD",
            max_restarts=-1,
        )
        self.timeout = timeout
        self.replicas = [
            [start.remote(ranges, plan.n_bits, n_threads) for _ in range(replicas)] for ranges in plan.shards
        ]
        for some in (
            self.replicas[0][:1],
            self._all(),
        ):  # one compiles the kernels, the others find them in the cache
            self._wait_until_open(some)

    def _wait_until_open(self, actors: list[Any]) -> None:
        ray = import_ray()
        try:
            ray.get([actor.prepare.remote() for actor in actors])
        except ray.exceptions.RayTaskError as error:
            raise _own_error(error) from None
        except ray.exceptions.RayError as error:
            raise ShardError(f"a shard cannot be opened: {error}") from None

    def _all(self) -> list[Any]:
        return list(itertools.chain(*self.replicas))

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Return the answers of all shards, in order. A request to an actor that died is sent again.

        Raises the error of a shard, or ShardError if not all of them answer in time.
        """
        ray, end = import_ray(), time.monotonic() + self.timeout
        shared = [ray.put(arg) if isinstance(arg, np.ndarray) else arg for arg in args]  # once, not once per shard
        turn = random.randrange(len(self.replicas[0]))
        waiting = {i: self._send(i, turn, method, shared) for i in range(len(self.replicas))}
        answers: list[Any] = [None] * len(waiting)
        for attempt in itertools.count(turn + 1):
            lost: list[int] = []
            for i, request in waiting.items():
                try:
                    answers[i] = ray.get(request, timeout=max(0.0, end - time.monotonic()))
                except ray.exceptions.GetTimeoutError:
                    raise ShardError(f"shard {i} did not answer within {self.timeout:g} s") from None
                except ray.exceptions.RayTaskError as error:
                    raise _own_error(error) from None
                except ray.exceptions.RayError as error:  # the actor or its machine is gone
                    if getattr(error, "actor_init_failed", False) or time.monotonic() > end:
                        raise ShardError(f"shard {i} cannot be opened or reached: {error}") from None
                    lost.append(i)
            if not lost:
                return answers
            time.sleep(PAUSE)
            waiting = {i: self._send(i, attempt, method, shared) for i in lost}
        raise AssertionError

    def _send(self, i: int, turn: int, method: str, args: list[Any]) -> Any:
        actor = self.replicas[i][turn % len(self.replicas[i])]
        return getattr(actor, method).remote(*args)

    def close(self) -> None:
        """End the actors."""
        ray = import_ray()
        for actor in self._all():
            ray.kill(actor)
        self.replicas = []


def _own_error(error: Any) -> Exception:
    """Return the exception that was raised in an actor, without the actor's traceback if it is one of ours."""
    cause = error.cause
    return cause if isinstance(cause, DishError) else error


def _filters(ids: ArrayLike | None, labels: Iterable[Any] | None) -> tuple[Ids | None, list[Any] | None]:
    """Return the filters in a form that can be sent."""
    if isinstance(labels, str | bytes) or (labels is not None and not isinstance(labels, Iterable)):
        raise InputError(f"labels must be a list of labels, got {labels!r}")
    return None if ids is None else as_ids(ids), None if labels is None else list(labels)
