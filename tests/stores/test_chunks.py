"""Chunks of codes find every code within a small radius."""

import numpy as np
import pytest

from dish import codes
from dish.stores.chunks import CHUNK_BITS, _neighbours, candidates, places
from helpers.codes import all_distances, make_codes


@pytest.mark.parametrize("n_bits", [1, 2, 20, 64, 131])
def test_chunks_do_not_overlap_and_fit_into_an_int(n_bits):
    spans = places(n_bits)
    assert len(spans) == min(3, n_bits)
    assert all(0 < width <= CHUNK_BITS for _, width in spans)
    covered = [bit for start, width in spans for bit in range(start, start + width)]
    assert len(set(covered)) == len(covered)
    assert set(covered) <= set(range(n_bits))


def test_neighbours_are_the_integers_within_a_hamming_distance():
    for flips in range(4):
        found = _neighbours(0b01101, 5, flips)
        assert sorted(found) == [x for x in range(32) if (x ^ 0b01101).bit_count() <= flips]


@pytest.mark.parametrize("radius", [0, 2, 3, 5, 6])
def test_every_code_within_the_radius_has_a_listed_chunk(radius):
    B = make_codes("clustered", 500, 24)
    bits = codes.export(B, 24, "bits")
    listed = candidates(bits[0], radius)
    assert (listed is None) == (radius >= 6)
    near = np.flatnonzero(all_distances(B[:1], B)[0] <= radius)
    assert len(near) > 1
    for row in near if listed is not None else []:
        parts = [int(bits[row][start : start + width], 2) for start, width in places(24)]
        assert any(part in allowed for part, allowed in zip(parts, listed, strict=True))
