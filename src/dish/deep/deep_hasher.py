"""DeepHasher: the contract of every hasher whose hash function is a network.

F(x) = Wᵀ Φ(x), where Φ is the last hidden layer of any network. A method subclasses ``DeepHasher`` and defines
``_objective``, the loss of one round of training, or ``_learn``, which may run several rounds.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dish import nets, parallel
from dish.checks import check_flag, check_integer, check_number, check_option, check_random_state
from dish.deep import heads, plot_history
from dish.deep.data import DeepFitData, read_labels
from dish.deep.heads import Head
from dish.deep.model import (
    HashingNet,
    NetworkEncoder,
    PackedEncoder,
    encode,
    load_state,
    make_model,
    move_to,
    state_arrays,
)
from dish.deep.training import Objective, RoundState, Settings, Training, reporter, seeded
from dish.errors import InputError, UnsupportedError
from dish.hasher import Hasher, class_values, to_json_value
from dish.io import images, modelfile
from dish.io.atomic import replacing
from dish.io.checkpoint import Checkpoint, checksum, fit_fingerprint
from dish.io.row_hashes import check_remembered
from dish.io.rows import narrowed
from dish.kernel.fit_state import probe
from dish.labels import as_array
from dish.machine import resolve_device
from dish.metrics.profile import Profile
from dish.progress import progress

Fitted = dict[str, Any]  # attribute → value
FILE_SIDE = 224  # of image files, for a module without an image size of its own
BLOCK_BYTES = 64 << 20  # of images that are decoded at a time
NOT_IN_FINGERPRINT = ("checkpoint", "verbose", "device", "random_state")  # may differ in the fit that resumes
IMAGES_ONLY = ("augment", "mirror", "image_size")


@dataclass(frozen=True)
class Learned:
    """What a method has learned in addition to the weights of the network."""

    head: Head = field(default_factory=Head)
    attributes: Fitted = field(default_factory=dict)  # fitted attributes such as ``codes_``


class FittedNetwork(Hasher):
    """The fitted attributes of a deep hasher, apart from the parameters, which are dataclass fields."""

    vectors_: bool  # learned from vectors (n, d), not from images
    image_shape_: tuple[int, int]  # of the training images, if there were any
    model_: HashingNet
    codes_: NDArray[np.uint8]
    history_: list[dict[str, float]]


@dataclass(eq=False, repr=False)
class DeepHasher(FittedNetwork):
    """A network as hash function.

    Parameters
    ----------
    n_bits : int, default=48
        Code length r.
    net : "6conv", "6conv-paper", "nin", "alexnet", "vgg16", "efficientnet_lite0", … or an ``nn.Module``
        The network. A module must return the last hidden layer (n, D) for images (n, 3, H, W), or for vectors. Rows
        of features (n, d) get a perceptron instead of a named network.
    weights : None, "imagenet", a path (.pth, .safetensors) or "own", default=None
        Initial weights. "own": those of the module itself. Layers with weights learn at a tenth of the rate.
    epochs : int, default=60
        Epochs of each round of training.
    batch_size, lr, weight_decay
        Of SGD with Nesterov momentum 0.9. From scratch, "auto" is a learning rate of 0.1 and a weight decay of 0.002
        (vectors: 0.0005). For fine-tuning it is 0.01 and 0.0005, as in the paper. Several processes share every
        batch: each needs at least two rows.
    accumulate : int, default=1
        Number of parts of a batch that go through the network one after the other. Their gradients are summed: the
        same step with less memory. Batch norm sees one part at a time.
    augment : bool, default=True
        Randomly flip, shift, rotate, relight and partly cover the training images.
    mirror : bool, default=True
        Encode an image by the mean over it and its mirror image.
    image_size : int or None, default=None
        Side of the network's input; None: that of the network. Images are cut to their middle square and resized.
    checkpoint : path or None, default=None
        Folder for the state after every round. A fit that finds its own state there resumes from it. Several
        processes need a shared folder.
    device, random_state
        As in ``DISH``.
    verbose : int, default=0
        1 reports every epoch on standard error.
    """

    n_bits: int = 48
    net: Any = "6conv"
    _: KW_ONLY
    weights: Any = None
    epochs: int = 60
    batch_size: int = 128
    lr: float | str = "auto"
    weight_decay: float | str = "auto"
    accumulate: int = 1
    augment: bool = True
    mirror: bool = True
    image_size: int | None = None
    checkpoint: Any = None
    device: str = "auto"
    random_state: Any = 0
    verbose: int = 0

    _needs_y = True
    _learns_from_graded = False  # whether labels may be missing, or between 0 and 1
    _learns_from_similarity = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def takes_images(self) -> bool:
        """Whether this fitted hasher encodes images, not vectors."""
        self._check_fitted()
        return not self.vectors_

    @property
    def image_side(self) -> int:
        """Side of the squares that image files are read as, in training, encoding and serving alike."""
        if self.image_size is not None:
            return self.image_size
        if not isinstance(self.net, nn.Module):
            return nets.spec(self.net).size or FILE_SIDE
        height, width = getattr(self, "image_shape_", (FILE_SIDE, FILE_SIDE))
        return int(height) if height == width else FILE_SIDE

    # --- fit ---

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from uint8 images (n, H, W, 3), files, a torch Dataset, a folder with one per label, or vectors.

        If it fails, the hasher is left as it was: not fitted, or fitted as before.
        """
        ranks = parallel.current()
        with ranks.raise_together():
            self._check_params()
            X, y = images.with_labels(X, y, self.image_side)
            self._require_y(
                y,
                "give (n,) classes or (n, l) labels of 0 and 1, or a folder with a sub-folder per label "
                "(photos without labels: dish photos FOLDER)",
            )
            rows, described = self._describe_rows(X)
            data = self._fit_data(rows, y, ranks)
        data = data.with_shared_seed()
        with seeded(data.seed, data.device):
            fitted = self._fit_network(data)
        self._store({**described, **fitted})
        self._fitted_to(rows, y, data)
        return self

    def _fitted_to(self, rows: NDArray[Any], y: Any, data: DeepFitData) -> None:
        """Add attributes that need the fitted hash function."""

    def _describe_rows(self, X: Any) -> tuple[NDArray[Any], Fitted]:
        """Checked rows, and the fitted attributes that describe them. Does not modify the hasher."""
        checker = copy.copy(self)  # scikit-learn's checks set attributes
        rows = checker._check_X(X, reset=True)
        if rows.ndim == 4:
            shape = (int(rows.shape[1]), int(rows.shape[2]))
            return rows, {"vectors_": False, "n_features_in_": int(np.prod(rows.shape[1:])), "image_shape_": shape}
        rows = narrowed(rows, np.float32)
        named_net = isinstance(self.net, str) and self.net != "mlp"
        self._warn_unused(("net", *IMAGES_ONLY) if named_net else IMAGES_ONLY, "X holds vectors, not images")
        described: Fitted = {"vectors_": True, "n_features_in_": checker.n_features_in_}
        if hasattr(checker, "feature_names_in_"):
            described["feature_names_in_"] = checker.feature_names_in_
        return rows, described

    def _warn_unused(self, names: Sequence[str], reason: str) -> None:
        """Warn about parameters that were set but have no effect."""
        defaults = signature(type(self)).parameters
        if unused := [name for name in names if getattr(self, name) != defaults[name].default]:
            warnings.warn(f"{', '.join(unused)}: no effect, because {reason}", stacklevel=5)

    def _fit_data(self, rows: NDArray[Any], y: Any, ranks: parallel.Ranks) -> DeepFitData:
        S, labels = read_labels(
            y, len(rows), type(self).__name__, self._learns_from_graded, self._learns_from_similarity
        )
        device = resolve_device(self.device)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        tensor = torch.tensor(rows, device=device)  # a copy: a memory map may be read-only
        return DeepFitData(tensor, None if labels is None else labels.to(device), S, seed, device, ranks)

    def _fit_network(self, data: DeepFitData) -> Fitted:
        """Train a network; returns the fitted attributes."""
        with data.ranks.raise_together():
            n_outputs, norm = self._outputs(data)
            model, fresh = make_model(self.net, self.weights, self.image_size, n_outputs, data.rows, norm)
            model = move_to(model, data.rows)
        checkpoint = self._open_checkpoint(data, model, fresh)
        state = RoundState.load(checkpoint, model)
        if state is not None:
            data = replace(data, seed=state.seed)
        history = [] if state is None else state.history
        training = Training(data, model, fresh, self._settings(data, model, fresh), checkpoint, history)
        learned = self._learn(training, state)
        training.warn_if_codes_are_equal(learned.head)
        model.head = learned.head
        timed = {"timings_": training.timings_, "history_": training.history}
        return {**timed, **learned.attributes, "model_": model}

    def _outputs(self, data: DeepFitData) -> tuple[int, bool]:
        """The number of outputs that are trained, and whether they have batch norm."""
        return self.n_bits, False

    def _settings(self, data: DeepFitData, model: HashingNet, fresh: frozenset[str]) -> Settings:
        names = ("epochs", "batch_size", "lr", "weight_decay", "accumulate", "augment", "mirror")
        return Settings(
            **{name: getattr(self, name) for name in names},
            fine_tuning=self.weights is not None,
            recordable=not isinstance(self.net, nn.Module),
            report=reporter(type(self).__name__, self.verbose),
        )

    def _open_checkpoint(self, data: DeepFitData, model: HashingNet, fresh: frozenset[str]) -> Checkpoint | None:
        """The checkpoint, if there is one; several processes check that they have the same parameters and data."""
        if self.checkpoint is None and data.ranks.world == 1:
            return None
        content = {k: v for k, v in self.get_params(deep=False).items() if k not in NOT_IN_FINGERPRINT}
        content |= {"checkpoint": self.checkpoint is not None, "rows": _digest(data.rows)}
        content["seed"] = data.seed if self.random_state is not None else None  # None: take that of the checkpoint
        content["S"] = probe(data.S)[data.S.row_group.cpu().numpy()]
        if self.weights is not None:  # by their values: the file may have been replaced
            trained = {name: t for name, t in model.body.state_dict().items() if name not in fresh}
            content["weights"] = {name: _digest(t) for name, t in trained.items()}
        content["labels"] = None if data.labels is None else _digest(data.labels)
        fingerprint = fit_fingerprint(type(self).__name__, content, data.ranks)
        if self.checkpoint is None:
            return None
        checkpoint = Checkpoint(self.checkpoint, fingerprint, data.ranks)
        checkpoint.prepare()
        return checkpoint

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        """The method: by default one round of training with the loss of ``_objective``, unless ``state`` has it."""
        if state is None:
            training.run_objective(self._objective(training))
            training.save(0, training.codes())
        return Learned()

    def _objective(self, training: Training) -> Objective:
        """The loss of a method with one round of training."""
        raise UnsupportedError(f"{type(self).__name__} defines no loss")

    def _store(self, fitted: Fitted) -> None:
        """Replace the attributes of a former fit."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        for name, value in fitted.items():
            setattr(self, name, value)

    # --- checks ---

    def _check_params(self) -> None:
        self._check_n_bits()
        for name, low in (("epochs", 1), ("batch_size", 2), ("accumulate", 1)):
            check_integer(name, getattr(self, name), low=low)
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if isinstance(value, str):
                check_option(name, value, ("auto",), " or a number")
            else:
                check_number(name, value, low=0, strict=name == "lr")
        for name in ("augment", "mirror"):
            check_flag(name, getattr(self, name))
        if self.image_size is not None:
            check_integer("image_size", self.image_size, low=8)
        if not isinstance(self.net, nn.Module):
            nets.spec(self.net)

    def _check_X(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """Images as uint8 (n, H, W, 3), or vectors (n, d)."""
        is_images = images.looks_like_images(X)
        if not reset and is_images == self.vectors_:
            if is_images:
                raise InputError(f"X holds images, but this {type(self).__name__} learned from vectors")
            raise InputError(f"X must be images, uint8 (n, H, W, 3), as in fit; got an array of shape {np.shape(X)}")
        if is_images:
            return images.check_images(X.detach().cpu() if isinstance(X, Tensor) else X)
        return super()._check_X(X, reset=reset)

    @property
    def _encoded_dtype(self) -> np.dtype[Any] | None:
        return np.dtype(np.float32) if self.vectors_ else None

    # --- the hash function ---

    def _checked_blocks(self, X: Any) -> Iterator[Any]:
        """Checked blocks of image files, of a Dataset or of an array of images; vectors as ``Hasher`` reads them."""
        of_images = not self.vectors_ and (images.is_image_source(X) or hasattr(X, "shape"))
        if not of_images and not images.is_dataset(X):
            yield from super()._checked_blocks(X)
            return
        for block in images.blocks(X, self.image_side, BLOCK_BYTES):
            yield self._check_X(block, reset=False)

    def _decision_values(self, X: NDArray[Any], head: Head | None = None) -> NDArray[Any]:
        device = resolve_device(self.device)
        model = self.model_.to(device)
        size = model.rows_at_once(X.shape)
        parts = []
        with progress("encoding", len(X)) as done:
            for i in range(0, len(X), size):
                x = torch.tensor(X[i : i + size], device=device)
                parts.append(encode(model, x, self.mirror, head).cpu().numpy())
                done(len(x))
        return np.concatenate(parts) if parts else np.zeros((0, self.n_bits), np.float32)

    def draw_history(self, path: str | os.PathLike[str]) -> None:
        """Plot the losses of the last fit, epoch by epoch, as .png, .svg or .pdf. Requires matplotlib."""
        if not getattr(self, "history_", None):
            raise InputError(f"this {type(self).__name__} has no history to plot: it was not trained in this process")
        plot_history.draw(self.history_, path)

    # --- files ---

    def _hash_function(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("n_bits", "mirror", "vectors_", "n_features_in_")}
        return {**state_arrays(self.model_), **values, "size": self.model_.size, "head": self.model_.head.config()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        self._check_fitted()
        if isinstance(self.net, nn.Module):
            raise UnsupportedError(
                "a hasher with a network of your own cannot be saved, since files hold no code: use export_onnx, or "
                "save hasher.model_.state_dict() yourself"
            )
        model, arrays = self.model_, state_arrays(self.model_, "model.")
        if hasattr(self, "codes_"):
            arrays["codes_"] = self.codes_
        params = {k: to_json_value(k, v) for k, v in self.get_params(deep=False).items()}
        params |= {"checkpoint": None, "weights": None if self.weights is None else str(self.weights)}
        fitted = {"n_features_in_": self.n_features_in_, "vectors_": self.vectors_, "has_codes": "codes_" in arrays}
        if hasattr(self, "classes_"):
            fitted["classes_"] = class_values(self.classes_)
        if self.profile_ is not None:
            parts, fitted["profile_"] = self.profile_.to_arrays()
            arrays |= {f"profile_.{key}": part for key, part in parts.items()}
        if self.row_hashes_ is not None:
            arrays["row_hashes_"] = self.row_hashes_
        network = {"width": model.width, "n_outputs": model.n_outputs, "norm": model.has_norm}
        content = {"init": params, "fitted": fitted, "network": network, "head": model.head.config()}
        modelfile.save(path, type(self).__name__, content, arrays)

    @classmethod
    def _restore(cls, content: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        hasher, fitted, network = cls(**content["init"]), content["fitted"], content["network"]
        hasher.n_features_in_, hasher.vectors_ = fitted["n_features_in_"], fitted["vectors_"]
        if fitted["has_codes"]:
            hasher.codes_ = arrays["codes_"]
        if "classes_" in fitted:
            hasher.classes_ = as_array(fitted["classes_"])
        if "profile_" in fitted:
            parts = {k.removeprefix("profile_."): a for k, a in arrays.items() if k.startswith("profile_.")}
            hasher.profile_ = Profile.from_arrays(parts, fitted["profile_"])
        hasher.row_hashes_ = arrays.get("row_hashes_")
        check_remembered(hasher.row_hashes_)
        spec = nets.spec("mlp" if hasher.vectors_ else hasher.net)
        body = spec.make(None)
        if hasher.vectors_:
            body.eval()(torch.zeros(1, hasher.n_features_in_))  # gives lazy layers their widths
        size = 0 if hasher.vectors_ else hasher.image_size or spec.size
        hasher.model_ = HashingNet(body, network["width"], network["n_outputs"], size, spec.normal, network["norm"])
        prefix = "model.head."
        tensors = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
        hasher.model_.head = heads.restore(content["head"], tensors)
        load_state(hasher.model_, arrays, "model.")
        hasher._remember_params()
        return hasher

    def export_onnx(self, path: str | os.PathLike[str], output: str = "F") -> None:
        """Write the hash function as an ONNX graph: images uint8 (n, H, W, 3), or vectors float32, in.

        ``output`` is "F", float32 (n, n_bits), or "codes", the packed codes, uint8 (n, ceil(n_bits / 8)). H and W are
        the network's input size (``image_size``), or the size of the training images for a module without one.
        """
        self._check_fitted()
        check_option("output", output, ("F", "codes"))
        model: nn.Module = NetworkEncoder(copy.deepcopy(self.model_), self.mirror)  # a copy: ours is not moved
        model = (PackedEncoder(model) if output == "codes" else model).cpu().eval()
        if self.vectors_:
            some = torch.zeros(2, self.n_features_in_)
        else:
            size = self.model_.size
            height, width = (size, size) if size else self.image_shape_
            some = torch.zeros(2, height, width, 3, dtype=torch.uint8)
        name = "rows" if self.vectors_ else "images"
        with replacing(path) as temporary, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (some,),
                str(temporary),
                input_names=[name],
                output_names=[output],
                dynamic_axes={name: {0: "n"}, output: {0: "n"}},
                dynamo=False,
            )


def _digest(tensor: Tensor) -> str:
    """The type, the shape and a checksum of the values of a tensor."""
    return f"{tensor.dtype} {tuple(tensor.shape)} {checksum([torch.atleast_1d(tensor)], 0, parallel.ALONE)}"
