"""For your own data: ``compare`` a model with other rankings of the same rows, ``tune`` the parameters of DISH."""
