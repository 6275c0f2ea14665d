"""Reading and writing: row matrices, data files, images, model files, checkpoints.

Files are written atomically (``atomic``), and nothing here runs code that a file contains.
"""
