"""Other hashing methods behind the same contract: ``REGISTRY``, a name → hasher class.

Classes are loaded on first use; ``REGISTRY`` loads all of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dish.baselines.adsh import ADSH
    from dish.baselines.agh import AGH
    from dish.baselines.bre import BRE
    from dish.baselines.cnnbh import CNNBH
    from dish.baselines.cnnh import CNNH
    from dish.baselines.cosdish import COSDISH
    from dish.baselines.csq import CSQ
    from dish.baselines.dgh import DGH
    from dish.baselines.dhn import DHN
    from dish.baselines.dpn import DPN
    from dish.baselines.dtsh import DTSH
    from dish.baselines.fasth import FastH
    from dish.baselines.fssh import FSSH
    from dish.baselines.ftde import FTDE
    from dish.baselines.greedyhash import GreedyHash
    from dish.baselines.hashnet import HashNet
    from dish.baselines.hc_sdh import HCSDH
    from dish.baselines.isoh import IsoH
    from dish.baselines.itq import CCAITQ, PCAITQ
    from dish.baselines.ksh import KSH
    from dish.baselines.lfh import LFH
    from dish.baselines.logistic_class import LogisticClass
    from dish.baselines.logistic_lsh import LogisticLSH
    from dish.baselines.lsh import LSH
    from dish.baselines.minhash import MinHash
    from dish.baselines.mlh import MLH
    from dish.baselines.orthohash import OrthoHash
    from dish.baselines.pca_rr import PCARR
    from dish.baselines.sdh import SDH
    from dish.baselines.sfhc import SFHC
    from dish.baselines.sh import SH
    from dish.baselines.sign import CentredSign
    from dish.baselines.tsh import TSH
    from dish.baselines.whitened_itq import WhitenedITQ
    from dish.hasher import Hasher

    REGISTRY: dict[str, type[Hasher]]

NAMES = {  # → class
    "sign": "CentredSign",
    "lsh": "LSH",
    "minhash": "MinHash",
    "sh": "SH",
    "isoh": "IsoH",
    "pca_rr": "PCARR",
    "pca_itq": "PCAITQ",
    "cca_itq": "CCAITQ",
    "whitened_itq": "WhitenedITQ",
    "agh": "AGH",
    "dgh": "DGH",
    "bre": "BRE",
    "mlh": "MLH",
    "ksh": "KSH",
    "tsh": "TSH",
    "fasth": "FastH",
    "sdh": "SDH",
    "hc_sdh": "HCSDH",
    "fssh": "FSSH",
    "lfh": "LFH",
    "cosdish": "COSDISH",
    "logistic_class": "LogisticClass",
    "logistic_lsh": "LogisticLSH",
    "cnnh": "CNNH",
    "sfhc": "SFHC",
    "cnnbh": "CNNBH",
    "dhn": "DHN",
    "ftde": "FTDE",
    "dtsh": "DTSH",
    "hashnet": "HashNet",
    "greedyhash": "GreedyHash",
    "adsh": "ADSH",
    "csq": "CSQ",
    "dpn": "DPN",
    "orthohash": "OrthoHash",
}
_OTHERS = {  # class → its module, where that is not the class in small letters
    "HCSDH": "hc_sdh",
    "CCAITQ": "itq",
    "PCAITQ": "itq",
    "LogisticClass": "logistic_class",
    "LogisticLSH": "logistic_lsh",
    "PCARR": "pca_rr",
    "CentredSign": "sign",
    "WhitenedITQ": "whitened_itq",
}
__all__ = [
    "ADSH",
    "AGH",
    "BRE",
    "CCAITQ",
    "CNNBH",
    "CNNH",
    "COSDISH",
    "CSQ",
    "DGH",
    "DHN",
    "DPN",
    "DTSH",
    "FSSH",
    "FTDE",
    "HCSDH",
    "KSH",
    "LFH",
    "LSH",
    "MLH",
    "PCAITQ",
    "PCARR",
    "REGISTRY",
    "SDH",
    "SFHC",
    "SH",
    "TSH",
    "CentredSign",
    "FastH",
    "GreedyHash",
    "HashNet",
    "IsoH",
    "LogisticClass",
    "LogisticLSH",
    "MinHash",
    "OrthoHash",
    "WhitenedITQ",
]


def __getattr__(name: str) -> Any:
    if name == "REGISTRY":
        return globals().setdefault(name, {key: __getattr__(kind) for key, kind in NAMES.items()})
    if name in NAMES.values():
        return getattr(importlib.import_module(f"dish.baselines.{_OTHERS.get(name, name.lower())}"), name)
    raise AttributeError(f"module 'dish.baselines' has no attribute {name!r}")
