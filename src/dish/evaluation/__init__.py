"""For your own data: ``compare`` a model with other rankings, ``tune`` the parameters of DISH, notice ``drift``."""
