"""What a server serves, and from which files: those of an alias, or those that were named at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dish.alias import Alias, CollectionFiles


@dataclass(frozen=True)
class Source:
    """The files of a server, or the alias that names them, and the options of its collections."""

    given: Alias | CollectionFiles
    images: Path | None = None
    takes: str | None = None
    title: str | None = None
    writable: bool = False

    @property
    def files(self) -> CollectionFiles:
        """The files to serve now. An alias is read again."""
        return self.given.files if isinstance(self.given, Alias) else self.given

    @property
    def alias(self) -> str | None:
        """Name of the alias file."""
        return self.given.path.name if isinstance(self.given, Alias) else None
