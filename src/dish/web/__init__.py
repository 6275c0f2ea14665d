"""The search service and its page. Needs the extra ``serve``: ``pip install 'dish-hash[serve]'``.

``collection`` joins a hasher and an index, ``journal`` makes writes durable, ``pictures`` turns uploads into rows,
``guard`` holds the limits, ``app`` the routes, ``server`` the process, ``demo`` what ``dish demo --serve`` shows.
"""
