"""Several processes that learn together, each with a contiguous range of the rows, in the order of their ranks.

``transport`` sends messages, ``ranks`` divides rows and raises errors on all processes, ``selection`` finds the k
largest values of all processes. With one process every operation is trivial, and torch is not needed.
"""

from dish.parallel.ranks import ALONE, Ranks, current, from_environment
from dish.parallel.selection import between, kth_largest, sample

__all__ = ["ALONE", "Ranks", "between", "current", "from_environment", "kth_largest", "sample"]
