"""What the service says no to."""

from __future__ import annotations


class Refused(Exception):
    """A request that is answered with a status and one sentence: ``{"error": …}``."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


def need_extra(error: ImportError) -> ImportError:
    """What to say when the service's packages are missing."""
    return ImportError(f"the search service needs {error.name}: pip install 'dish-hash[serve]'")
