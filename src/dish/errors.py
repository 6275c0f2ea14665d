"""The exceptions that dish raises on purpose.

All of them derive from ``DishError``, and each also from the built-in exception that callers expect, so that
``except ValueError`` works too. Any other exception is a bug in dish, or comes from the system (``OSError``,
``MemoryError``, ``ImportError``).
"""

from __future__ import annotations


class DishError(Exception):
    """Base class of all errors that dish raises on purpose."""


class InputError(DishError, ValueError):
    """An argument is not allowed. The message names it, what was given and what is allowed."""


class UnsupportedError(DishError, TypeError):
    """This object cannot do what was asked of it. The message names one that can."""


class DataFileError(DishError, ValueError):
    """A data file is damaged, incomplete, or not what its name says. The message names the file."""


class ImageError(DishError, ValueError):
    """An image cannot be read. The message names the file and the reason."""


class TooManyPixels(ImageError):
    """An image is larger than the limit. Its header is enough to tell: nothing was decoded."""


class ModelFileError(DishError, ValueError):
    """A file is not a model, is damaged, or was written by a newer version of dish."""


class FileInUseError(ModelFileError):
    """Another process writes to an index."""


class FileReplacedError(ModelFileError):
    """Another program replaced an index while this one was writing to it."""


class JournalError(ModelFileError):
    """A journal of an index is missing, damaged, of another index, or cannot be written."""


class ModelMismatchError(DishError, ValueError):
    """Codes of two different models were about to be compared."""


class DownloadError(DishError, RuntimeError):
    """A file could not be downloaded."""


class StoreError(DishError, RuntimeError):
    """A database refused a statement."""


class ShardError(DishError, RuntimeError):
    """A shard of a search on several machines cannot be reached, or did not answer in time."""


class ClusterError(DishError, RuntimeError):
    """A Ray cluster cannot be used as asked: it has too few free CPUs, or is reachable from other machines."""


class RankError(DishError, RuntimeError):
    """Another process of a distributed run stopped, cannot be reached, or did something else than this one."""
