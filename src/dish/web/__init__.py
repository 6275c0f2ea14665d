"""The search service and its page. Needs the extra ``serve``: ``pip install 'dish-hash[serve]'``.

A request passes through ``connections`` (limits on connections), ``middleware`` (limits on requests, errors,
``prometheus_metrics``, log), ``app`` and ``item_routes`` (the routes, with ``schemas`` and ``routing``), ``batches``
(queries that are answered together) and ``collection`` (hasher, index, ``pictures``, ``thumbnails``, ``journal``).
``server`` runs one process, ``workers`` several; ``sockets`` opens the address. ``demo`` and ``photos`` are the
collections of ``dish demo --serve`` and ``dish photos``.
"""
