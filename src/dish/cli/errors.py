"""How a command ends: one clear line and exit code 2 for what the user can change, a way to report the rest.

``DISH_DEBUG=1`` shows the traceback of any error.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer

# What the world outside causes, whoever raises it. Other kinds count only where dish raises them on purpose.
EXPECTED = (ValueError, OSError, MemoryError, ImportError)
LEARNS = "this needs torch, which is not installed here; without it dish encodes and searches: pip install torch"
REPORT = "this is a bug in dish: run it again with DISH_DEBUG=1 and report the traceback that it shows"


def run(app: Callable[..., Any]) -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        code = app(standalone_mode=False) or 0
        if code == 130:  # Control-C
            end("stopped", 130)
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        end("stopped", 130)
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error
            _end_usage(error)
        if os.environ.get("DISH_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch":
            end(LEARNS, 2)
        if is_expected(error):
            end(str(error) or type(error).__name__, 2)
        end(f"unexpected {type(error).__name__}: {error} ({REPORT})", 1)


def is_expected(error: BaseException) -> bool:
    """Whether an error tells of the input or the machine, not of a bug."""
    library = type(error).__module__.partition(".")[0]
    if isinstance(error, EXPECTED) or library in ("dish", "psycopg", "safetensors"):
        return True
    return type(error).__name__ == "OutOfMemoryError" or _raised_by_dish(error)


def _raised_by_dish(error: BaseException) -> bool:
    """Whether the error left a ``raise`` statement of this package."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return last.filename.startswith(package + os.sep) and (last.line or "").startswith("raise ")


def end(message: str, code: int) -> NoReturn:
    """Print one line and exit."""
    print(f"dish: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _end_usage(error: Any) -> NoReturn:
    if len(sys.argv) == 1:  # no command at all: the message is the help
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    end(error.format_message() + " (try --help)", 2)
