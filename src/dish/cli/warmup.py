"""`dish warmup`: compile everything ahead."""

from __future__ import annotations

from dish.cli.options import example


@example("dish warmup; NUMBA_CACHE_DIR=/srv/dish-cache dish warmup")
def warmup() -> None:
    """Compile all kernels ahead, so that the first fit, search and score do not wait for it.

    They are kept in the user's cache folder; NUMBA_CACHE_DIR or DISH_CACHE name another one, now and when they are
    used.
    """
    from dish.experiments import warmup as ahead
    from dish.numba_lazy import cache_folder

    print("dish: compiling, once …", flush=True)
    seconds = ahead.compile_all(lambda line: print(f"  {line}", flush=True))
    print(f"done in {seconds:.1f} s; kept in {cache_folder()}")
