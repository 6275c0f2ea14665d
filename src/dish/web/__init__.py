"""The search service and its page. Needs the extra ``serve``: ``pip install 'dish-hash[serve]'``.

A request goes through ``connections`` (who may wait how long), ``guard`` (limits, errors, log, ``meters``), ``app``
and ``items`` (the routes; ``bodies`` are their models, ``routing`` what they share), ``batches`` (what waits
together) and ``collection`` (hasher, index, ``pictures``, ``thumbnails``, ``journal``). ``server`` is the process,
``workers`` several of them, ``address`` where they listen, ``demo`` and ``photos`` what ``dish demo --serve`` and
``dish photos`` show.
"""
