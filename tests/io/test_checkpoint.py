"""What identifies a fit in its checkpoint, and which fits cannot have one."""

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from dish import DISH

PARAMS = {"n_bits": 8, "n_anchors": 40, "init": "random", "device": "cpu"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 400)
    return rng.standard_normal((400, 6)) + 1.5 * rng.standard_normal((5, 6))[y], y


def cubic(X, A):
    return (X @ A.T + 1) ** 3


def make_cubic():
    return lambda X, A: (X @ A.T + 1) ** 3


def resumed(rows, folder, capsys, first, second):
    """Fit once with ``first``, again with ``second``; whether the second fit resumed, and its codes are right."""
    alone = DISH(**PARAMS, n_iter=4, **second()).fit(*rows)
    DISH(**PARAMS, n_iter=1, checkpoint=folder, **first()).fit(*rows)
    again = DISH(**PARAMS, n_iter=4, checkpoint=folder, verbose=1, **second()).fit(*rows)
    np.testing.assert_array_equal(again.codes_, alone.codes_)
    return "resumes after 1 iteration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: {"random_state": np.random.RandomState(3)}, lambda: {"random_state": np.random.RandomState(3)}),
        (lambda: {"kernel": cubic}, lambda: {"kernel": make_cubic()}),
        (lambda: {"nu": np.float64(1e-4)}, lambda: {"nu": 1e-4}),
        (lambda: {"lam": np.float32(0.5)}, lambda: {"lam": 0.5}),
    ],
    ids=["generator", "function", "scalar", "float32"],
)
def test_equal_parameters_resume_wherever_they_lie_in_memory(first, second, rows, tmp_path, capsys):
    kept = first(), second()  # alive together: equal addresses must not be what makes it work
    assert resumed(rows, tmp_path / "state", capsys, first, second)
    del kept


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"random_state": np.random.RandomState(3)}, {"random_state": np.random.RandomState(4)}),
        ({"kernel": cubic}, {"kernel": lambda X, A: (X @ A.T + 1) ** 2}),
        ({"nu": 1e-4}, {"nu": 2e-4}),
    ],
    ids=["generator", "function", "number"],
)
def test_other_parameters_are_refused(first, second, rows, tmp_path):
    DISH(**PARAMS, checkpoint=tmp_path / "state", **first).fit(*rows)
    with pytest.raises(ValueError, match="other parameters or labels"):
        DISH(**PARAMS, checkpoint=tmp_path / "state", **second).fit(*rows)


def test_starting_over_leaves_the_old_state_until_there_is_a_new_one(rows, tmp_path, capsys):
    hasher = DISH(**PARAMS, n_iter=2, checkpoint=tmp_path / "state", verbose=1)
    codes = hasher.fit(*rows).codes_
    capsys.readouterr()
    np.testing.assert_array_equal(hasher.fit(*rows, resume=False).codes_, codes)
    assert "resumes" not in capsys.readouterr().err
    hasher.fit(*rows)
    assert "resumes after 2" in capsys.readouterr().err


def test_fits_that_could_not_be_resumed_take_no_checkpoint(rows, tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint works with loss .* GaussianNB cannot be kept"):
        DISH(**PARAMS, loss=GaussianNB(), checkpoint=tmp_path / "a").fit(*rows)
    with pytest.raises(ValueError, match="checkpoint needs a random_state that a later fit can repeat"):
        DISH(**PARAMS, random_state=None, checkpoint=tmp_path / "b").fit(*rows)
    assert not any(tmp_path.iterdir())
