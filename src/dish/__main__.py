"""`python -m dish` is the `dish` command."""

from dish.cli import main

if __name__ == "__main__":
    main()
