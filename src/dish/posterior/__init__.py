"""DISH, our best method for vectors: class probabilities and a projection of them onto bits."""
