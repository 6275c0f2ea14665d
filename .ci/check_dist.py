"""Build the wheel and the sdist, and test the wheel in fresh environments without the repository: `make dist`.

With all dependencies: install, run the README's code, uninstall. The distribution without torch, with its extras
for tables and the service: encode and search; if run as root, also from a read-only installation by a user without
rights.
Prints sizes and times.
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
    wheel, sdist = build(ROOT, "dish_hash", given.output)
    light_wheel, light_sdist = build(ROOT / "light", "dish_hash_encode", given.output)
    check_content(wheel, sdist)
    check_content(light_wheel, light_sdist)
    with tempfile.TemporaryDirectory(prefix="dish-dist-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        whole = Environment(folder / "whole", given.python, folder)
        whole.install(f"-c{ROOT / 'constraints.txt'}", str(wheel))
        whole.python("-c", DATA)
        whole.run_readme()
        whole.report("pip install dish-hash")
        light = Environment(folder / "light", given.python, folder)
        light.install(f"-c{ROOT / 'constraints.txt'}", str(light_wheel))
        light.report("pip install dish-hash-encode")
        light.install(f"-c{ROOT / 'constraints.txt'}", f"{light_wheel}[serve,tables]")
        light.check_no_torch()
        light.lines(ENCODE, folder)
        light.report("pip install 'dish-hash-encode[serve,tables]'")
        light.check_read_only(given.python)
        whole.check_uninstall("dish-hash")
        light.check_uninstall("dish-hash-encode")
    for file in (wheel, sdist, light_wheel, light_sdist):
        print(f"written: {file} ({file.stat().st_size >> 10} KB)")


def build(project: Path, name: str, output: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, which shows that the sdist is complete."""
    for old in output.glob(f"{name}-*"):
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(output), str(project)], check=True, stdout=subprocess.DEVNULL
    )
    (wheel,), (sdist,) = output.glob(f"{name}-*.whl"), output.glob(f"{name}-*.tar.gz")
    return wheel, sdist


def check_content(wheel: Path, sdist: Path) -> None:
    """Check that both contain every file of the package, and that the wheel contains nothing else."""
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
    """The arguments of a dish command without comments; OUT becomes the output folder."""
    return shlex.split(line.replace("OUT", str(out)), comments=True)[1:]


class Environment:
    """A fresh virtual environment, used from a folder outside the repository."""

    def __init__(self, path: Path, python: str, folder: Path) -> None:
        subprocess.run([python, "-m", "venv", str(path)], check=True)
        self.path, self.folder, self.seconds = path, folder, 0.0
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        self.variables = kept | {"PATH": f"{path / 'bin'}:{os.environ['PATH']}", "DISH_CACHE": str(folder / "cache")}

    def python(self, *arguments: str) -> str:
        """Run Python and return its output."""
        return self._run([str(self.path / "bin/python"), *arguments])

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(words, cwd=self.folder, env=self.variables, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)[:200]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def install(self, *what: str) -> None:
        """Run pip install and add its time."""
        start = time.perf_counter()
        self.python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)
        self.seconds += time.perf_counter() - start

    def run_readme(self) -> None:
        """Run the README's Python blocks and dish commands, except those marked as not run."""
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
            raise SystemExit(f"{ran} blocks of the README were run, by the installation in {where}")

    def lines(self, lines: tuple[str, ...] | list[str], out: Path) -> None:
        """Run dish commands."""
        for line in lines:
            self._run([str(self.path / "bin/dish"), *arguments_of(line, out)])

    def report(self, what: str) -> None:
        """Print the size of the environment and the time of its installation."""
        size = sum(f.stat().st_size for f in self.path.rglob("*") if f.is_file() and not f.is_symlink())
        print(f"{what}: {size / 1e6:,.0f} MB in {self.seconds:.0f} s", flush=True)

    def check_read_only(self, python: str) -> None:
        """Encode and search as another user, without a home folder, from a read-only installation."""
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            print("read-only installation as another user: not tested (needs root and setpriv)")
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
            print(f"read-only installation as another user: not tested (other users may not run {python})")
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

    def check_no_torch(self) -> None:
        """Check that no dependency has installed torch, and that the service can be imported."""
        found = self.python("-c", "import importlib.util as u, dish.web.server; print(u.find_spec('torch'))")
        if found.strip() != "None":
            raise SystemExit("the distribution without torch has installed torch")

    def check_uninstall(self, name: str) -> None:
        """Uninstall, and check that nothing is left to import."""
        self.python("-m", "pip", "uninstall", "--quiet", "--yes", name)
        find = "import importlib.util as u; print(u.find_spec('dish'))"
        if self.python("-c", find).strip() != "None":
            raise SystemExit("uninstalled, but `import dish` still finds something")


if __name__ == "__main__":
    main()
