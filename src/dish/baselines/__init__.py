"""Other hashing methods behind the same contract: a registry name → hasher class."""

from __future__ import annotations

from dish.base import Hasher
from dish.baselines.fasth import FastH
from dish.baselines.ksh import KSH
from dish.baselines.lsh import LSH
from dish.baselines.sdh import SDH

REGISTRY: dict[str, type[Hasher]] = {
    "lsh": LSH,
    "ksh": KSH,
    "sdh": SDH,
    "fasth": FastH,
}
