"""Hashers inside other libraries, one module per library. Import the module: ``dish.integrations.NAME``.

``sentence_transformers`` makes a hasher the last module of a SentenceTransformer.
"""
