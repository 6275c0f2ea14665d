"""The paper's experiments.

``paper`` holds its tables as data, ``bench`` runs methods and stores one JSON file per run, ``reproduce`` does the
missing runs, and ``tables``, ``figures``, ``significance`` and ``report`` show the results. ``style`` is the look of
all figures. ``coverage`` lists which of the paper's numbers are measured. ``demo`` is `dish demo`.
"""
