"""Heavy packages are imported on first use, and a missing one is named."""

import copy
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

import dish
from dish import lazy


def output_of(program):
    """What another process prints."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def some_module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported; it counts its imports in ``sys.flags_seen``."""
    (tmp_path / "module_for_lazy_tests.py").write_text(
        "import os\nPOLICY = os.environ.get('OMP_WAIT_POLICY')\nNUMBER = 7\ndef double(x):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "module_for_lazy_tests"
    sys.modules.pop("module_for_lazy_tests", None)


def test_a_module_is_imported_when_an_attribute_is_used(some_module):
    module = lazy.LazyModule(some_module)
    copy.copy(module)  # asks for special attributes only
    assert some_module not in sys.modules
    assert module.double(4) == 8
    assert some_module in sys.modules


def test_values_that_may_change_are_not_kept(some_module):
    module = lazy.LazyModule(some_module)
    assert module.NUMBER == 7
    sys.modules[some_module].NUMBER = 8
    assert module.NUMBER == 8


def test_companions_are_imported_too_if_they_exist(some_module, tmp_path):
    (tmp_path / "companion_for_lazy_tests.py").write_text("")
    module = lazy.LazyModule("math", some_module, "no_such_module_at_all")
    assert module.floor(2.5) == 2
    assert some_module in sys.modules


def test_a_missing_package_is_named():
    with pytest.raises(ModuleNotFoundError, match="this needs no_such_package, which is not installed: pip install"):
        _ = lazy.LazyModule("no_such_package").anything


def test_an_error_inside_a_package_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_for_lazy_tests.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        _ = lazy.LazyModule("broken_for_lazy_tests").anything


def test_openmp_threads_are_told_to_sleep_while_a_library_is_loaded(some_module, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert lazy.LazyModule(some_module).POLICY == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in os.environ


def test_the_users_own_wait_policy_is_kept(some_module, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert lazy.LazyModule(some_module).POLICY == "ACTIVE"
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_only_torch_tensors_are_tensors():
    assert isinstance(torch.zeros(2), lazy.Tensor)
    assert not isinstance(np.zeros(2), lazy.Tensor)
    assert isinstance(np.zeros(2), np.ndarray | lazy.Tensor)
    assert lazy.has_torch()


def test_nothing_is_a_tensor_before_torch_is_imported():
    program = "import sys; from dish.lazy import Tensor; print(isinstance(3, Tensor), 'torch' in sys.modules)"
    assert output_of(program).split() == ["False", "False"]


def test_attached_names_are_imported_on_first_use(some_module, monkeypatch):
    package = types.ModuleType("package_for_lazy_tests")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    get, names = lazy.attach(package.__name__, {"double": some_module, "NUMBER": some_module})
    assert names() == ["NUMBER", "double"]
    assert some_module not in sys.modules
    assert get("double")(3) == 6
    assert package.double(3) == 6  # stored: the next access does not come here
    with pytest.raises(AttributeError, match="module 'package_for_lazy_tests' has no attribute 'nothing'"):
        get("nothing")


def test_a_name_that_maps_to_its_own_module_is_the_module():
    get, _ = lazy.attach("dish", {"codes": "dish.codes"})
    assert get("codes") is sys.modules["dish.codes"] is dish.codes


def test_importing_names_loads_neither_torch_nor_numba():
    program = (
        "import sys; from dish import DISH, DISHK, HammingIndex, load, metrics, codes; DISH(n_bits=8).get_params(); "
        "print(sorted({'torch', 'numba', 'dish.baselines.sdh', 'faiss'} & set(sys.modules)))"
    )
    assert output_of(program).strip() == "[]"
