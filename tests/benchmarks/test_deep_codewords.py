"""benchmarks/deep_codewords.py on tiny images."""

import sys
from pathlib import Path

import numpy as np

from dish import codes
from dish.deep.codewords import CodewordFit
from helpers.deep import patches, tiny

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import deep_codewords


def test_one_network_has_codes_of_several_lengths(monkeypatch):
    monkeypatch.setattr(CodewordFit, "fit_head", CodewordFit.fit_head)  # keep_heads replaces it
    monkeypatch.setattr("dish.deep.codewords.MIN_ROWS", 100)
    X, y = patches(160, 0)
    heads = deep_codewords.keep_heads((8,))
    hasher = tiny(n_bits=16, epochs=2, random_state=0).fit(X, y)
    long = hasher.transform(X)
    short = deep_codewords.with_head(hasher, heads[8]).transform(X)
    assert (long.shape[1], short.shape[1]) == (2, 1)
    assert len(np.unique(codes.unpack(short, 8), axis=0)) >= 2
