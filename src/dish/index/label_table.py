"""The distinct labels of an index, numbered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.labels import is_missing


class Vocabulary:
    """Label values by number. It only grows: a number means the same label to every snapshot that has it.

    1, 1.0, True and "1" are four labels.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.values: list[Any] = []
        self._numbers: dict[tuple[type, Any], int] = {}
        self.numbers_of(list(values))

    def numbers_of(self, labels: list[Any]) -> NDArray[np.int32]:
        """The numbers of labels, new ones entered; −1 for None."""
        numbers, values = self._numbers, self.values
        for key in dict.fromkeys(zip(map(type, labels), labels, strict=True)):
            if key[1] is not None and key not in numbers:
                values.append(key[1])  # before its number is known: readers never meet a number without a value
                numbers[key] = len(values) - 1
        numbered = (numbers.get(key, -1) for key in zip(map(type, labels), labels, strict=True))
        return np.fromiter(numbered, np.int32, len(labels))

    def compacted(self, numbers: NDArray[np.int32]) -> tuple[Vocabulary, NDArray[np.int32]]:
        """The labels that are still used, and ``numbers`` by their new numbers."""
        used = np.unique(numbers[numbers >= 0])
        renumbered = np.full(len(self.values) + 1, -1, np.int32)  # the last entry is for −1
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        return Vocabulary([self.values[i] for i in used.tolist()]), renumbered[numbers]

    def to_json(self) -> NDArray[np.uint8]:
        """The values as JSON text."""
        return np.frombuffer(json.dumps(self.values).encode(), np.uint8)


def from_json(text: NDArray[np.uint8], numbers: NDArray[Any]) -> tuple[Vocabulary, NDArray[np.int32]]:
    """The vocabulary of a file, and the labels of its rows by its numbers.

    Early versions wrote a missing label (NaN) as a value of its own; such a row has no label.
    """
    values = json.loads(bytes(text))
    if not isinstance(values, list) or set(map(type, values)) - {str, int, float, bool, type(None)}:
        raise InputError("its list of labels is not a list of numbers and strings")
    if len(numbers) and not -1 <= numbers.min() <= numbers.max() < len(values):
        raise InputError("a label is not in its list of labels")
    listed = np.empty(len(values), object)
    listed[:] = values
    gaps = is_missing(listed).tolist()
    vocabulary = Vocabulary()
    entered = vocabulary.numbers_of([None if gap else value for value, gap in zip(values, gaps, strict=True)])
    if (entered == np.arange(len(values))).all():
        return vocabulary, numbers  # as they are, perhaps in the file
    return vocabulary, np.append(entered, np.int32(-1))[numbers]
