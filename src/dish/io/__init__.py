"""Rows and files: rows wherever they lie, shards, tables, images, model files, checkpoints.

Whatever is written is written whole or not at all; nothing here runs code found in a file.
"""
