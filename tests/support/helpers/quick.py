"""How many steps fits of DISH take: most of the time of a fit to few rows."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dish.posterior import projection, regression

ALL = (regression.UPDATES, projection.STEPS, projection.SET_STEPS)
FEW = (30, 10, 10)


@contextmanager
def few_steps(steps: tuple[int, int, int] = FEW) -> Iterator[None]:
    """Fits learn from few steps. For tests of everything but the quality of the codes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "UPDATES", steps[0])
        patch.setattr(projection, "STEPS", steps[1])
        patch.setattr(projection, "SET_STEPS", steps[2])
        yield
