"""The paper's experiments: ``definition`` (one run), ``paper`` (its tables as data), ``bench`` (runs → JSON files),
``reproduce`` (runs what is missing), ``tables``, ``figures`` and ``report`` (what people read), the ``demo``,
and ``warmup`` (kernels compiled ahead).
"""
