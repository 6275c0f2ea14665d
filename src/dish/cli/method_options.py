"""Options of `dish fit` that are parameters of the chosen method.

Names and defaults are read from the signature of the class. Option names follow parameter names: underscores become
hyphens, and a leading ``n_`` is dropped (``n_bits`` is --bits). Two have names of their own (``RENAMED``).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from dish.errors import InputError

RENAMED = {"random_state": "seed", "anchors": "anchor-selection"}
NOT_OFFERED = ("checkpoint", "verbose")  # the command itself has --checkpoint and --quiet
FLAGS = (  # options without a value
    *("--resume", "--drop-missing", "--header", "-q", "--quiet", "-h", "--help"),
    *("--freeze", "--augment", "--mirror", "--error-diffusion", "--take-back"),
)
HELP = {
    "n_bits": "Code length.",
    "n_anchors": "Number of anchors of the kernel features. More are better and slower.",
    "geometry": "Bits that describe the features instead of the label: auto, or a number.",
    "scale": "Scale features of very different scales: auto, or none to use them as they are.",
    "anchors": "How anchors are chosen: random or kmeans.",
    "gamma": "RBF kernel coefficient γ in exp(-γ|x-a|²): auto, or a number.",
    "kernel": "Feature map: rbf, linear or rbf+linear, or auto (DISH only).",
    "n_iter": "Number of iterations, at most. For networks: rounds of learning codes and training.",
    "nu": "Weight ν of the loss of the hash function when codes are learned.",
    "lam": "Weight λ: of the penalty in Fast C-BCD (DISH-K), or of the regularisation (rivals).",
    "take_back": "Take back steps of Fast C-BCD that raise the objective; in the paper every step stands.",
    "ridge": "Ridge penalty, relative to the mean diagonal of KᵀK.",
    "loss": "Loss of the hash function. DISH-K: ridge, hinge or logistic.",
    "init": "Initial codes. DISH-K: spectral, spectral-literal (as the paper prints it) or random.",
    "similar_weight": "w in S = w YYᵀ - 1: auto, or a number above 1.",
    "multilabel": "Similarity of multi-label rows: count, share_one or jaccard.",
    "memory_budget": "Memory limit on the CPU, per process, such as 2GB (default: half of the free memory). Larger "
    "data go to a scratch file in $TMPDIR.",
    "device": "auto, cpu or cuda.",
    "random_state": "Random seed.",
    "net": "Network: 6conv, 6conv-paper, nin, alexnet, vgg16, efficientnet_lite0, efficientnet_lite2, …",
    "weights": "Initial weights of the network: imagenet, or a .pth or .safetensors file.",
    "freeze": "Do not train the network; fit DISH on its features.",
    "epochs": "Training epochs per round. Without it, images get at most as many as take about a minute.",
    "batch_size": "Images per training step.",
    "lr": "Learning rate: auto, or a number.",
    "weight_decay": "Weight decay: auto, or a number.",
    "accumulate": "Split every batch into this many parts, to save memory.",
    "augment": "Randomly flip, shift, rotate and relight the training images.",
    "mirror": "Average an image with its mirror image when encoding.",
    "image_size": "Side of the network's input in pixels (default: the usual one of the network).",
    "patience": "Stop after this many epochs without improvement on held-out images.",
    "alpha": "DisturbBinaryCodes: fraction α of flipped target bits.",
    "mu": "Weight μ of the hinge loss of the bits, relative to the softmax loss.",
    "stop_agreement": "Stop when this fraction of bits agrees with the network.",
    "error_diffusion": "Let bits pass their rounding errors on to later bits, where that ranks better.",
}


def option_name(parameter: str) -> str:
    """The option of a parameter: --bits for n_bits."""
    return "--" + RENAMED.get(parameter, parameter.removeprefix("n_").replace("_", "-"))


def parameters(kind: type) -> dict[str, inspect.Parameter]:
    """The parameters of a class that are options, by name."""
    return {name: p for name, p in inspect.signature(kind).parameters.items() if name not in NOT_OFFERED}


def options(kind: type) -> list[inspect.Parameter]:
    """The options of a class, as typer reads them from the signature of a command."""
    found = []
    for name, parameter in parameters(kind).items():
        option, default = option_name(name), parameter.default
        flag = isinstance(default, bool)
        text = HELP.get(name, f"Parameter {name} of {kind.__name__}; see its documentation.")
        described = typer.Option(
            f"{option}/--no-{option[2:]}" if flag else option,
            help=text,
            rich_help_panel=f"Options of {kind.__name__}",
        )
        annotation: Any = type(default) if isinstance(default, bool | int | float) else str | None
        annotated = Annotated[annotation, described]
        found.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotated))
    return found


def value_of(given: Any) -> Any:
    """The value of an option. The texts of numbers and "none" become values: auto, 0.5 and none are all possible."""
    if not isinstance(given, str):
        return given
    if given == "none":
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return given


def find_method(name: str) -> type:
    """The class of a method name; needs torch."""
    from dish import registry
    from dish.lazy import has_torch

    if not has_torch():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return registry.find(name)


def method_of(arguments: list[str]) -> str | None:
    """The value of --method among the arguments, if it is there."""
    for i, word in enumerate(arguments):
        if word == "--method":
            return arguments[i + 1] if i + 1 < len(arguments) else None
        if word.startswith("--method="):
            return word.removeprefix("--method=")
    return None


def first_path(arguments: list[str]) -> Path | None:
    """The first argument that is neither an option nor the value of one: the X of `dish fit`."""
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = not (word in FLAGS or word.startswith("--no-") or "=" in word)
        else:
            return Path(word)
    return None


def refusal(option: str, kind: type, name: str, implied: bool) -> InputError | None:
    """The error for an option that a class does not have: it names the methods that do. None if no method does."""
    from dish import registry

    having = [other for other in registry.NAMES if option in map(option_name, parameters(registry.find(other)))]
    if not having:
        return None
    default = f"the default method for {'a folder of images' if name == 'deep_dish' else 'rows of features'}"
    chosen = f"{kind.__name__}, {default}" if implied else f"{kind.__name__} (--method {name})"
    return InputError(f"{option} is not an option of {chosen}; methods that have it: {', '.join(having)}")
