"""DeepHasher: the contract of every hasher with a network as F: images or vectors in, codes out, files.

F(x) = Wᵀ Φ(x), Φ being the last hidden layer of any network. A method subclasses ``DeepHasher``; its ``_learn`` gets
the ``Training`` of one fit and calls ``run`` with losses of its own.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from dish import codes, nets, parallel
from dish.checks import check_flag, check_integer, check_number, check_option, check_random_state
from dish.deep import plot_history
from dish.deep.checkpoint import Checkpoint, State
from dish.deep.data import Problem, learnable
from dish.deep.heads import top_of
from dish.deep.kernel_top import KernelTop
from dish.deep.model import Encoder, HashingNet, Packer, encode, load_state, make_model, state_arrays
from dish.deep.training import Settings, Training, reporter, seeded
from dish.errors import InputError, UnsupportedError
from dish.hasher import Hasher, to_json_value
from dish.io import images, modelfile
from dish.io.atomic import replacing
from dish.machine import resolve_device
from dish.similarity import Similarity

Fitted = dict[str, Any]  # attribute → value
FILE_SIDE = 224  # of image files for a module that has no size of its own


class DeepHasher(Hasher):
    """A network as hash function.

    Parameters
    ----------
    n_bits : int
        Code length r.
    net : "6conv", "nin", "alexnet", "vgg16", "efficientnet_lite0", "efficientnet_lite2" or an ``nn.Module``
        A module's output (n, D) is taken as the last hidden layer; it gets images (n, 3, H, W), or vectors.
        Rows of features (n, d) get a perceptron in place of a named network.
    weights : None, "imagenet", a path (.pth, .safetensors) or "own"
        Where the network starts from ("own": a module that was trained). Such layers learn at a tenth of the rate.
    freeze : bool
        Leave the network as its weights have it and train only what comes on top: it sees every training image once,
        without augmentation, and the rest takes seconds. What to do with few images or without a GPU.
    epochs : int
        Passes over the training images in each round.
    batch_size, lr, weight_decay
        Of SGD with Nesterov momentum 0.9. "auto" is a rate of 0.1 (images towards codewords: 0.05) and a decay of
        0.002 (vectors: 0.0005) from scratch, 0.01 and 0.0005 (the paper's) for fine-tuning (towards codewords, if all
        layers came with weights: 0.1, and 0 for them). Several processes share every batch: at least two rows each.
    accumulate : int
        Parts of a batch that are put through the network one after the other, their gradients summed: less memory for
        the same step. Batch norm sees a part.
    augment : bool
        Random flips, shifts, small turns, light and cut-outs of the training images.
    mirror : bool
        Encode an image as the mean of F over it and its mirror image.
    image_size : int or None
        Side of the network's input; None is the network's own. Images are cut to their middle square and resized.
    checkpoint : path or None
        A file written after every round. A fit that was killed resumes from it.
    device, random_state, verbose
        As in ``DISH``. ``verbose=1`` reports every epoch.
    """

    _needs_y = True
    vectors_: bool  # learned from vectors (n, d), not from images
    head_: str  # what DeepDISH(head="auto") stood for
    image_shape_: tuple[int, int]  # of the training images, if there were any
    model_: HashingNet

    def __init__(
        self,
        n_bits: int = 48,
        net: Any = "6conv",
        weights: Any = None,
        freeze: bool = False,
        epochs: int = 60,
        batch_size: int = 128,
        lr: float | str = "auto",
        weight_decay: float | str = "auto",
        accumulate: int = 1,
        augment: bool = True,
        mirror: bool = True,
        image_size: int | None = None,
        checkpoint: Any = None,
        device: str = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        self.n_bits = n_bits
        self.net = net
        self.weights = weights
        self.freeze = freeze
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.accumulate = accumulate
        self.augment = augment
        self.mirror = mirror
        self.image_size = image_size
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def takes_images(self) -> bool:
        """Whether this fitted hasher encodes images; one that learned from vectors encodes vectors."""
        check_is_fitted(self)
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

    @property
    def _takes_graded(self) -> bool:
        """Whether labels may be missing, or between 0 and 1."""
        return False

    def _outputs(self, problem: Problem) -> tuple[int, bool]:
        """How many outputs the last layer has that is trained, and whether batch norm follows."""
        return self.n_bits, False

    # --- fit ---

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from uint8 images (n, H, W, 3), files, a torch Dataset, a folder with one per label, or vectors.

        If it fails, the hasher is left as it was: not fitted, or fitted as before.
        """
        ranks = parallel.current()
        with ranks.raise_together():
            self._check_params()
            problem, seen = self._prepare(X, y, ranks)
        problem = problem.with_first_seed()
        with seeded(problem.seed, problem.device):
            training, done = self._start(problem)
            learned = self._learn(training, done)
            training.warn_of_one_code()
            training.thaw()
        timed = {"timings_": training.timings_, "history_": training.history}
        self._keep({**seen, **timed, **learned, "model_": training.model})
        return self

    def _prepare(self, X: Any, y: Any, ranks: parallel.Ranks) -> tuple[Problem, Fitted]:
        """Rows, targets, seed, device and processes of a fit, and the attributes that describe its rows."""
        X, y = images.with_labels(X, y, self.image_side)
        self._require_y(
            y,
            "give (n,) classes or (n, l) labels of 0 and 1, or a folder with a sub-folder per label "
            "(photos without labels: dish photos FOLDER)",
        )
        if isinstance(y, Similarity):
            raise InputError(f"y: {type(self).__name__} learns from classes or labels, not from a similarity")
        blank = type(self)(**self.get_params(deep=False))  # checking rows sets attributes
        data = blank._check_rows(X, reset=True)
        seen = {name: value for name, value in vars(blank).items() if name.endswith("_")}
        if self.freeze and blank.vectors_:
            raise InputError(
                "freeze is for images: rows of features have no network in front of them to leave as it is"
            )
        S, targets = learnable(y, len(data), self._takes_graded)
        device = resolve_device(self.device)
        rows = torch.tensor(data, device=device)  # a copy: a memory-map may be read-only
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Problem(rows, targets.to(device), S, seed, device, ranks), seen

    def _start(self, problem: Problem) -> tuple[Training, State | None]:
        """The training at its beginning, or as a checkpoint left it."""
        with problem.ranks.raise_together():
            n_outputs, norm = self._outputs(problem)
            model, fresh = make_model(self.net, self.weights, self.image_size, n_outputs, problem.rows, norm)
            model = model.to(problem.device)
            if problem.rows.ndim == 4 and all(p.ndim <= 4 for p in model.parameters()):
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        frozen, start = model.body if self.freeze else None, time.perf_counter()
        if self.freeze:
            problem = problem.seen_by(model)
            model.body = nn.Identity()
        seconds = time.perf_counter() - start
        checkpoint = Checkpoint(self.checkpoint, self._params_of(problem), problem)
        done = checkpoint.read(model)
        if done is not None:
            problem = replace(problem, seed=done.seed)
        training = Training(problem, model, fresh, self._settings(), checkpoint, frozen)
        if self.freeze:
            training.timings_["features"] = seconds
        training.history += [] if done is None else done.history
        return training, done

    def _settings(self) -> Settings:
        return Settings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            accumulate=self.accumulate,
            augment=self.augment,
            mirror=self.mirror,
            fine_tuning=self.weights is not None,
            recordable=not isinstance(self.net, nn.Module),
            report=reporter(type(self).__name__, self.verbose),
        )

    def _params_of(self, problem: Problem) -> dict[str, Any]:
        """The parameters, with what "auto" stands for where that decides what is learned."""
        return dict(self.get_params(deep=False))

    def _learn(self, training: Training, done: State | None) -> Fitted:
        """The method: train the network, from the state ``done`` on if there is one; attributes to keep."""
        raise UnsupportedError(f"{type(self).__name__} defines no way to learn")

    def _keep(self, fitted: Fitted) -> None:
        """Replace what a former fit left by the results of this one."""
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
        for name in ("freeze", "augment", "mirror"):
            check_flag(name, getattr(self, name))
        if self.image_size is not None:
            check_integer("image_size", self.image_size, low=8)
        if not isinstance(self.net, nn.Module):
            nets.spec(self.net)
            if self.freeze and self.weights is None:
                why = "freeze=True needs weights: a network that starts from random numbers must learn"
                raise InputError(f"{why}; give weights='imagenet' or a file, or freeze=False")

    def _check_rows(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """Images as uint8 (n, H, W, 3), or vectors as float32 (n, d)."""
        if not images.looks_like_images(X):
            return self._check_X(X, reset=reset).astype(np.float32, copy=False)
        data = images.check_images(X)
        if reset:
            self.n_features_in_ = int(np.prod(data.shape[1:]))
            self.image_shape_ = (int(data.shape[1]), int(data.shape[2]))
            self.vectors_ = False
        elif self.vectors_:
            raise InputError(f"X holds images, but this {type(self).__name__} learned from rows of features")
        return data

    def _check_X(self, X: Any, *, reset: bool) -> NDArray[Any]:
        if not reset and not self.vectors_:
            raise InputError(f"X must be images, uint8 (n, H, W, 3), as in fit; got an array of shape {np.shape(X)}")
        checked = super()._check_X(X, reset=reset)
        if reset:
            self.vectors_ = True
        return checked

    # --- the hash function ---

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """F(X), float32 (n, n_bits): the sign of an entry is the bit, its size how sure it is."""
        check_is_fitted(self)
        return self._decision_values(self._encodable(X))

    def _packed(self, X: Any) -> NDArray[np.uint8]:
        return codes.pack(self._decision_values(self._encodable(X)))

    def _encodable(self, X: Any) -> NDArray[Any]:
        return self._check_rows(images.with_labels(X, None, self.image_side)[0], reset=False)

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        device = resolve_device(self.device)
        model = self.model_.to(device)
        size = model.rows_at_once(X.shape)
        parts = [
            encode(model, torch.tensor(X[i : i + size], device=device), self.mirror).cpu().numpy()
            for i in range(0, len(X), size)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.n_bits), np.float32)

    def draw_history(self, path: str | os.PathLike[str]) -> None:
        """Draw the losses of the last fit, pass by pass, as .png, .svg or .pdf; needs matplotlib."""
        if not getattr(self, "history_", None):
            raise InputError(
                f"this {type(self).__name__} has no history to draw: it was not trained here, or not at all"
            )
        plot_history.draw(self.history_, path)

    # --- files ---

    def _hash_function(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("n_bits", "mirror", "vectors_", "n_features_in_")}
        return {**state_arrays(self.model_), **values, "size": self.model_.size}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        check_is_fitted(self)
        if isinstance(self.net, nn.Module):
            raise UnsupportedError(
                "a hasher with a network of your own cannot be saved, since files hold no code: use export_onnx, or "
                "save hasher.model_.state_dict() yourself"
            )
        arrays = state_arrays(self.model_, "model.")
        if hasattr(self, "codes_"):
            arrays["codes_"] = self.codes_
        params = {k: to_json_value(k, v) for k, v in self.get_params(deep=False).items()}
        params |= {"checkpoint": None, "weights": None if self.weights is None else str(self.weights)}
        fitted = {
            "n_features_in_": self.n_features_in_,
            "vectors_": self.vectors_,
            "width": self.model_.width,
        }
        fitted |= {name: getattr(self, name) for name in ("head_",) if hasattr(self, name)}
        modelfile.save(path, type(self).__name__, {"init": params, "fitted": fitted}, arrays)

    @classmethod
    def _restore(cls, content: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        hasher = cls(**content["init"])
        fitted = content["fitted"]
        hasher.n_features_in_, hasher.vectors_ = fitted["n_features_in_"], fitted["vectors_"]
        for name in {"codes_", "head_"} & (arrays.keys() | fitted.keys()):
            setattr(hasher, name, {**fitted, **arrays}[name])
        spec = nets.spec("mlp" if hasher.vectors_ else hasher.net)
        former = hasher.vectors_ and "model.body.features.0.weight" in arrays
        body = nets.FormerMLP() if former else spec.make(None)
        if hasher.vectors_:
            body.eval()(torch.zeros(1, hasher.n_features_in_))  # lazy layers learn their width
        size = 0 if hasher.vectors_ else hasher.image_size or spec.size
        n_outputs = len(arrays.get("model.hash.bias", ()))
        norm = "model.norm.running_mean" in arrays
        hasher.model_ = HashingNet(body, fitted["width"], n_outputs, size, spec.normal, norm)
        top = {k.removeprefix("model.top."): a for k, a in arrays.items() if k.startswith("model.top.")}
        if top:
            hasher.model_.top = KernelTop(top) if "anchors" in top else top_of(top)
        load_state(hasher.model_, arrays, "model.")
        return hasher

    def export_onnx(self, path: str | os.PathLike[str], output: str = "F") -> None:
        """Write the hash function as an ONNX graph: images uint8 (n, H, W, 3) (or rows float32) in.

        ``output``: "F", float32 (n, n_bits), or "codes", the packed codes, uint8 (n, ceil(n_bits / 8)). H and W are
        the network's own input size (``image_size``), for a module without one the size it learned from.
        """
        check_is_fitted(self)
        check_option("output", output, ("F", "codes"))
        model: nn.Module = Encoder(copy.deepcopy(self.model_), self.mirror)  # a copy: ours stays where it is
        model = (Packer(model) if output == "codes" else model).cpu().eval()
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
