"""`python -m dish` is the `dish` command."""

from dish.cli.app import main

main()
