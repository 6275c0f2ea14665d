"""Encoding and search on several machines; learning on several machines is ``parallel`` (torchrun).

``encode``: a callable for Arrow tables that any engine can run; ``encode_files``: a resumable job on Ray Data.
``shards``: read-only ranges of files; ``search``: shards in Ray actors; ``cluster``: connects to Ray, or starts it.
"""

from dish.ray.cluster import cluster
from dish.ray.encode import EncodeBatch
from dish.ray.encode_files import encode_files
from dish.ray.search import ShardedIndex, open_shards

__all__ = ["EncodeBatch", "ShardedIndex", "cluster", "encode_files", "open_shards"]
