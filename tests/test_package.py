import subprocess
import sys

import pytest

import dish


def test_import_is_cheap():
    """No torch, faiss, matplotlib, numba or scikit-learn until something is used."""
    program = (
        "import sys, dish; "
        "heavy = {'torch', 'faiss', 'matplotlib', 'numba', 'sklearn', 'scipy', 'numpy'} & set(sys.modules); "
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_does_not_load_torch():
    program = "import sys; from dish.cli import main; sys.argv = ['dish', '--help']\n"
    program += "try: main()\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


def test_public_names():
    for name in dish.__all__:
        assert getattr(dish, name) is not None
        assert name in dir(dish)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dish.nothing


def test_scoring_and_search_do_not_load_torch():
    program = "import sys, dish.metrics, dish.index, dish.labels, dish.codes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
