"""The kernel hash function F(x) = Wᵀ k(x): anchors, feature map, whitening, spectral start, F-steps.

``DISH`` puts them together.
"""
