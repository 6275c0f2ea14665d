"""Networks as hash functions: ``DeepDISH``, ``DISHD``, and ``DeepHasher``, the base of the deep rivals.

A fit goes through ``data`` (rows and labels), ``model`` (the network) and ``training`` (rounds of SGD). ``h_step``
has the codes of the training rows, ``codewords`` the losses of ``DeepDISH``, ``heads`` what turns outputs into codes.
"""

from dish.deep.deep_dish import DeepDISH
from dish.deep.deep_hasher import DeepHasher
from dish.deep.dish_d import DISHD

__all__ = ["DISHD", "DeepDISH", "DeepHasher"]
