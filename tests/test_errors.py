"""The exception classes of the package."""

import inspect

import pytest

from dish import errors

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_derive_from_dish_error_and_a_builtin_exception(cls):
    assert issubclass(cls, errors.DishError)
    assert cls is errors.DishError or issubclass(cls, ValueError | TypeError | RuntimeError)
    assert cls.__doc__.endswith(".")


def test_the_builtin_bases_that_callers_rely_on():
    for cls in (errors.InputError, errors.DataFileError, errors.ModelFileError, errors.ImageError):
        assert issubclass(cls, ValueError)
    assert issubclass(errors.UnsupportedError, TypeError)
    assert issubclass(errors.RankError, RuntimeError)
