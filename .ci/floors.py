"""Print the lowest versions that pyproject.toml allows as pip constraints; PINNED ones keep the tested version."""

import re
import sys
import tomllib
from pathlib import Path

TOOLS = ("dev", "docs", "engines")  # extras that users of the library do not need
PINNED = ("torch",)  # not every index has older CPU builds, and CUDA builds take gigabytes
ROOT = Path(__file__).parents[1]


def floors(pyproject: str, constraints: str) -> list[str]:
    """Lines such as numpy==2.0: the lowest versions of the dependencies, and the tested versions of the tools."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [line for name, lines in extras.items() if name not in TOOLS for line in lines]
    wanted += [line for line in extras["dev"] if line.startswith("pandas")]  # users pass its data frames to us
    lowest = {}
    for line in wanted:
        if found := re.match(r"([\w.-]+)(?:\[[\w,]+\])?\s*>=\s*([\w.]+)", line):
            lowest[_plain(found[1])] = f"{found[1]}=={found[2]}"
    tested = {_plain(line.split("==")[0]): line for line in constraints.splitlines() if "==" in line}
    return sorted({**tested, **{name: line for name, line in lowest.items() if name not in PINNED}}.values())


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.stdout.write(
        "\n".join(floors(*(ROOT.joinpath(f).read_text() for f in ("pyproject.toml", "constraints.txt")))) + "\n"
    )
