"""The three classes that store codes for Fast C-BCD, with one signature."""

import torch

from dish.cbcd import DenseColumns, PackedColumns, TorchColumns

FORMS = {
    "packed": PackedColumns,
    "dense": DenseColumns,
    "torch": lambda packed, r: TorchColumns(torch.from_numpy(packed), r),  # on the CPU, in place of a GPU
}
