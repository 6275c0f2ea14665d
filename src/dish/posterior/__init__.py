"""DISH, our best method for vectors: probabilities of the labels, and a projection of them onto bits.

``dish`` has the estimator and ``fit_posterior``; ``regression`` learns the probabilities, ``projection`` the
projection, ``selection`` makes all choices on held-out rows, ``multilabel`` those for multi-label data.
"""
