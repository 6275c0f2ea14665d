"""The hash table from keys to rows, against a dictionary."""

import numpy as np
import pytest

from dish.index import hashtable

KEYS = {
    "random": lambda rng, n: rng.integers(-(2**63), 2**63 - 1, (n, 1)),
    "high bits only": lambda rng, n: np.arange(n)[:, None] << 50,
    "two words": lambda rng, n: rng.integers(0, 40, (n, 2)),  # many keys repeat
}


@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_found_by_key(kind):
    keys = KEYS[kind](np.random.default_rng(0), 3000)
    slots, rows, replaced = hashtable.empty_slots(len(keys)), {}, []
    for row, key in enumerate(map(tuple, keys.tolist())):
        replaced.append(rows.get(key, -1))
        rows[key] = row
    found = [hashtable.put(slots, keys, start, start + 1000) for start in range(0, 3000, 1000)]
    assert np.concatenate(found).tolist() == replaced
    assert hashtable.find(slots, keys, keys).tolist() == [rows[tuple(key)] for key in keys.tolist()]
    absent = np.full((1, keys.shape[1]), -7)
    assert hashtable.find(slots, keys, absent).tolist() == [rows.get(tuple(absent[0].tolist()), -1)]


@pytest.mark.parametrize("n", [0, 1, 8, 9, 1000])
def test_tables_are_at_most_half_full(n):
    slots = hashtable.empty_slots(n)
    assert len(slots) >= 2 * n
    assert len(slots) & (len(slots) - 1) == 0
    assert (slots == -1).all()
