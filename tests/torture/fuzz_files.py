"""Damaged and hostile files: every one must be refused in one line, or give the right answer.

Models, indexes (read and mapped), checkpoints, journals of the service and data files (.npy, .npz, .csv, .parquet)
are flipped, cut, spliced, extended and given absurd numbers; the head of a model or an index is also edited as JSON
and its checksum put right. A problem is a traceback, a wrong answer from a file with a checksum, more than 40
seconds, or a gigabyte more of memory.

    python tests/torture/fuzz_files.py --mutations 3000 --seconds 600 --output fuzz.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mutations import MUTATIONS, craft

import dish.cli as cli
from dish import DISHK, HammingIndex, load
from dish.baselines import REGISTRY
from dish.web.index_writer import IndexWriter
from dish.web.journal import journal_path

SECONDS, MEGABYTES, ADDRESS_SPACE = 40, 1024, 12 << 30
PARAMS = {"n_bits": 16, "n_anchors": 20, "init": "random"}


class HangError(BaseException):
    """A file took too long."""


def prepare(base: Path) -> None:
    """Small whole files of every kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    X = (rng.standard_normal((120, 5)) + 2 * rng.standard_normal((3, 5))[y]).astype(np.float32)
    np.save(base / "X.npy", X)
    np.save(base / "y.npy", y)
    np.savez(base / "X.npz", X=X, y=y)
    np.savez_compressed(base / "packed.npz", X=X, y=y)
    np.savetxt(base / "X.csv", X, delimiter=",", header="a,b,c,d,e", comments="")
    pq.write_table(pa.table({f"f{i}": X[:, i] for i in range(5)}), base / "X.parquet")
    pq.write_table(pa.table({"v": pa.array(list(X))}), base / "lists.parquet")
    hasher = DISHK(**PARAMS, n_iter=3).fit(X, y)
    hasher.save(base / "dish.dish")
    DISHK(**PARAMS, n_iter=3, checkpoint=base / "state").fit(X, y)
    REGISTRY["pca_itq"](n_bits=4).fit(X).save(base / "itq.dish")
    B = hasher.transform(X)
    np.save(base / "queries.npy", B[:3])
    ids = rng.permutation(120)
    for name, given in {"numbers": ids, "strings": [f"id {i}" for i in ids]}.items():
        ix = HammingIndex(16, model=hasher.fingerprint_)
        ix.add(B, given, labels=[None if k else f"label {k}" for k in y])
        ix.save(base / f"{name}.dish")
    shutil.copy(base / "numbers.dish", base / "served.dish")
    writer = IndexWriter(base / "served.dish")
    writer.start(hasher.fingerprint_)
    for k in range(12):
        labels = ["a", "b"] if k % 2 else None
        writer.change({"ids": [1000 + k, 2000 + k], "codes": B[k : k + 2].tobytes().hex(), "labels": labels})
    writer.release()  # killed


# --- what is done with a file: a word if all is well, else a text in capitals ---------------------------------


def command(*args: Any) -> tuple[int, str, str]:
    """The command line in this process: its exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["dish", *map(str, args)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def refusal(code: int, err: str) -> str:
    """A refusal is exit code 2 and a last line that begins with the program's name."""
    lines = err.strip().splitlines()
    if code == 2 and lines and lines[-1].startswith("dish: ") and "Traceback" not in err:
        return "refused"
    return f"NO CLEAR REFUSAL: exit code {code}, {lines[-1:]}"


class Fuzz:
    """The whole files, the right answers, and a folder to work in."""

    def __init__(self, base: Path, work: Path) -> None:
        self.base, self.work, self.out = base, work, work / "out.npy"
        self.hasher = load(base / "dish.dish")
        self.X, self.y = np.load(base / "X.npy"), np.load(base / "y.npy")
        self.queries = np.load(base / "queries.npy")
        self.codes = {name: load(base / f"{name}.dish").transform(self.X) for name in ("dish", "itq")}
        self.hits = {name: self.search(base / f"{name}.dish")[1] for name in ("numbers", "strings")}
        self.resumed = DISHK(**PARAMS, n_iter=6).fit(self.X, self.y).codes_

    def search(self, path: Path) -> tuple[int, str, str]:
        """Through the command line."""
        return command("search", path, "--codes", self.base / "queries.npy", "--json")

    def model(self, name: str, data: bytes, crafted: bool) -> str:
        """Information about it, and codes by it."""
        path = self.work / "m.dish"
        path.write_bytes(data)
        command("info", path)
        code, _, err = command("encode", path, self.base / "X.npy", "-o", self.out)
        if code:
            return refusal(code, err)
        return "accepted" if crafted or np.array_equal(np.load(self.out), self.codes[name]) else "WRONG CODES"

    def index(self, name: str, data: bytes, crafted: bool) -> str:
        """Search it from the command line, and as a mapped file, whose checksum is not read."""
        path = self.work / "ix.dish"
        path.write_bytes(data)
        code, out, err = self.search(path)
        verdict = refusal(code, err) if code else "accepted" if crafted or out == self.hits[name] else "WRONG HITS"
        try:
            ix = HammingIndex.load(path, mmap=True)
            ix.search(self.queries, 5)
            ix.radius_search(self.queries, 3)
            ids = ix.ids[:3]
            ix.get(ids)
            ix.labels_of(ids)
            if ix.n_bits == 16 and len(ids):
                ix.add(self.queries[:1], ["new"] if isinstance(ids[0], str) else [10**7])
            ix.remove(ids)
            return f"{verdict}, mapped: searched"
        except (ValueError, OSError, ImportError):
            return f"{verdict}, mapped: refused"

    def data(self, name: str, data: bytes) -> str:
        """Encode it, and learn from it."""
        path = self.work / name
        path.write_bytes(data)
        code, _, err = command("encode", self.base / "dish.dish", path, "-o", self.out)
        first = refusal(code, err) if code else "encoded"
        model = self.work / "m2.dish"
        options = ("--bits", 8, "--anchors", 10, "--iter", 1)
        code, _, err = command("fit", path, self.base / "y.npy", "-o", model, *options)
        shutil.rmtree(f"{model}.checkpoint", ignore_errors=True)
        return f"{first}, {refusal(code, err) if code else 'learned from'}"

    def state(self, part: str, change: Callable[[bytes], bytes]) -> str:
        """Resume a fit from it."""
        folder = self.work / "state"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.base / "state", folder)
        file = next(folder.glob(part))
        file.write_bytes(change(file.read_bytes()))
        try:
            hasher = DISHK(**PARAMS, n_iter=6, checkpoint=folder).fit(self.X, self.y)
        except (ValueError, OSError):
            return "refused"
        return "resumed" if np.array_equal(hasher.codes_, self.resumed) else "WRONG CODES after a resumed fit"

    def journal(self, data: bytes) -> str:
        """Open it as the service does: all changes, or an error."""
        for old in self.work.glob("served.dish*"):
            old.unlink()
        shutil.copy(self.base / "served.dish", self.work)
        journal_path(self.work / "served.dish").write_bytes(data)
        try:
            writer = IndexWriter(self.work / "served.dish")
        except (ValueError, OSError):
            return "refused"
        try:
            writer.start(self.hasher.fingerprint_)
        except (ValueError, OSError):
            return "refused"
        finally:
            writer.release()
        return "opened" if len(writer.index) == 144 else "WRONG NUMBER OF ITEMS"

    def kinds(self) -> dict[str, Callable[[np.random.Generator], str]]:
        """What is done with a mutation of each kind of file."""
        files = {file.name: file.read_bytes() for file in self.base.iterdir() if file.is_file()}

        def mutated(name: str, rng: np.random.Generator) -> bytes:
            return MUTATIONS[int(rng.integers(len(MUTATIONS)))](files[name], rng)

        def change(rng: np.random.Generator, crafting: bool) -> Callable[[bytes], bytes]:
            chosen = craft if crafting else MUTATIONS[int(rng.integers(len(MUTATIONS)))]
            return lambda data: chosen(data, rng)

        kinds: dict[str, Callable[[np.random.Generator], str]] = {
            "checkpoint": lambda rng: self.state("state.dish", change(rng, False)),
            "checkpoint, crafted": lambda rng: self.state("state.dish", change(rng, True)),
            "checkpoint's codes": lambda rng: self.state("codes-*.npy", change(rng, False)),
            "journal": lambda rng: self.journal(mutated("served.dish.journal.db", rng)),
        }
        for name in ("dish", "itq"):
            kinds[f"model {name}"] = lambda rng, n=name: self.model(n, mutated(f"{n}.dish", rng), False)
            kinds[f"model {name}, crafted"] = lambda rng, n=name: self.model(n, craft(files[f"{n}.dish"], rng), True)
        for name in ("numbers", "strings"):
            kinds[f"index of {name}"] = lambda rng, n=name: self.index(n, mutated(f"{n}.dish", rng), False)
            kinds[f"index of {name}, crafted"] = lambda rng, n=name: self.index(
                n, craft(files[f"{n}.dish"], rng), True
            )
        for name in ("X.npy", "X.npz", "packed.npz", "X.csv", "X.parquet", "lists.parquet"):
            kinds[name] = lambda rng, n=name: self.data(n, mutated(n, rng))
        return kinds


def attempt(work: Callable[[np.random.Generator], str], rng: np.random.Generator) -> str:
    """The verdict on one file, its time and its memory included."""
    memory, start = resident(), time.monotonic()
    signal.alarm(SECONDS)
    try:
        verdict = work(rng)
    except HangError:
        verdict = f"MORE THAN {SECONDS} SECONDS"
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/dish/" in f.filename]
        place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"
        verdict = f"TRACEBACK {type(error).__name__} at {place}: {str(error)[:90]}"
    finally:
        signal.alarm(0)
    if time.monotonic() - start > SECONDS / 2:
        verdict += " SLOW"
    if resident() - memory > MEGABYTES:
        verdict += f" MEMORY: {resident() - memory} MB more"
    return verdict


def resident() -> int:
    """Megabytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


def stop(*_: Any) -> None:
    """Time is over."""
    raise HangError


def main() -> int:
    """All kinds in turn until the mutations or the seconds are used up; the exit status is 1 after a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="kinds of files whose name contains this")
    parser.add_argument("--output", type=Path, help="where the result goes, as JSON")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    tally: dict[str, Counter[str]] = {}
    problems: list[str] = []
    start, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        base, work = Path(folder) / "base", Path(folder) / "work"
        base.mkdir()
        work.mkdir()
        prepare(base)
        kinds = {name: k for name, k in Fuzz(base, work).kinds().items() if asked.only is None or asked.only in name}
        while done < asked.mutations and time.monotonic() - start < asked.seconds:
            name = list(kinds)[done % len(kinds)]
            verdict = attempt(kinds[name], np.random.default_rng([asked.seed, done]))
            tally.setdefault(name, Counter())[verdict] += 1
            if any(len(word) > 2 and word.isupper() for word in verdict.split()):
                problems.append(f"mutation {done} of seed {asked.seed}, {name}: {verdict}")
            done += 1
    result = {
        "what": "damaged and hostile files: refused in one line, or a right answer",
        "mutations": done,
        "asked_for": asked.mutations,
        "seconds": round(time.monotonic() - start, 1),
        "problems": len(problems),
        "first_problems": problems[:20],
        "by_kind": {name: dict(counts.most_common()) for name, counts in sorted(tally.items())},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
