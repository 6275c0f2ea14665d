"""Other hashing methods behind the same contract: a registry name → hasher class."""

from __future__ import annotations

from dish.base import Hasher
from dish.baselines.lsh import LSH

REGISTRY: dict[str, type[Hasher]] = {"lsh": LSH}
