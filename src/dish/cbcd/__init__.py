"""Fast C-BCD, Algorithm 1 of the paper: the H-step, which learns the codes one bit (column) at a time.

``algorithm1`` is the algorithm: one column, one sweep, the objective. ``columns``, ``packed`` and ``torch_columns``
store the codes for it (readable, as bits on the CPU, on a GPU). ``cuda_sweep`` runs a whole sweep as one GPU kernel.
``codewords`` applies the algorithm to one row per class.
"""

from dish.cbcd.algorithm1 import MAX_STEPS, columns_for, objective, sweep, update_column
from dish.cbcd.columns import Columns, DenseColumns, Sweep
from dish.cbcd.packed import PackedColumns
from dish.cbcd.torch_columns import TorchColumns, pack_signs

__all__ = [
    "MAX_STEPS",
    "Columns",
    "DenseColumns",
    "PackedColumns",
    "Sweep",
    "TorchColumns",
    "columns_for",
    "objective",
    "pack_signs",
    "sweep",
    "update_column",
]
