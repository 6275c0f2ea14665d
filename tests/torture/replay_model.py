"""Random changes, kills, compactions and restarts of a served index, compared with a dictionary after every step.

python tests/torture/replay_model.py --seconds 100 --output replay.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from helpers.replay import replay


def main() -> int:
    """Run sequences until the time is up; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    kills = acknowledged = done = 0
    problems = []
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            seed = 1_000_000 * given.seed + done
            done += 1
            try:
                counts = replay(Path(folder, "replay"), seed)
            except Exception as error:  # an error of the library is a difference, too
                problems.append(f"seed {seed}: {error!r}"[:300])
            else:
                kills, acknowledged = kills + counts[0], acknowledged + counts[1]
    result = {"sequences": done, "simulated_kills": kills, "changes": acknowledged, "differences": len(problems)}
    text = json.dumps(result | {"first_problems": problems[:10]}, indent=1)
    print(text)
    if given.output:
        given.output.write_text(text + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
