"""Other hashing methods behind the same contract: a registry name → hasher class."""

from __future__ import annotations

from dish.base import Hasher
from dish.baselines.agh import AGH
from dish.baselines.dgh import DGH
from dish.baselines.isoh import IsoH
from dish.baselines.itq import CCAITQ, PCAITQ
from dish.baselines.lsh import LSH
from dish.baselines.minhash import MinHash
from dish.baselines.sh import SH

REGISTRY: dict[str, type[Hasher]] = {
    "lsh": LSH,
    "minhash": MinHash,
    "sh": SH,
    "isoh": IsoH,
    "pca_itq": PCAITQ,
    "cca_itq": CCAITQ,
    "agh": AGH,
    "dgh": DGH,
}
