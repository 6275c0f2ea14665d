"""Options that are parameters of a class."""

from pathlib import Path

import pytest

from dish import registry
from dish.cli import method_options
from dish.cli.method_options import first_path, method_of, option_name, options, value_of

OURS = ("dish", "dish_k", "deep_dish", "dish_d")


@pytest.mark.parametrize("name", registry.NAMES)
def test_option_names_of_a_class_are_unique(name):
    names = [option_name(parameter) for parameter in method_options.parameters(registry.find(name))]
    assert len(set(names)) == len(names)
    assert "--bits" in names
    common = {"--output", "--method", "--checkpoint", "--resume", "--drop-missing", "--header", "--quiet"}
    assert not common & set(names)


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_of_ours_has_a_help_text(name):
    assert set(method_options.parameters(registry.find(name))) <= set(method_options.HELP)


@pytest.mark.parametrize("name", OURS)
def test_defaults_come_from_the_class(name):
    kind = registry.find(name)
    defaults = kind().get_params()
    assert {option.name: option.default for option in options(kind)} == {
        parameter: defaults[parameter] for parameter in method_options.parameters(kind)
    }


@pytest.mark.parametrize("name", OURS)
def test_flags_are_known(name):
    """``first_path`` must know which options take no value."""
    for parameter, described in method_options.parameters(registry.find(name)).items():
        assert (option_name(parameter) in method_options.FLAGS) == isinstance(described.default, bool)


def test_option_names_follow_parameters():
    assert option_name("n_bits") == "--bits"
    assert option_name("similar_weight") == "--similar-weight"
    assert option_name("random_state") == "--seed"


def test_texts_that_are_numbers_become_numbers():
    texts = ("auto", "2", "0.5", "2GB", None, 3, "none")
    assert [value_of(text) for text in texts] == ["auto", 2, 0.5, "2GB", None, 3, None]


@pytest.mark.parametrize(
    ("words", "path", "method"),
    [
        ("X.npy y.npy -o m", "X.npy", None),
        ("--bits 8 -o m X.npy --method sdh", "X.npy", "sdh"),
        ("--resume --bits=8 -q --no-mirror X.npy --method=sdh", "X.npy", "sdh"),
        ("--net 6conv --freeze photos", "photos", None),
        ("-o m", None, None),
        ("--method", None, None),
    ],
)
def test_finds_the_path_and_the_method_among_the_arguments(words, path, method):
    assert first_path(words.split()) == (None if path is None else Path(path))
    assert method_of(words.split()) == method
