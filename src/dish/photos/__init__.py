"""A folder of photos: features, codes and an index that are updated when the folder changes.

``library.open_library`` brings a library up to date; ``reopen`` opens an unchanged one without loading torch.
``folder`` lists photos and labels, ``options`` chooses the method, ``state`` is saved between calls, ``fine_tune``
trains a network, ``duplicates`` finds copies.
"""

from dish.photos.options import PhotoOptions
from dish.photos.reopen import Library, reopen

__all__ = ["Library", "PhotoOptions", "reopen"]
