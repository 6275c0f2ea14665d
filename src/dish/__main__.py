"""The `dish` command, also as `python -m dish`."""

import sys


def main() -> None:
    """Import the command line and run it. Ctrl-C ends it at any time with one line, also during the imports."""
    try:
        from dish.cli import main as run
    except KeyboardInterrupt:
        print("dish: stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
