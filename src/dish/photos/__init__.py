"""A folder of somebody's photos: features, codes and an index, kept up to date from one day to the next.

``library`` opens it; ``state`` is what it remembers between two calls, ``tuning`` fine-tunes a network, ``alike``
finds photos that are there twice.
"""

from dish.photos.library import Library, Wishes, open_library

__all__ = ["Library", "Wishes", "open_library"]
