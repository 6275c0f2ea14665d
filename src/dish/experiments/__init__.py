"""Runs as JSON files, the paper's tables as data, tables and figures made from runs, the demonstration."""
