"""The search service and its page. Needs the extra ``serve``: ``pip install 'dish-hash[serve]'``.

A request passes through ``connections`` (limits on connections), ``middleware`` (limits on requests, errors,
``prometheus_metrics``, log), ``generations`` (the collection that is served now), ``app``, ``item_routes`` and
``admin_routes`` (the routes, with ``schemas``, ``routing`` and ``rescoring``), ``batches`` (queries that are answered
together) and ``collection`` (hasher, index, ``pictures``, ``thumbnails``). ``index_writer`` and ``journal`` make
changes durable. ``server`` runs one process, ``workers`` several, with ``following`` in each. ``source`` names the
files to serve, ``reload`` switches to others, and ``sockets`` opens the address. ``demo`` and ``photos`` are the
collections of ``dish demo --serve`` and ``dish photos``.
"""
