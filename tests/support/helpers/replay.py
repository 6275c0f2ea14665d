"""Random sequences of changes, kills, compactions and restarts of an index, compared with a dictionary."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dish import HammingIndex
from dish.codes import pack
from dish.errors import InputError
from dish.web.index_writer import IndexWriter

Items = dict[Any, tuple[bytes, Any]]  # id → code and label, in insertion order
MODEL = "0123456789abcdef"
STEPS = (  # where a process can be killed, besides between two changes
    ("journal", "append"),
    ("journal", "expect"),
    ("file", "write"),
    ("journal", "rebase"),
    ("journal", "close"),
)


WEIGHTS = {"change": 10, "invalid": 1, "compact": 1, "restart": 1, "kill": 2}
WEIGHTS |= dict.fromkeys(("killed change", "killed compact", "killed close"), 2)


class KilledError(BaseException):
    """The process was killed."""


class Replay:
    """An index with its writer, and the items that it must have."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.folder, self.copies = random.Random(seed), folder, 0
        self.n_bits = self.rng.choice([8, 20, 64])
        self.items: Items = {}
        self.kills = self.acknowledged = 0
        index = HammingIndex(self.n_bits, model=MODEL)
        start = self.new_record(self.rng.choice([0, 1, 3]), self.rng.choice([int, str]))
        if start["ids"]:
            index.add(self.codes(start), start["ids"], labels=start["labels"])
            self.items = self.after(start)
        self.here().mkdir(parents=True)
        index.save(self.here() / "ix.dish")
        self.writer = self.opened()

    def here(self) -> Path:
        """The folder of the files; a kill continues with a copy of it."""
        return self.folder / str(self.copies)

    def opened(self) -> IndexWriter:
        writer = IndexWriter(self.here() / "ix.dish")
        writer.start(MODEL)
        return writer

    # --- changes, and the dictionary after them ---

    def new_record(self, n: int, kind: type) -> dict[str, Any]:
        ids: list[Any] = [kind(number) for number in self.rng.sample(range(-1, 7), n)]
        bits = np.array([self.rng.choice([-1, 1]) for _ in range(n * self.n_bits)]).reshape(n, self.n_bits)
        labels = [self.rng.choice([None, "a", "1", 1, 2.5, True]) for _ in ids]
        return {"ids": ids, "codes": pack(bits).tobytes().hex(), "labels": self.rng.choice([None, labels])}

    def codes(self, record: dict[str, Any]) -> np.ndarray[Any, Any]:
        return np.frombuffer(bytes.fromhex(record["codes"]), np.uint8).reshape(len(record["ids"]), -1)

    def after(self, record: dict[str, Any]) -> Items:
        items = dict(self.items)
        for i, id in enumerate(record["ids"]):
            items.pop(id, None)
            if "codes" in record:
                label = record["labels"][i] if record["labels"] else None
                items[id] = self.codes(record)[i].tobytes(), label
        return items

    def kind(self) -> type:
        return type(next(iter(self.items))) if self.items else self.rng.choice([int, str])

    def change(self) -> None:
        """Upsert or remove items. Removals are frequent: an empty index accepts either kind of id."""
        if self.items and self.rng.random() < 0.5:
            record = {"ids": self.rng.sample(sorted(self.items), self.rng.randint(1, len(self.items)))}
        else:
            record = self.new_record(self.rng.randint(1, 3), self.kind())
        self.pending = self.after(record)
        self.writer.change(record)
        self.items = self.pending
        self.acknowledged += 1

    def invalid_change(self) -> None:
        """A change that must be refused."""
        kind = self.kind()
        record = self.new_record(2, kind)
        record["ids"] = self.rng.choice([[kind(1), kind(1)], [1, "2"], [2**63, 1], [True, 1]])
        try:
            self.writer.change(record)
        except InputError:
            return
        raise AssertionError(f"accepted {record['ids']}")

    # --- kills ---

    def killed(self, action: Callable[[], None]) -> None:
        """Run an action and kill the process before or after one step of it, if it gets there."""
        owner, name = self.rng.choice(STEPS)
        before = self.rng.random() < 0.5
        target = getattr(self.writer, owner)
        step, self.pending = getattr(target, name), self.items

        def die(*args: Any, **options: Any) -> Any:
            result = None if before else step(*args, **options)
            self.copy()
            del target.__dict__[name]
            raise KilledError(result)

        setattr(target, name, die)
        try:
            action()
        except KilledError:
            self.restart_killed()
        else:
            target.__dict__.pop(name, None)
            if action == self.writer.close:
                self.writer = self.opened()

    def copy(self) -> None:
        """Copy the files as they are at this moment, as after kill -9: locks and memory are gone."""
        source = self.here()
        self.copies += 1
        shutil.copytree(source, self.here())

    def restart_killed(self) -> None:
        """Start from the copy. A change that was not acknowledged may be there or not."""
        self.writer.release()
        self.writer, self.kills = self.opened(), self.kills + 1
        if self.pending != self.items and self.found() == list(self.pending.items()):
            self.items = self.pending

    # --- the sequence ---

    def found(self) -> list[tuple[Any, tuple[bytes, Any]]]:
        """The items of the index, in order."""
        snapshot = self.writer.index.snapshot()
        ids = snapshot.ids.tolist()
        codes, labels = (snapshot.get(ids), snapshot.labels_of(ids).tolist()) if ids else ([], [])
        return [(id, (code.tobytes(), label)) for id, code, label in zip(ids, codes, labels, strict=True)]

    def check(self, what: str) -> None:
        found, wanted = self.found(), list(self.items.items())
        assert repr(found) == repr(wanted), (what, found, wanted)  # repr: 1 and True differ

    def run(self, n_actions: int) -> None:
        """Run random actions and compare the items after each."""
        for _ in range(n_actions):
            what = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if what == "change":
                self.change()
            elif what == "invalid":
                self.invalid_change()
            elif what == "compact":
                self.writer.compact()
            elif what == "restart":
                self.writer.close()
                self.writer = self.opened()
            elif what == "kill":
                self.pending = self.items
                self.copy()
                self.restart_killed()
            else:
                actions = {"change": self.change, "compact": self.writer.compact, "close": self.writer.close}
                self.killed(actions[what.split()[1]])
            self.check(what)
        self.writer.close()
        assert sorted(path.name for path in self.here().iterdir()) == ["ix.dish"]
        index = HammingIndex.load(self.here() / "ix.dish")
        assert index.ids.tolist() == list(self.items)


def replay(folder: Path, seed: int, n_actions: int = 25) -> tuple[int, int]:
    """Run one random sequence; return the numbers of kills and of acknowledged changes."""
    one = Replay(folder, seed)
    try:
        one.run(n_actions)
    finally:
        one.writer.release()
        shutil.rmtree(folder)
    return one.kills, one.acknowledged
