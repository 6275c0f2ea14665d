"""Names of methods, classes of other packages, and reading model files back into the right class."""

import sys
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

import dish
from dish import DISH, DISHK, HammingIndex, registry
from dish.baselines import REGISTRY
from dish.errors import InputError, ModelFileError
from dish.io import modelfile
from dish.kernel.kernel_hasher import KernelHasher

OWN_METHOD = '''
"""A method of a user's own."""
from dish.baselines.lsh import LSH

class Mine(LSH):
    """Nothing new."""

class NoHasher:
    """It only fits."""
    def fit(self): ...

number = 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_method.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_method", None)


def test_names_map_to_classes():
    assert registry.find("dish") is DISH
    assert registry.find("dish_k") is DISHK
    for name in REGISTRY:
        assert registry.find(name) is REGISTRY[name]
    assert len(set(registry.NAMES)) == len(registry.NAMES) == len(registry.OURS) + len(REGISTRY)


def test_every_name_is_one_class():
    classes = [*registry.OURS.values(), *registry.RIVALS.values()]
    assert len(set(classes)) == len(classes)


def test_finding_one_method_does_not_import_the_others():
    import subprocess

    program = (
        "import sys; from dish import registry; registry.find('sdh'); "
        "print(sorted({'dish.baselines.ksh', 'dish.deep.deep_dish', 'dish.posterior.dish'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("own")
def test_a_class_of_ones_own():
    found = registry.find("own_method:Mine")
    assert found.__name__ == "Mine"
    assert found(n_bits=4).fit(np.eye(3)).transform(np.eye(3)).shape == (3, 1)


def test_a_class_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "mine_here.py").write_text(f"from neighbour_here import one\n{OWN_METHOD}")
    (tmp_path / "neighbour_here.py").write_text("one = 1\n")
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(InputError, match="there is no module mine_here in the current folder"):
        registry.find("mine_here:Mine")
    monkeypatch.chdir(tmp_path)
    assert registry.find("mine_here:Mine").__name__ == "Mine"
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n")
    with pytest.raises(InputError, match="needs_more imports not_installed_here, which is not installed"):
        registry.find("needs_more:Mine")
    for name in ("mine_here", "neighbour_here"):
        sys.modules.pop(name)


def test_files_of_the_current_folder_hide_no_installed_module(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("Mine = 3\n")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="the module colorsys has no Mine"):
        registry.find("colorsys:Mine")


@pytest.mark.usefixtures("own")
def test_a_class_that_another_package_declares(monkeypatch):
    declared = EntryPoints([EntryPoint("mine", "own_method:Mine", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **which: declared.select(**which))
    assert registry.find("mine").__name__ == "Mine"
    with pytest.raises(InputError, match=r"orthohash, mine, or module:Class"):
        registry.find("nothing")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"method must be one of dish, dish_k, .*, or module:Class of your own; got 'nothing'"),
        (
            "no_such_module:Mine",
            r"there is no module no_such_module in the current folder, /.*; go to its folder, or set PYTHONPATH",
        ),
        ("own_method:Yours", "the module own_method has no Yours"),
        ("own_method:number", "must be a class with fit, transform, decision_function; it is not a class"),
        ("own_method:NoHasher", "it has no transform, decision_function"),
        ("own_method:Mine()", "method must be one of"),
    ],
)
def test_names_of_no_method_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        registry.find(name)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    X = rng.standard_normal((90, 4)) + 3 * rng.standard_normal((3, 4))[y]
    return DISHK(n_bits=10, n_anchors=15).fit(X, y), X


@pytest.fixture
def saved(fitted, tmp_path):
    """The parts of a model file, and a function that writes changed ones and loads them."""
    fitted[0].save(tmp_path / "m.dish")
    kind, content, arrays = modelfile.read(tmp_path / "m.dish")

    def load(kind=kind, content=content, arrays=arrays):
        modelfile.save(tmp_path / "changed.dish", kind, content, arrays)
        return dish.load(tmp_path / "changed.dish")

    return content, arrays, load


def test_load_returns_the_right_class(fitted, tmp_path):
    hasher, X = fitted
    hasher.save(tmp_path / "m.dish")
    for load in (dish.load, registry.load):
        same = load(tmp_path / "m.dish")
        assert type(same) is DISHK
        np.testing.assert_array_equal(same.transform(X), hasher.transform(X))
        assert same.get_params() == hasher.get_params()


def test_every_class_with_kernel_features_has_the_same_state():
    """One model file format: the features and the hash function are stored, never inferred."""
    for kind in (DISH, DISHK, REGISTRY["sdh"], REGISTRY["ksh"], REGISTRY["fasth"], REGISTRY["cca_itq"]):
        assert issubclass(kind, KernelHasher)
        assert {"kernel_", "gamma_", "anchors_", "centre_", "mean_", "hash_function_"} <= set(kind._state), kind


def test_an_index_is_not_a_model(tmp_path):
    HammingIndex(8).save(tmp_path / "ix.dish")
    with pytest.raises(ModelFileError, match=r"ix.dish holds an index, not a model; HammingIndex.load reads it"):
        dish.load(tmp_path / "ix.dish")


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.dish"):
        dish.load(tmp_path / "nothing.dish")


def test_an_unknown_class_is_named(saved):
    with pytest.raises(ModelFileError, match="holds a Future, which this version of dish does not know"):
        saved[2](kind="Future")


def without(mapping, name):
    return {key: value for key, value in mapping.items() if key != name}


def test_a_file_without_one_of_its_parts_is_refused(saved):
    content, arrays, load = saved
    with pytest.raises(ModelFileError, match="the model file lacks anchors_"):
        load(arrays=without(arrays, "anchors_"))
    with pytest.raises(ModelFileError, match="the model file lacks gamma_"):
        load(content={**content, "fitted": without(content["fitted"], "gamma_")})
    with pytest.raises(ModelFileError, match=r"does not fit this version of DISHK: .*missing .*'W'"):
        load(arrays=without(arrays, "hash_function_.W"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hash_function_.W", lambda W: W[:, :-1]),  # 9 bits
        ("hash_function_.W", lambda W: W[:-1]),
        ("mean_", lambda mean: mean[:-1]),
        ("anchors_", lambda A: A[:, :-1]),
        ("centre_", lambda c: c[:-1]),
    ],
)
def test_arrays_whose_shapes_do_not_match_are_refused(saved, name, change):
    _, arrays, load = saved
    with pytest.raises(ModelFileError, match="does not fit this version of DISHK"):
        load(arrays={**arrays, name: change(arrays[name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_features_in_": 2**40}, "no array has the 1,099,511,627,776 features of a row"),
        ({"n_features_in_": 0}, "n_features_in_ must be"),
        ({"hash_function_": {"kind": "Quadratic"}}, "Quadratic"),
        ({"kernel_": "linear"}, "does not fit"),
    ],
)
def test_forged_values_are_refused(saved, change, message):
    content, _, load = saved
    with pytest.raises(ModelFileError, match=message):
        load(content={**content, "fitted": {**content["fitted"], **change}})


def test_another_number_of_bits_is_refused(saved):
    content, _, load = saved
    with pytest.raises(ModelFileError, match=r"one row gives outputs of shape \(1, 10\), not \(1, 9\)"):
        load(content={**content, "init": {**content["init"], "n_bits": 9}})


def test_unknown_parameters_are_refused(saved):
    content, _, load = saved
    with pytest.raises(ModelFileError, match="unexpected keyword argument 'depth'"):
        load(content={**content, "init": {**content["init"], "depth": 3}})


def test_a_model_of_a_machine_with_a_gpu_can_be_loaded(saved):
    content, _, load = saved
    assert load(content={**content, "init": {**content["init"], "device": "cuda"}}).device == "cuda"
