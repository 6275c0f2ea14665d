"""How a command ends: one line and exit code 2 for errors that the user can fix, exit code 1 for bugs.

``DISH_DEBUG=1`` shows the traceback of any error.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from dish.errors import DishError

EXPECTED = (DishError, OSError, MemoryError, ImportError)
EXPECTED_OF_PACKAGES = {  # looked up only in packages that are loaded: no other can have raised its error
    "torch": "OutOfMemoryError",
    "psycopg": "Error",
    "safetensors": "SafetensorError",
}
NEEDS_TORCH = "this command needs torch: pip install torch (without it, dish can encode and search)"
REPORT = "this is a bug in dish: run the command again with DISH_DEBUG=1 and report the traceback"


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
            end(NEEDS_TORCH, 2)
        if is_expected(error):
            end(str(error) or type(error).__name__, 2)
        end(f"unexpected {type(error).__name__}: {error} ({REPORT})", 1)


def is_expected(error: BaseException) -> bool:
    """Whether an error is about the input or the machine, by its class. Any other error is a bug."""
    loaded = ((sys.modules.get(package), name) for package, name in EXPECTED_OF_PACKAGES.items())
    return isinstance(error, (*EXPECTED, *(getattr(module, name) for module, name in loaded if module is not None)))


def end(message: str, code: int) -> NoReturn:
    """Print one line and exit."""
    print(f"dish: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _end_usage(error: Any) -> NoReturn:
    if len(sys.argv) == 1:  # no command: the message is the help
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    end(error.format_message() + " (try --help)", 2)
