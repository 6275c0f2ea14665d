"""Every code block of the README and the docs runs, or states why it does not.

The Python blocks of a page run in order, in one namespace, in a folder with small data (below). Every line of a shell
block must be a `dish` command; it runs in this process. A block after `<!-- not run: reason -->` is skipped. A block
after `<!-- needs: package -->` runs if that package is installed. A page with slow blocks contains
`<!-- slow page -->`. `make test-engines`, where all engines are installed, runs every block of a page that contains
`<!-- engines page -->`.
"""

import ast
import importlib.util
import inspect
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import dish
from helpers.stores import address_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?:not run: (?P<reason>[^>]+?)|needs: (?P<package>\w+)) -->\n+)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.S | re.M,
)


@dataclass
class Block:
    """A fenced block. ``reason`` says why it does not run; None if it does."""

    page: Path
    line: int
    kind: str
    code: str
    reason: str | None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page):
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        package = found["package"]
        missing = package is not None and importlib.util.find_spec(package) is None
        reason = f"{package} is not installed here" if missing else found["reason"]
        yield Block(page, line, found["kind"], found["code"], reason)


def commands_of(code):
    """The commands of a shell block, continuation lines joined and comments dropped."""
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


BLOCKS = {page: list(blocks_of(page)) for page in PAGES}
RUN = [page for page in PAGES if any(block.reason is None for block in BLOCKS[page])]
SLOW, ENGINES = "<!-- slow page -->", "<!-- engines page -->"
SERVER = "postgresql://me@localhost/db"


def marks_of(page):
    """The marks of the test that runs a page."""
    server = any(SERVER in block.code and block.reason is None for block in BLOCKS[page])
    return [pytest.mark.slow] * (SLOW in page.read_text()) + [pytest.mark.postgres] * server


def test_every_fence_belongs_to_a_block():
    for page, blocks in BLOCKS.items():
        assert 2 * len(blocks) == len(re.findall("^ *```", page.read_text(), re.M)), page
    assert {block.kind for blocks in BLOCKS.values() for block in blocks} <= {"python", "sh", ""}


@pytest.fixture
def prepared(digits, tmp_path, monkeypatch):
    """A folder with the files, and a namespace with the arrays, that the pages use."""
    X, y, Xq, yq = digits
    Xdb, ydb = X[600:800].astype(np.float32), y[600:800]
    X, y = X[:600].astype(np.float32), y[:600]
    monkeypatch.chdir(tmp_path)
    names = [f"row-{i}" for i in range(len(X))]
    for name, array in {"X": X, "y": y, "Xdb": Xdb, "ydb": ydb, "Xq": Xq, "yq": yq}.items():
        np.save(f"{name}.npy", array)
    for folder in ("photos", "other-photos"):
        for label in ("cat", "dog"):
            Path(folder, label).mkdir(parents=True)
            for i in range(4):
                _write_picture(Path(folder, label, f"{i}.png"), seed=i + 10 * (label == "dog"))
    Path("shards").mkdir()
    for i in range(2):
        np.save(f"shards/part-{i}.npy", X[300 * i : 300 * (i + 1)])
    _write_table(Path("docs.parquet"), doc=names, embedding=list(X), topic=[f"topic {v}" for v in y])
    gaps = {"embedding": [None, *X[1:]], "topic": [f"topic {v}" for v in y[:-1]] + [None]}
    _write_table(Path("gaps.parquet"), doc=names, **gaps)
    np.save("new.npy", np.zeros((2, 8), np.uint8))
    np.save("new.ids.npy", ["row-0", "row-new"])
    np.save("gone.npy", ["row-1"])
    arrays = {"np": np, "X": X, "y": y, "Xdb": Xdb, "Xq": Xq, "yq": yq}
    return arrays | {"names": names, "allowed": names[:50], "ids": names[:10]}


def _write_table(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)


def _write_picture(path, seed):
    from PIL import Image

    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)).save(path)


@pytest.mark.filterwarnings("ignore:n_anchors")
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=marks_of(p)) for p in RUN],
    ids=lambda p: p.stem,
)
def test_code_of_a_page_runs(page, prepared, cli, request, tmp_path):
    run_page(page, prepared, cli, request, tmp_path)


@pytest.mark.engines
@pytest.mark.filterwarnings("ignore:n_anchors")
@pytest.mark.parametrize("page", [page for page in PAGES if ENGINES in page.read_text()], ids=lambda p: p.stem)
def test_code_of_a_page_runs_with_every_engine(page, prepared, cli, request, tmp_path):
    for block in BLOCKS[page]:
        assert "is not installed" not in (block.reason or ""), block
    run_page(page, prepared, cli, request, tmp_path)


def run_page(page, prepared, cli, request, tmp_path):
    """Run the blocks of a page."""
    for block in BLOCKS[page]:
        if block.reason is not None:
            continue
        code = block.code
        if SERVER in code:
            code = code.replace(SERVER, address_of("postgresql", request, tmp_path))
        if block.kind == "python":
            exec(compile("\n" * block.line + code, str(block), "exec"), prepared)
            continue
        for program, *arguments in commands_of(code):
            assert program == "dish", f"{block}: only dish commands run here; mark the block as not run: {program}"
            code, out, errors = cli(*arguments)
            assert code == 0, f"{block}: dish {' '.join(arguments)}: {out}{errors}"


def test_every_marker_is_directly_above_a_block():
    """A marker that is misspelt, or not directly above a block, would have no effect."""
    found = 0
    for page in PAGES:
        text = page.read_text()
        marked = [block for block in BLOCK.finditer(text) if block["reason"] or block["package"]]
        assert len(marked) == len(re.findall(r"<!--\s*(?:not[ -]run|needs)\b", text)), page
        found += len(marked)
    assert found > 0


def test_blocks_and_commands_are_parsed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n<!-- not run: needs a server -->\n```sh\ndish serve\n```\n```\nmake all\n```\n"
    )
    found = list(blocks_of(page))
    assert [(b.kind, b.code, b.reason) for b in found] == [
        ("python", "x = 1\n", None),
        ("sh", "dish serve\n", "needs a server"),
        ("", "make all\n", None),
    ]
    assert list(commands_of("dish fit a \\\n  b  # why\n# only words\n")) == [["dish", "fit", "a", "b"]]


@pytest.mark.parametrize("name", ["DISH", "DISHK", "DeepDISH", "DISHD"])
def test_parameter_tables_match_the_signatures(name):
    text = (ROOT / "docs" / "parameters.md").read_text()
    section = re.search(rf"^## {name}$(.*?)^## ", text, re.S | re.M)[1]
    listed = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.M))
    parameters = inspect.signature(getattr(dish, name)).parameters.values()
    assert listed == {p.name: repr(p.default).replace("'", '"') for p in parameters}


def test_the_page_of_the_paper_names_existing_files_and_objects():
    rows = re.findall(r"^\| [^|\n]+ \| (`[\w/.]+`: [^|\n]+) \| ", (ROOT / "docs/paper.md").read_text(), re.M)
    assert len(rows) > 60
    for row in rows:
        path, *names = re.findall(r"`([\w/.]+)`", row)
        source = (ROOT / "src/dish" / path).read_text()
        for name in names:
            assert re.search(rf"^ *(?:(?:def|class) {name}\b|{name}(?:: [\w\[\], ]+)? = )", source, re.M), row


def test_contributing_names_every_module_and_the_layers():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = re.search(r"^src/dish/\n(.*?)^tests/", text, re.S | re.M)[1]
    modules = {path.relative_to(ROOT / "src/dish").parts for path in (ROOT / "src/dish").rglob("*.py")}
    entries = {parts[0] + "/" * (len(parts) > 1) for parts in modules} - {"__init__.py", "__main__.py"}
    starts = re.findall(r"^  ((?:\w+(?:\.py|/) *)+)", tree, re.M)
    assert sorted(name for start in starts for name in start.split()) == sorted(entries)

    layers = [set(re.findall(r"`(\w+)`", line)) for line in re.findall(r"^\d\. (.*(?:\n   .*)*)", text, re.M)]
    tests = ast.parse((ROOT / "tests/test_layers.py").read_text())
    rows = next(node.value for node in tests.body if isinstance(node, ast.Assign) and node.targets[0].id == "LAYERS")
    assert layers == [set(row.split()) for row in ast.literal_eval(rows)]


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    used = {name for page in pages for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert used <= targets
