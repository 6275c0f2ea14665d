"""`python -m dish` is the `dish` command."""

from dish.cli import main

main()
