"""The distinct labels of an index, by number."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError


class LabelTable:
    """Distinct labels and their indices. It only grows, so an index means the same label in every snapshot.

    Labels of different types differ: 1, 1.0, True and "1" are four labels.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.values: list[Any] = []
        self._indices: dict[tuple[type, Any], int] = {}
        self.indices_of(list(values))

    def indices_of(self, labels: list[Any]) -> NDArray[np.int32]:
        """Return the index of each label, adding new labels to the table; −1 for None."""
        indices, values = self._indices, self.values
        for key in dict.fromkeys(zip(map(type, labels), labels, strict=True)):
            if key[1] is not None and key not in indices:
                values.append(key[1])  # before the index is published: readers never see an index without a value
                indices[key] = len(values) - 1
        found = (indices.get(key, -1) for key in zip(map(type, labels), labels, strict=True))
        return np.fromiter(found, np.int32, len(labels))

    def mask(self, labels: list[Any]) -> NDArray[np.bool_]:
        """Return which indices mean one of these labels; the last entry, for index −1, whether None is among them.

        Labels that are not in the table are ignored.
        """
        chosen = np.zeros(len(self.values) + 1, bool)
        keys = zip(map(type, labels), labels, strict=True)
        chosen[
            [-1 if key[1] is None else self._indices[key] for key in keys if key[1] is None or key in self._indices]
        ] = True
        return chosen

    def compacted(self, indices: NDArray[np.int32]) -> tuple[LabelTable, NDArray[np.int32]]:
        """Return a table of only the labels in ``indices``, and ``indices`` renumbered for it."""
        used = np.unique(indices[indices >= 0])
        renumbered = np.full(len(self.values) + 1, -1, np.int32)  # the last entry is for −1
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        return LabelTable([self.values[i] for i in used.tolist()]), renumbered[indices]

    def to_json(self) -> NDArray[np.uint8]:
        """Return the labels as JSON text."""
        return np.frombuffer(json.dumps(self.values).encode(), np.uint8)

    @classmethod
    def from_json(cls, text: NDArray[np.uint8]) -> LabelTable:
        """Return the table that ``to_json`` wrote."""
        values = json.loads(bytes(text))
        if not isinstance(values, list) or set(map(type, values)) - {str, int, float, bool}:
            raise InputError("its list of labels is not a list of numbers and strings")
        table = cls(values)
        if len(table.values) < len(values):
            raise InputError("its list of labels contains a label twice")
        return table
