"""``backfill``: the least certain rows first, in steps that add up, resumable, and only within a family."""

import numpy as np
import pytest

from dish import DISH
from dish.errors import InputError, ModelMismatchError, UnsupportedError
from dish.io import backfill as module
from dish.io.backfill import backfill, least_certain
from dish.io.batch_jobs import encode_file
from dish.io.code_provenance import model_of
from dish.parallel import ALONE


@pytest.fixture(scope="module")
def setting():
    """Rows of five classes, a model of the first four, and a compatible one of all."""
    rng = np.random.default_rng(0)
    y = rng.integers(5, size=300)
    X = (rng.standard_normal((300, 6)) + 2 * rng.standard_normal((5, 6))[y]).astype(np.float32)
    options = {"n_bits": 20, "n_anchors": 30}
    old = DISH(**options).fit(X[y < 4], y[y < 4])
    return X, y, old, DISH(**options, random_state=1).fit(X, y, compatible_with=old)


@pytest.fixture
def path(setting, tmp_path):
    X, _, old, _ = setting
    encode_file(old, X, tmp_path / "codes.npy", ALONE)
    return tmp_path / "codes.npy"


def test_steps_add_up_to_all_codes_of_the_newer_model(setting, path):
    X, _, old, new = setting
    before, after = old.transform(X), new.transform(X)
    order = least_certain(new, before, np.arange(300))
    for step, remaining in enumerate((200, 100, 0)):
        found = backfill(new, X, path, 100)
        assert (found.encoded, found.remaining) == (100, remaining)
        done = order[: 100 * (step + 1)]
        codes = np.load(path)
        np.testing.assert_array_equal(codes[done], after[done])
        left = np.setdiff1d(np.arange(300), done)
        np.testing.assert_array_equal(codes[left], before[left])
        assert model_of(path) == (old if remaining else new).fingerprint_
    assert backfill(new, X, path, 100) == module.Backfilled(0, 0, 0)
    assert sorted(p.name for p in path.parent.iterdir()) == ["codes.npy", "codes.npy.model.json"]


def test_least_certain_rows_are_farthest_from_all_codewords(setting):
    X, _, old, new = setting
    packed = old.transform(X)
    words = old.transform(np.repeat(X[:1], 4, axis=0), labels=np.arange(4))
    bits = np.unpackbits(packed, axis=1)[:, None] != np.unpackbits(words, axis=1)
    from dish.encoder import geometry_positions

    at = np.setdiff1d(np.arange(20), geometry_positions(20, old.geometry_.n_bits))
    expected = bits[:, :, at].sum(2).min(1)
    np.testing.assert_array_equal(old.distance_to_classes(packed), expected)
    found = new.distance_to_classes(packed)[least_certain(new, packed, np.arange(300))]
    assert all(np.diff(found) <= 0)


def test_rows_with_labels_keep_the_codes_of_their_labels(setting, path):
    X, y, old, new = setting
    known = [label if label < 4 else None for label in y.tolist()]
    encode_file(old, X, path, ALONE, np.array(known, object))
    before = np.load(path)
    backfill(new, X, path, 300, np.array(known, object))
    same = (np.load(path) == before).all(axis=1)
    assert same[y < 4].all()
    assert not same[y == 4].all()


def test_a_run_that_was_killed_is_repeated(setting, path, monkeypatch):
    X, _, _, new = setting
    backfill(new, X, path, 50)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "note_model", killed)  # after the codes are replaced, before the note is written
        with pytest.raises(KeyboardInterrupt):
            backfill(new, X, path, 60)
    assert backfill(new, X, path, 250).remaining == 50  # it is not known which rows were done: it begins again
    assert backfill(new, X, path, 250).remaining == 0
    np.testing.assert_array_equal(np.load(path), new.transform(X))


def test_codes_that_were_written_again_are_encoded_again(setting, path):
    X, _, old, new = setting
    assert backfill(new, X, path, 200).remaining == 100
    encode_file(old, X, path, ALONE)
    assert backfill(new, X, path, 300).encoded == 300
    np.testing.assert_array_equal(np.load(path), new.transform(X))


def test_a_third_model_begins_again(setting, path):
    X, y, _, new = setting
    backfill(new, X, path, 200)
    third = DISH(n_bits=20, n_anchors=30, random_state=2).fit(X, y, compatible_with=new)
    assert backfill(third, X, path, 50).remaining == 250


def test_going_back_to_the_older_model_encodes_all_rows_again(setting, path):
    X, _, old, new = setting
    backfill(new, X, path, 50)
    assert backfill(old, X, path, 100).remaining == 200  # it is not told which rows the other model has changed
    assert backfill(old, X, path, 200).remaining == 0
    np.testing.assert_array_equal(np.load(path), old.transform(X))
    assert backfill(old, X, path, 1) == module.Backfilled(0, 0, 0)


def test_what_does_not_fit_is_refused(setting, path, tmp_path):
    X, y, _, new = setting
    stranger = DISH(n_bits=20, n_anchors=30, random_state=3).fit(X, y)
    before = np.load(path)
    with pytest.raises(ModelMismatchError, match="compatible_with"):
        backfill(stranger, X, path, 10)
    with pytest.raises(InputError, match="299 rows"):
        backfill(new, X[1:], path, 10)
    with pytest.raises(InputError, match="budget"):
        backfill(new, X, path, 0)
    np.testing.assert_array_equal(np.load(path), before)
    np.save(tmp_path / "unknown.npy", before)
    with pytest.raises(InputError, match="unknown"):
        backfill(new, X, tmp_path / "unknown.npy", 10)
    sets = DISH(n_bits=20, n_anchors=30).fit(X, np.eye(5, dtype=int)[y] | np.eye(5, dtype=int)[0])
    with pytest.raises(UnsupportedError, match="label sets"):
        sets.distance_to_classes(before)
