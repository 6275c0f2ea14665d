"""Scores and recommendations for your own data: ``compare`` methods, ``tune`` a model."""
