"""The distribution dish-hash-encode: the same code without torch, which encodes, searches and serves."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dish import DISH
from dish.install import NEED_TORCH

ROOT = Path(__file__).parents[1]
FOR_DEVELOPERS = {"dev", "docs", "engines"}
TORCH = ("torch", "functorch", "nvidia", "triton", "dish_hash", "__editable__")


def project(path):
    return tomllib.loads((ROOT / path).read_text())["project"]


def test_it_is_dish_hash_without_torch_and_what_needs_it():
    whole, light = project("pyproject.toml"), project("light/pyproject.toml")
    same = ("version", "requires-python", "license", "authors", "classifiers", "scripts")
    assert {key: light[key] for key in same} == {key: whole[key] for key in same}
    assert light["dependencies"] == [line for line in whole["dependencies"] if not line.startswith("torch")]
    extras = whole["optional-dependencies"]
    left = {name: lines for name, lines in extras.items() if name not in FOR_DEVELOPERS | NEED_TORCH}
    assert light["optional-dependencies"] == left
    tools = (tomllib.loads((ROOT / path).read_text())["tool"] for path in ("pyproject.toml", "light/pyproject.toml"))
    assert len({json.dumps(tool["setuptools"]) for tool in tools}) == 1


def needed(lines):
    """The names of all distributions that requirements install, with those that they need themselves."""
    found, todo = set(), [(Requirement(line), "") for line in lines]
    while todo:
        one, extra = todo.pop()
        name = canonicalize_name(one.name)
        if (one.marker is not None and not one.marker.evaluate({"extra": extra})) or (name, *one.extras) in found:
            continue
        found.add((name, *one.extras))
        try:
            own = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        todo += [(Requirement(line), chosen) for line in own for chosen in ("", *one.extras)]
    return {name for name, *_ in found}


def test_no_extra_pulls_in_torch():
    light = project("light/pyproject.toml")
    lines = [*light["dependencies"], *(line for some in light["optional-dependencies"].values() for line in some)]
    names = needed(lines)
    assert {"numpy", "fastapi", "starlette", "pyarrow", "llvmlite"} <= names
    assert not {name for name in names if name.startswith(("torch", "nvidia", "triton", "dish-hash"))}
    assert "torch" in needed(project("pyproject.toml")["dependencies"])


def outside():
    """The environment variables of a process that does not see the repository."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def install(folder):
    """A fresh environment with the light distribution, and the packages that the tests use, but not torch."""
    wheel = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder / "dist",
        folder / "src/light",
    ]
    shutil.copytree(ROOT / "src", folder / "src/src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    shutil.copytree(ROOT / "light", folder / "src/light", symlinks=True, ignore=shutil.ignore_patterns("build"))
    shutil.copy(ROOT / "LICENSE", folder / "src")
    subprocess.run(wheel, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    (built,) = (folder / "dist").glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", built], check=True, env=outside())
    own = next((folder / "venv/lib").glob("python*")) / "site-packages"
    for place in {sysconfig.get_path("purelib"), *site.getsitepackages()}:
        for item in Path(place).iterdir():
            if not item.name.startswith(TORCH) and item.suffix != ".pth" and not (own / item.name).exists():
                (own / item.name).symlink_to(item)
    return python


def run(python, *words):
    """A process outside the repository that sees only the environment."""
    done = subprocess.run([python, *map(str, words)], capture_output=True, text=True, env=outside(), cwd="/")
    return done.returncode, done.stdout, done.stderr


def serve_once(python, folder):
    """The answer of `dish serve` to a search for the first row."""
    files = ["--model", folder / "m.dish", "--index", folder / "ix.dish", "--port", "0"]
    with subprocess.Popen(
        [python, "-m", "dish", "serve", *files],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=outside(),
        cwd="/",
    ) as server:
        try:
            url = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
            body = json.dumps({"vector": np.load(folder / "X.npy")[0].tolist(), "k": 1}).encode()
            request = urllib.request.Request(f"{url}/search", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        finally:
            server.terminate()


@pytest.mark.long
def test_a_fresh_installation_encodes_searches_and_serves_without_torch(blobs, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y = blobs
    X = X.astype(np.float32)
    hasher = DISH(n_bits=16, n_anchors=20).fit(X, y)
    hasher.save(tmp_path / "m.dish")
    np.save(tmp_path / "X.npy", X)
    pq.write_table(pa.table({"id": range(len(X)), "vector": list(X)}), tmp_path / "t.parquet")
    python = install(tmp_path)
    code, out, _ = run(python, "-c", "import importlib.util as u, dish; print(u.find_spec('torch'), dish.__file__)")
    assert (code, out.split()[0], str(tmp_path / "venv") in out) == (0, "None", True)
    model, codes, index = tmp_path / "m.dish", tmp_path / "c.npy", tmp_path / "ix.dish"
    for words in (
        ("encode", model, tmp_path / "t.parquet", "-o", codes, "--id-column", "id"),
        ("index", codes, "-o", index, "--ids", tmp_path / "c.ids.npy"),
        ("search", index, "--codes", codes, "-k", 1),
    ):
        code, out, err = run(python, "-m", "dish", *words)
        assert code == 0, err
    assert "query 0: 0 (0)" in out
    np.testing.assert_array_equal(np.load(codes), hasher.transform(X))
    assert serve_once(python, tmp_path)["distances"] == [0]
    own = next((tmp_path / "venv/lib").glob("python*")) / "site-packages"
    for name in ("pyarrow", "prometheus_client"):
        (own / name).unlink()
    code, _, err = run(python, "-m", "dish", "encode", model, tmp_path / "t.parquet", "-o", codes)
    assert (code, "pip install 'dish-hash-encode[tables]'" in err) == (2, True), err
    code, _, err = run(python, "-m", "dish", "serve", "--model", model, "--index", index)
    assert (code, "prometheus_client, which is not installed: pip install 'dish-hash-encode[serve]'" in err) == (
        2,
        True,
    ), err
