"""Encoding and search on several machines; learning on several machines is ``parallel`` (torchrun).

``encode``: a callable for Arrow tables that any engine can run; ``jobs``: a resumable job on Ray Data that uses it.
``shards``: read-only ranges of files; ``search``: shards in Ray actors; ``connection``: connect to Ray, or start it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dish.lazy import attach

__all__ = ["EncodeBatch", "ShardedIndex", "cluster", "encode_files", "open_shards"]

if TYPE_CHECKING:
    from dish.ray.connection import cluster
    from dish.ray.encode import EncodeBatch
    from dish.ray.jobs import encode_files
    from dish.ray.search import ShardedIndex, open_shards

__getattr__, __dir__ = attach(  # a shard must not wait for what encoding imports
    __name__,
    {
        "EncodeBatch": "dish.ray.encode",
        "cluster": "dish.ray.connection",
        "encode_files": "dish.ray.jobs",
        "ShardedIndex": "dish.ray.search",
        "open_shards": "dish.ray.search",
    },
)
