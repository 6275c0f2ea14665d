"""For your own data: ``compare`` a model with other rankings, ``tune`` the parameters of DISH, notice ``drift``.

``files`` scores the codes of files, and knows which rows a model was trained on; ``part`` ranks a part of a database.
"""
