"""Build the wheel and the sdist, and use the wheel as a stranger would: `make dist`.

In a fresh environment without the repository: install, the README's lines, uninstall; without torch: encode and
search, also from a read-only installation by a user without rights, where this is run as root. Prints sizes and
times.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIGHT = ("numpy", "scipy", "scikit-learn", "numba", "safetensors", "typer", "rich")
NOBODY = 65534
DATA = """
import numpy as np
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
for name, rows in (("", slice(200, 800)), ("q", slice(200))):
    np.save(f"X{name}.npy", X[rows].astype(np.float32)); np.save(f"y{name}.npy", y[rows])
"""
ENCODE = ("dish encode model.dish Xq.npy -o OUT/c.npy", "dish index OUT/c.npy -o OUT/ix.dish",
          "dish search OUT/ix.dish --codes OUT/c.npy -k 2")  # fmt: skip


def main() -> None:
    """Build, check, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the fresh environments")
    given = parser.parse_args()
    wheel, sdist = build(given.output)
    check_content(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="dish-dist-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        whole = Environment(folder / "whole", given.python, folder)
        whole.install(f"-c{ROOT / 'constraints.txt'}", str(wheel))
        whole.python("-c", DATA)
        whole.run_readme()
        whole.tell("pip install dish-hash")
        light = Environment(folder / "light", given.python, folder)
        light.install("--no-deps", str(wheel))
        light.install(f"-c{ROOT / 'constraints.txt'}", *LIGHT)
        light.lines(ENCODE, folder)
        light.tell("without torch")
        light.check_read_only(given.python)
        for environment in (whole, light):
            environment.check_uninstall()
    print(f"written: {wheel} ({wheel.stat().st_size >> 10} KB), {sdist} ({sdist.stat().st_size >> 10} KB)")


def build(output: Path) -> tuple[Path, Path]:
    """The wheel is built from the sdist, so that the sdist is known to hold all that it takes."""
    for old in output.glob("dish_hash-*"):
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(output), str(ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    return wheel, sdist


def check_content(wheel: Path, sdist: Path) -> None:
    """Every module and the page's files are in both, and nothing else is in the wheel."""
    sources = {f.relative_to(ROOT / "src").as_posix() for f in (ROOT / "src/dish").rglob("*") if f.is_file()}
    wanted = {name for name in sources if "__pycache__" not in name}
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if inside != wanted:
        raise SystemExit(f"the wheel differs from src: {sorted(inside ^ wanted)[:10]}")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    missing = {f"src/{name}" for name in wanted} - packed
    if missing:
        raise SystemExit(f"the sdist lacks {sorted(missing)[:10]}")


def arguments_of(line: str, out: Path) -> list[str]:
    """The arguments of a dish command, comments dropped; OUT is the folder to write to."""
    return shlex.split(line.replace("OUT", str(out)), comments=True)[1:]


class Environment:
    """A fresh virtual environment, used from a folder that is not the repository."""

    def __init__(self, path: Path, python: str, folder: Path) -> None:
        subprocess.run([python, "-m", "venv", str(path)], check=True)
        self.path, self.folder, self.seconds = path, folder, 0.0
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        self.variables = kept | {"PATH": f"{path / 'bin'}:{os.environ['PATH']}", "DISH_CACHE": str(folder / "cache")}

    def python(self, *arguments: str) -> str:
        """What Python prints."""
        return self._run([str(self.path / "bin/python"), *arguments])

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(words, cwd=self.folder, env=self.variables, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)[:200]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def install(self, *what: str) -> None:
        """pip install, timed."""
        start = time.perf_counter()
        self.python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)
        self.seconds += time.perf_counter() - start

    def run_readme(self) -> None:
        """The README's Python lines, then its dish commands, but those that run for ever."""
        text = (ROOT / "README.md").read_text()
        blocks = re.findall(r"(<!-- not run[^>]*-->\n+)?^```(\w*)\n(.*?)^```$", text, re.S | re.M)
        ran = 0
        for skipped, kind, code in blocks:
            if skipped:
                continue
            ran += 1
            if kind == "python":
                self.python("-c", code)
            else:
                self.lines([line for line in code.splitlines() if line.startswith("dish ")], self.folder)
        where = self.python("-c", "import dish; print(dish.__file__)").strip()
        if not ran or not where.startswith(str(self.path)):
            raise SystemExit(f"{ran} blocks of the README were run, by {where}")

    def lines(self, lines: tuple[str, ...] | list[str], out: Path) -> None:
        """Shell lines that begin with dish."""
        for line in lines:
            self._run([str(self.path / "bin/dish"), *arguments_of(line, out)])

    def tell(self, what: str) -> None:
        """Size and time."""
        size = sum(f.stat().st_size for f in self.path.rglob("*") if f.is_file() and not f.is_symlink())
        print(f"{what}: {size / 1e6:,.0f} MB in {self.seconds:.0f} s", flush=True)

    def check_read_only(self, python: str) -> None:
        """Encode and search where nothing of the installation can be written, without a home, as nobody."""
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            print("read-only installation as another user: not tried (needs root and setpriv)")
            return
        user = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
        ]
        if subprocess.run([*user, os.path.realpath(python), "-c", ""], capture_output=True).returncode:
            print(f"read-only installation as another user: not tried ({python} may not be run by others)")
            return
        out = self.folder / "nobody"
        out.mkdir()
        os.chown(out, NOBODY, NOBODY)
        for file in self.path.rglob("*"):
            if not file.is_symlink():
                file.chmod(file.stat().st_mode & 0o555 | 0o444)
        for line in ENCODE:
            self._run([*user, str(self.path / "bin/dish"), *arguments_of(line, out)])
        for file in [self.path, *self.path.rglob("*")]:
            if not file.is_symlink():
                file.chmod(file.stat().st_mode | 0o200)
        print("read-only installation as another user: encodes and searches")

    def check_uninstall(self) -> None:
        """After uninstalling there is nothing left to import."""
        self.python("-m", "pip", "uninstall", "--quiet", "--yes", "dish-hash")
        find = "import importlib.util as u; print(u.find_spec('dish'))"
        if self.python("-c", find).strip() != "None":
            raise SystemExit("uninstalled, but `import dish` still finds something")


if __name__ == "__main__":
    main()
