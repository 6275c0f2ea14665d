"""Other hashing methods behind the same contract: a registry name → hasher class."""

from __future__ import annotations

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

REGISTRY: dict[str, type[Hasher]] = {
    "sign": CentredSign,
    "lsh": LSH,
    "minhash": MinHash,
    "sh": SH,
    "isoh": IsoH,
    "pca_rr": PCARR,
    "pca_itq": PCAITQ,
    "cca_itq": CCAITQ,
    "whitened_itq": WhitenedITQ,
    "agh": AGH,
    "dgh": DGH,
    "bre": BRE,
    "mlh": MLH,
    "ksh": KSH,
    "tsh": TSH,
    "fasth": FastH,
    "sdh": SDH,
    "hc_sdh": HCSDH,
    "fssh": FSSH,
    "lfh": LFH,
    "cosdish": COSDISH,
    "logistic_class": LogisticClass,
    "logistic_lsh": LogisticLSH,
    "cnnh": CNNH,
    "sfhc": SFHC,
    "cnnbh": CNNBH,
    "dhn": DHN,
    "ftde": FTDE,
    "dtsh": DTSH,
    "hashnet": HashNet,
    "greedyhash": GreedyHash,
    "adsh": ADSH,
    "csq": CSQ,
    "dpn": DPN,
    "orthohash": OrthoHash,
}
