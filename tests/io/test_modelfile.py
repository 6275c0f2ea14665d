import json
import os
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

import dish
from dish import DISHK
from dish.errors import InputError, ModelFileError, ModelMismatchError
from dish.io import modelfile


@pytest.fixture
def model(tmp_path, digits):
    X, y, _, _ = digits
    DISHK(n_bits=16, n_anchors=30).fit(X[:200], y[:200]).save(tmp_path / "m.dish")
    return tmp_path / "m.dish"


def test_arrays_and_parameters_come_back(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "empty": np.zeros((0, 4), np.float32)}
    modelfile.save(tmp_path / "m", "Kind", {"x": [1, None, "é"]}, arrays)
    kind, params, found = modelfile.read(tmp_path / "m")
    assert (kind, params) == ("Kind", {"x": [1, None, "é"]})
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_truncated_files_are_refused(model, tmp_path):
    data = model.read_bytes()
    for size in [0, 1, 7, 8, 100, len(data) // 2, len(data) - 1]:
        (tmp_path / "cut.dish").write_bytes(data[:size])
        with pytest.raises(ModelFileError, match=r"cut\.dish"):
            dish.load(tmp_path / "cut.dish")


def test_flipped_bits_are_noticed(model, tmp_path):
    data = bytearray(model.read_bytes())
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 60):
        damaged = bytearray(data)
        damaged[at] ^= 0x20
        (tmp_path / "bad.dish").write_bytes(damaged)
        with pytest.raises(ModelFileError):
            dish.load(tmp_path / "bad.dish")


@pytest.mark.slow
def test_foreign_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello, I am not a model at all, but I am long enough to look at")
    save_file({"a": np.ones(3)}, tmp_path / "other.safetensors")
    np.save(tmp_path / "a.npy", np.ones(3))
    for name in ("text", "other.safetensors", "a.npy"):
        with pytest.raises(ModelFileError, match="not a dish model"):
            dish.load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"nothing\.dish"):
        dish.load(tmp_path / "nothing.dish")
    with pytest.raises(ModelFileError, match="folder"):
        dish.load(tmp_path)


def test_pickles_are_not_loaded(tmp_path):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    (tmp_path / "m.dish").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelFileError):
        dish.load(tmp_path / "m.dish")
    assert not (tmp_path / "exploded").exists()


def test_newer_formats_ask_for_an_upgrade(tmp_path, monkeypatch):
    monkeypatch.setattr(modelfile, "VERSION", 2)
    modelfile.save(tmp_path / "m.dish", "DISH", {}, {"a": np.ones(1)})
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match="upgrade"):
        dish.load(tmp_path / "m.dish")


def test_unknown_classes_are_named(tmp_path):
    modelfile.save(tmp_path / "m.dish", "Mystery", {"init": {}, "fitted": {}}, {"a": np.ones(1)})
    with pytest.raises(ModelFileError, match="Mystery"):
        dish.load(tmp_path / "m.dish")


def test_a_model_with_missing_arrays_is_refused(tmp_path):
    modelfile.save(tmp_path / "m.dish", "DISHK", {"init": {"n_bits": 8}, "fitted": {}}, {"mean_": np.ones(2)})
    with pytest.raises(ModelFileError, match="anchors_"):
        dish.load(tmp_path / "m.dish")


def crafted(model, path, change):
    """A copy of the model with other content and the right checksum."""
    kind, content, arrays = modelfile.read(model)
    change(content, arrays)
    modelfile.save(path, kind, content, arrays)
    return path


W = "hash_function_.W"
CRAFTED = {
    "fewer anchors than weights": lambda c, a: a.update(anchors_=a["anchors_"][:5]),
    "anchors of other rows": lambda c, a: a.update(anchors_=a["anchors_"][:, :7].copy()),
    "anchors that are no matrix": lambda c, a: a.update(anchors_=a["anchors_"][0].copy()),
    "whole numbers as weights": lambda c, a: a.update({W: np.ones((2, 2), np.int8)}),
    "a scalar as weights": lambda c, a: a.update({W: np.ones((), np.float32)}),
    "more bits than weights": lambda c, a: c["init"].update(n_bits=64),
    "bits beyond all memory": lambda c, a: c["init"].update(n_bits=2**45),
    "bits as a string": lambda c, a: c["init"].update(n_bits="many"),
    "features beyond all memory": lambda c, a: c["fitted"].update(n_features_in_=2**40),
    "features as a list": lambda c, a: c["fitted"].update(n_features_in_=[3]),
    "gamma as a string": lambda c, a: c["fitted"].update(gamma_="auto"),
    "an unknown kernel": lambda c, a: c["fitted"].update(kernel_="cubic"),
    "an unknown hash function": lambda c, a: c["fitted"]["hash_function_"].update(kind="Mystery"),
    "no weights": lambda c, a: a.pop(W),
    "an unknown parameter": lambda c, a: c["init"].update(colour="red"),
    "no parameters": lambda c, a: c.pop("init"),
    "parameters as a list": lambda c, a: c.update(init=[1]),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_models_whose_arrays_do_not_match_are_refused(what, model, tmp_path):
    path = crafted(model, tmp_path / "odd.dish", CRAFTED[what])
    with pytest.raises(ModelFileError, match=r"DISHK|lacks"):
        dish.load(path)


@pytest.mark.parametrize("mmap", [False, True])
def test_types_that_numpy_lacks_are_refused(tmp_path, mmap):
    header = {"format": "dish-model", "version": "1", "kind": "DISH", "params": "{}", "sha256": ""}
    for kind in ("F8_E4M3", "BF16"):
        entry = {"dtype": kind, "shape": [2], "data_offsets": [0, 2 if kind[0] == "F" else 4]}
        head = json.dumps({"__metadata__": header, "a": entry}).encode()
        (tmp_path / "m.dish").write_bytes(struct.pack("<Q", len(head)) + head + bytes(entry["data_offsets"][1]))
        with pytest.raises(ModelFileError, match=r"m\.dish"):
            modelfile.read(tmp_path / "m.dish", mmap=mmap)


WRITER = """
import sys, numpy as np
from dish.io import modelfile
path = sys.argv[1]
print("ready", flush=True)
for i in range(10**6):
    modelfile.save(path, "Kind", {"i": i}, {"a": np.full(2_000_000, i)})
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_a_complete_file(tmp_path):
    """A process that saves 16 MB models is killed at twelve moments or more: the file is always complete."""
    path = tmp_path / "m.dish"
    modelfile.save(path, "Kind", {"i": -1}, {"a": np.full(2_000_000, -1)})
    seen, leftovers = set(), set()
    for attempt in range(60):  # at least twelve, until one was killed while writing
        if leftovers and attempt > 11:
            break
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.02 + 0.013 * (attempt % 12) + 0.001 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        _, params, arrays = modelfile.read(path)  # checks the checksum
        assert (arrays["a"] == params["i"]).all()
        seen.add(params["i"])
        leftovers.update(name for name in os.listdir(tmp_path) if name.endswith(".tmp"))
    assert len(seen) > 1  # the processes did save
    assert leftovers  # at least one was killed while writing
    modelfile.save(path, "Kind", {}, {})
    assert os.listdir(tmp_path) == ["m.dish"]  # the next save removes leftovers


# --- families ---

OLD, NEW, OTHER = "0123456789abcdef", "0123456789abcdef-00000000ffffffff", "fedcba9876543210"


def test_fingerprints_with_and_without_a_family_are_valid():
    for value in (OLD, NEW, None):
        assert modelfile.check_fingerprint("model", value) == value
    for bad in ("", OLD[:15], f"{OLD}-", f"{NEW}-{OLD}", OLD.upper(), 16):
        with pytest.raises(InputError, match="model must be the fingerprint_"):
            modelfile.check_fingerprint("model", bad)


def test_models_of_one_family_are_the_same_and_others_are_refused():
    assert modelfile.family(OLD) == modelfile.family(NEW) == OLD
    for known, given in ((OLD, NEW), (NEW, OLD), (NEW, f"{OLD}-{OTHER}"), (None, NEW), (OLD, None)):
        modelfile.check_same_model(known, given, "the index", "the model")
    for known, given in ((OLD, OTHER), (NEW, f"{OTHER}-{OLD}"), (NEW, NEW[17:])):
        with pytest.raises(ModelMismatchError, match="compatible_with"):
            modelfile.check_same_model(known, given, "the index", "the model")
