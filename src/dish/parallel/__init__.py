"""Several processes that learn together, each with a contiguous range of the rows, in the order of their ranks.

``transport`` sends, ``ranks`` shares out rows and errors, ``selection`` finds the k largest values of all processes.
"""

from dish.parallel.ranks import ALONE, Ranks, current, from_environment
from dish.parallel.selection import between, kth_largest, sample
from dish.parallel.transport import RankError

__all__ = ["ALONE", "RankError", "Ranks", "between", "current", "from_environment", "kth_largest", "sample"]
