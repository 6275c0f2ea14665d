"""Rival hashing methods with the same contract as ours, one per file: ``REGISTRY[name]`` is the class.

A class's module is named after the method and imported when the class is first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dish.hasher import Hasher

__all__ = ["REGISTRY"]

CLASS_NAMES = {
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


class LazyClasses(Mapping[str, "type[Hasher]"]):
    """Method name → class, imported on first access. Iterating over the names imports nothing."""

    def __getitem__(self, name: str) -> type[Hasher]:
        class_name = CLASS_NAMES[name]  # a KeyError for unknown names, before anything is imported
        found: type[Hasher] = getattr(importlib.import_module(f"dish.baselines.{name}"), class_name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in CLASS_NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(CLASS_NAMES)

    def __len__(self) -> int:
        return len(CLASS_NAMES)


REGISTRY = LazyClasses()
