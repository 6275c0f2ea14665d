"""Other hashing methods behind the same contract: a registry name → hasher class."""

from __future__ import annotations

from dish.base import Hasher
from dish.baselines.bre import BRE
from dish.baselines.cosdish import COSDISH
from dish.baselines.lfh import LFH
from dish.baselines.lsh import LSH
from dish.baselines.mlh import MLH
from dish.baselines.tsh import TSH

REGISTRY: dict[str, type[Hasher]] = {
    "lsh": LSH,
    "bre": BRE,
    "mlh": MLH,
    "tsh": TSH,
    "lfh": LFH,
    "cosdish": COSDISH,
}
