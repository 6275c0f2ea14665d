"""Addresses of databases for tests."""

import pytest


def address_of(engine, request, tmp_path):
    """Return the address of a database of this engine; a missing package skips the test."""
    if engine == "postgresql":
        parts = dict(part.split("=") for part in request.getfixturevalue("dsn").split())
        return f"postgresql:///{parts['dbname']}?host={parts['host']}&user={parts['user']}"
    for package in {"sqlite": ["apsw", "sqlite_vec"], "duckdb": ["duckdb", "pyarrow"], "lance": ["lancedb"]}[engine]:
        pytest.importorskip(package, reason=f"stores in {engine} are NOT tested: {package} is not installed")
    return f"lance://{tmp_path}/codes" if engine == "lance" else f"{engine}:///{tmp_path}/codes.db"
