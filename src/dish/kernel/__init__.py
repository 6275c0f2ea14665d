"""DISHK, the paper's kernel method, and what its rivals share: features, whitening, spectral start, F-steps.

``dish_k`` has the estimator and Algorithm 2 (``alternate``). ``features`` computes K, ``fit_data`` collects what a
fit works on. ``kernel_hasher`` and ``streaming_hasher`` are base classes.
"""
