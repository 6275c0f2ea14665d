"""Other hashing methods behind the same contract: a registry name → hasher class."""

from __future__ import annotations

from dish.baselines.agh import AGH
from dish.baselines.bre import BRE
from dish.baselines.cnnbh import CNNBH
from dish.baselines.cnnh import CNNH
from dish.baselines.cosdish import COSDISH
from dish.baselines.dgh import DGH
from dish.baselines.dhn import DHN
from dish.baselines.fasth import FastH
from dish.baselines.ftde import FTDE
from dish.baselines.isoh import IsoH
from dish.baselines.itq import CCAITQ, PCAITQ
from dish.baselines.ksh import KSH
from dish.baselines.lfh import LFH
from dish.baselines.lsh import LSH
from dish.baselines.minhash import MinHash
from dish.baselines.mlh import MLH
from dish.baselines.sdh import SDH
from dish.baselines.sfhc import SFHC
from dish.baselines.sh import SH
from dish.baselines.tsh import TSH
from dish.hasher import Hasher

REGISTRY: dict[str, type[Hasher]] = {
    "lsh": LSH,
    "minhash": MinHash,
    "sh": SH,
    "isoh": IsoH,
    "pca_itq": PCAITQ,
    "cca_itq": CCAITQ,
    "agh": AGH,
    "dgh": DGH,
    "bre": BRE,
    "mlh": MLH,
    "ksh": KSH,
    "tsh": TSH,
    "fasth": FastH,
    "sdh": SDH,
    "lfh": LFH,
    "cosdish": COSDISH,
    "cnnh": CNNH,
    "sfhc": SFHC,
    "cnnbh": CNNBH,
    "dhn": DHN,
    "ftde": FTDE,
}
