"""Shares of the rows, and errors that all processes raise together."""

from itertools import pairwise

import pytest

from dish.parallel import ALONE, Ranks
from helpers.processes import succeed


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_error_in_one_process_reaches_all_with_its_reason(world, tmp_path):
    succeed(["sections", *(["disagree"] if world == 2 else [])], world, tmp_path)
    assert (tmp_path / "seen-1.txt").read_text().splitlines() == [
        "before: ValueError: no such file",
        "between: OSError: disk full",
        "after: KeyError: 'last'",
        "nested: ValueError: inside",
        "silent: AssertionError: ",
    ]
    for rank in {0, world - 1} - {1}:
        assert (tmp_path / f"seen-{rank}.txt").read_text().splitlines() == [
            f"before: RankError: process 1 of {world} stopped: no such file",
            f"between: RankError: process 1 of {world} stopped: OSError: disk full",
            f"after: RankError: process 1 of {world} stopped: KeyError: 'last'",
            f"nested: RankError: process 1 of {world} stopped: inside",
            f"silent: RankError: process 1 of {world} stopped: AssertionError: ",
        ]


def test_one_process_has_all_rows_and_raises_its_own_errors():
    assert ALONE.first
    assert ALONE.offset_and_total(5) == (0, 5)
    assert ALONE.my_rows(100) == slice(0, 100)
    with pytest.raises(KeyError), ALONE.raise_together():
        raise KeyError("unchanged")


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [1, 5, 100_000, 1_280_000])
def test_shares_cover_all_rows_once(n, world):
    shares = [Ranks(rank, world).my_rows(n) for rank in range(world)]
    assert shares[0].start == 0
    assert shares[-1].stop == n
    assert all(a.stop == b.start for a, b in pairwise(shares))
    sizes = [s.stop - s.start for s in shares]
    assert max(sizes) - min(sizes) <= max(1, 2 * 8192 if n > 4 * 8192 * world else 1)
