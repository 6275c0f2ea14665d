import numpy as np
import pytest

from dish.checks import check_flag, check_integer, check_number, check_option, check_random_state
from dish.errors import InputError


@pytest.mark.parametrize("value", [0, 11, 2.0, True, "3", None, float("nan")])
def test_integers_outside_the_bounds_are_refused(value):
    with pytest.raises(InputError, match=r"^n must be a whole number from 1 to 10, got "):
        check_integer("n", value, 1, 10)


def test_integers_within_the_bounds():
    assert [check_integer("n", value, 1, 10) for value in (1, 10, np.int64(3))] == [1, 10, 3]
    assert type(check_integer("n", np.int64(3), 1)) is int
    with pytest.raises(InputError, match="n must be a whole number of at least 1, got 0"):
        check_integer("n", 0, 1)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), True, "1", None])
def test_numbers_below_the_bound_or_not_finite_are_refused(value):
    with pytest.raises(InputError, match=r"^nu must be a number of at least 0, got "):
        check_number("nu", value, 0)


def test_strict_bounds_exclude_the_bound():
    assert check_number("nu", 0, 0) == 0
    assert check_number("nu", np.float32(0.5), 0, strict=True) == 0.5
    with pytest.raises(InputError, match="nu must be a number above 0, got 0"):
        check_number("nu", 0, 0, strict=True)


def test_flags_are_not_strings_or_numbers():
    assert check_flag("freeze", np.True_) is True
    for value in ("no", 1, None):
        with pytest.raises(InputError, match="freeze must be True or False, got"):
            check_flag("freeze", value)


def test_options_are_listed():
    assert check_option("init", "random", ("spectral", "random")) == "random"
    for value in ("zeros", 3, None):
        with pytest.raises(InputError, match="init must be one of 'spectral', 'random' or codes, got"):
            check_option("init", value, ("spectral", "random"), " or codes")


@pytest.mark.parametrize("value", [-1, 2**32, 1.5, "seed"])
def test_impossible_seeds_are_refused(value):
    with pytest.raises(InputError, match=r"random_state must be None, a whole number from 0 to 2\*\*32 - 1"):
        check_random_state(value)


def test_seeds_and_generators():
    generator = np.random.RandomState(3)
    assert check_random_state(generator) is generator
    assert check_random_state(7).randint(1000) == np.random.RandomState(7).randint(1000)
