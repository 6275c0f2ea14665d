"""DISH, our best method for vectors: probabilities of the labels, and a projection of them onto bits.

``dish`` has the estimator and its solvers; ``regression`` learns the probabilities, ``projection`` the
projection, ``geometry`` the bits of x itself; ``selection`` makes all choices on held-out rows, ``multilabel`` those
for multi-label data.
"""
