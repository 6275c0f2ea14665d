"""Networks as hash functions: the training loop every deep method shares, and ``DeepDISH``."""
