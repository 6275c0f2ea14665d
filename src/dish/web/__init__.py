"""The search service and its page. Needs the extra ``serve``: ``pip install 'dish-hash[serve]'``.

A request goes through ``connections`` (who may wait how long), ``guard`` (limits, errors, log, ``meters``), ``app``
(the routes; ``bodies`` are their models), ``batches`` (what waits together) and ``collection`` (hasher, index,
``pictures``, ``journal``). ``server`` is the process, ``demo`` what ``dish demo --serve`` shows.
"""
