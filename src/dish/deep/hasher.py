"""DeepHasher: what every hasher with a network as F shares: images in, training, encoding, files.

F(x) = Wᵀ Φ(x), Φ being the last hidden layer of any network. A method subclasses ``DeepHasher``, and in its
``_learn`` calls ``_train`` with losses of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn import functional

from dish import codes, nets
from dish.checks import check_integer, check_number, check_option
from dish.deep.augment import augment
from dish.hasher import Hasher, plain
from dish.io import images, modelfile
from dish.io.atomic import replacing
from dish.machine import resolve_device
from dish.progress import Stopwatch, progress
from dish.similarity.labelled import Similarity, from_labels

BatchLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (Φ (b, D), F (b, r), rows (b,)) → a number


class HashNet(nn.Module):
    """Φ by any network, then r outputs; uint8 images (n, H, W, 3) or vectors (n, d) in."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, width: int, n_bits: int, size: int, normal: Any) -> None:
        super().__init__()
        self.body = body
        self.hash = nn.Linear(width, n_bits)
        self.size = size
        mean, std = (255 * torch.tensor(v).view(-1, 1, 1) for v in normal)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def prepare(self, x: Tensor) -> Tensor:
        """Images (n, H, W, 3) of 0 … 255 → normalised (n, 3, size, size); vectors as they are."""
        if x.ndim == 2:
            return x.float()
        x = x.permute(0, 3, 1, 2).float()  # of channels-last images this is channels-last memory: no copy
        if self.size and x.shape[2:] != (self.size, self.size):
            x = functional.interpolate(x, (self.size, self.size), mode="bilinear", antialias=x.shape[2] > self.size)
        return (x - self.mean) / self.std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared rows → Φ (n, D) and F (n, r)."""
        phi = self.body(x)
        return phi, self.hash(phi)


class DeepHasher(Stopwatch, Hasher):
    """A network as hash function.

    Parameters
    ----------
    n_bits : int
        Code length r.
    net : "6conv", "nin", "alexnet", "vgg16", "efficientnet_lite0" or an ``nn.Module``
        A module's output (n, D) is taken as the last hidden layer; it gets images (n, 3, H, W), or vectors.
        Rows of features (n, d) get a perceptron with two hidden layers in place of a named network.
    weights : None, "imagenet" or a path (.pth, .safetensors)
        Where the network starts from: fine-tuning uses a tenth of the learning rate, ten times that in new layers.
    epochs : int
        Passes over the training images in each round.
    batch_size, lr, weight_decay
        Of SGD with Nesterov momentum 0.9. "auto" is a rate of 0.1 and a decay of 0.002 from scratch, 0.01 and 0.0005
        (the paper's) for fine-tuning.
    augment : bool
        Random flips, shifts, small turns, light and cut-outs of the training images.
    mirror : bool
        Encode an image as the mean of F over it and its mirror image.
    image_size : int or None
        Side of the network's input; None is the network's own. Images are resized on the device.
    checkpoint : path or None
        A file written after every round. A fit that was killed goes on from it.
    device, random_state, verbose
        As in ``DISH``. ``verbose=1`` reports every epoch.
    """

    takes_images = True

    def __init__(
        self,
        n_bits: int = 48,
        net: Any = "6conv",
        weights: Any = None,
        epochs: int = 60,
        batch_size: int = 128,
        lr: float | str = "auto",
        weight_decay: float | str = "auto",
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
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.augment = augment
        self.mirror = mirror
        self.image_size = image_size
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = True
        return tags

    # --- fit ---

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from uint8 images (n, H, W, 3), a torch Dataset, a folder with a sub-folder a label, or rows."""
        self._check_params()
        X, y = images.with_labels(X, y, self._side())
        self._require_y(y, "give (n,) classes or (n, l) labels of 0 and 1, or a folder with a sub-folder a label")
        if isinstance(y, Similarity):
            raise ValueError(f"y: {type(self).__name__} learns from classes or labels, not from a similarity")
        data = self._check_rows(X, reset=True)
        S = from_labels(y, n_rows=len(data))
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._device = resolve_device(self.device)
        self.timings_ = {}
        self.history_: list[dict[str, float]] = []
        self._data = torch.tensor(data, device=self._device)  # a copy: a memory-map may be read-only
        self._targets = class_targets(y).to(self._device)
        with _seeded(self._seed):
            self.model_ = self._make_model(self._data[:2]).to(self._device)
            if self._data.ndim == 4:
                self.model_ = self.model_.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._learn(S)
        del self._data, self._targets
        return self

    def _learn(self, S: Similarity) -> None:
        """The method: train ``self.model_``."""
        raise TypeError(f"{type(self).__name__} defines no way to learn")

    def _check_params(self) -> None:
        self._check_n_bits()
        check_integer("epochs", self.epochs, low=1)
        check_integer("batch_size", self.batch_size, low=2)
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if isinstance(value, str):
                check_option(name, value, ("auto",), " or a number")
            else:
                check_number(name, value, low=0, strict=name == "lr")
        if self.image_size is not None:
            check_integer("image_size", self.image_size, low=8)
        if not isinstance(self.net, nn.Module):
            nets.spec(self.net)

    def _side(self) -> int | None:
        """The side of images read from files."""
        if self.image_size is not None:
            return self.image_size
        return None if isinstance(self.net, nn.Module) else nets.spec(self.net).size

    def _check_rows(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """Images as uint8 (n, H, W, 3), or vectors as float32 (n, d)."""
        if not images.looks_like_images(X):
            return self._check_X(X, reset=reset).astype(np.float32, copy=False)
        data = images.check_images(X)
        if reset:
            self.n_features_in_ = int(np.prod(data.shape[1:]))
            self.image_shape_ = data.shape[1:3]
            self.vectors_ = False
        elif getattr(self, "vectors_", False):
            raise ValueError(f"X holds images, but this {type(self).__name__} learned from rows of features")
        return data

    def _check_X(self, X: Any, *, reset: bool) -> NDArray[Any]:
        if not reset and not self.vectors_:
            raise ValueError(f"X must be images, uint8 (n, H, W, 3), as in fit; got an array of shape {np.shape(X)}")
        checked = super()._check_X(X, reset=reset)
        if reset:
            self.vectors_ = True
        return checked

    def _make_model(self, some: Tensor) -> HashNet:
        """The network for such rows, with weights if any were given."""
        if isinstance(self.net, nn.Module):
            import copy

            body, size, normal = copy.deepcopy(self.net), self.image_size or 0, nets.NETS["vgg16"].normal
        elif some.ndim == 2:
            body, size, normal = nets.build("mlp", None), 0, nets.NETS["mlp"].normal
        else:
            spec = nets.spec(self.net)
            body, size, normal = spec.make(None), self.image_size or spec.size, spec.normal
        probe = HashNet(nn.Identity(), 1, 1, size, normal)
        with torch.no_grad():
            phi = body.eval()(probe.prepare(some.cpu()))
        if phi.ndim != 2:
            raise ValueError(f"net must give a feature vector a row, (n, D); it gave shape {tuple(phi.shape)}")
        self.fresh_: list[str] = []
        if self.weights is not None:  # after the first pass: lazy layers have their widths
            named = self.net if isinstance(self.net, str) else ""
            self.fresh_ = nets.load_weights(body, self.weights, named)
        return HashNet(body, phi.shape[1], self.n_bits, size, normal)

    # --- training ---

    def _train(self, loss: BatchLoss, round_: int, heads: nn.Module | None = None, scale: float = 1.0) -> None:
        """``epochs`` passes of SGD, the rate falling from scale·lr to nothing along a cosine.

        ``heads`` are layers of the loss that learn too. Seeded by round: a fit that goes on from a checkpoint
        takes the same steps as one that was never stopped.
        """
        model, n = self.model_, len(self._data)
        rank, world = _rank_and_world()
        order = torch.Generator().manual_seed(self._seed + 1000 * round_)
        noise = torch.Generator(self._device).manual_seed(self._seed + 1000 * round_ + 1 + rank)
        optimiser = self._optimiser(heads, scale)
        size = min(self.batch_size, n)
        steps = max(1, n // size)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser,
            max_lr=[g["lr"] for g in optimiser.param_groups],
            total_steps=steps * self.epochs + 1,
            pct_start=0.1,
            cycle_momentum=False,
        )
        params = [p for param_group in optimiser.param_groups for p in param_group["params"]]
        _same_everywhere([*params, *model.buffers()])
        with self._stage(f"round {round_}"), progress(f"round {round_}", self.epochs) as step:
            for epoch in range(self.epochs):
                model.train()
                total = torch.zeros((), device=self._device)
                for rows in torch.randperm(n, generator=order)[: steps * size].view(steps, size):
                    rows = rows[rank::world].to(self._device)
                    x = self._data[rows]
                    if self.augment and x.ndim == 4:
                        x = augment(x, noise)
                    with self._autocast():
                        phi, F = model(model.prepare(x))
                    value = loss(phi.float(), F.float(), rows)
                    optimiser.zero_grad(set_to_none=True)
                    value.backward()
                    _average_gradients(params)
                    optimiser.step()
                    schedule.step()
                    total += value.detach()
                self._epoch_done(round_, epoch, float(total) / steps)
                step(1)
                if not np.isfinite(float(total)):
                    raise ValueError(f"training diverged in epoch {epoch + 1}: lower lr (it is {self.lr!r})")
            _same_everywhere(list(model.buffers()))  # batch norm's averages are each process's own

    def _epoch_done(self, round_: int, epoch: int, loss: float) -> None:
        self.history_.append({"round": round_, "epoch": epoch, "loss": loss})
        if self.verbose:
            name = type(self).__name__
            print(f"{name} round {round_}, epoch {epoch + 1}/{self.epochs}: loss {loss:.4f}", file=sys.stderr)

    def _optimiser(self, heads: nn.Module | None, scale: float) -> torch.optim.Optimizer:
        """SGD; when fine-tuning, layers that came with weights learn at a tenth of the rate."""
        tuning = self.weights is not None
        lr = scale * ((0.01 if tuning else 0.1) if isinstance(self.lr, str) else float(self.lr))
        decay = (5e-4 if tuning else 2e-3) if isinstance(self.weight_decay, str) else float(self.weight_decay)
        new = [*self.model_.hash.parameters(), *(heads.parameters() if heads is not None else ())]
        fresh = set(self.fresh_)
        old: list[nn.Parameter] = []
        for name, p in self.model_.body.named_parameters():
            (new if tuning and name in fresh else old).append(p)
        groups = [{"params": old, "lr": 0.1 * lr if tuning else lr}, {"params": new, "lr": lr}]
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=decay)

    def _autocast(self) -> Any:
        """Half precision where it is fast."""
        return torch.autocast("cuda", torch.bfloat16) if self._device.type == "cuda" else nullcontext()

    def _classification(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Softmax loss for classes, a logistic loss a label for multi-label rows."""
        target = self._targets[rows]
        if target.ndim == 2:
            return functional.binary_cross_entropy_with_logits(logits, target)
        return functional.cross_entropy(logits, target)

    @property
    def _n_targets(self) -> int:
        return int(self._targets.shape[1] if self._targets.ndim == 2 else self._targets.max() + 1)

    def _outputs(self) -> Tensor:
        """F (n, r) of the training rows, without augmentation; the same on every process."""
        F = torch.cat([self._forward(self.model_, x) for x in self._data.split(self._at_a_time())])
        if _rank_and_world()[1] > 1:
            dist.broadcast(F, 0)
        return F

    def _at_a_time(self) -> int:
        """Rows to encode at once: fewer of large images, whose activations take gigabytes."""
        return 512 if self.vectors_ or self.model_.size <= 64 else 128

    def _forward(self, model: HashNet, x: Tensor) -> Tensor:
        model.eval()
        with torch.no_grad():
            return _Encoder(model, self.mirror)(x)

    # --- checkpoints ---

    def _fingerprint(self) -> str:
        """Of parameters and data: a checkpoint of something else is not taken up."""
        left_out = ("checkpoint", "verbose", "device", "random_state")
        params = {k: repr(v) for k, v in self.get_params().items() if k not in left_out}
        digest = hashlib.sha256(json.dumps({**params, "seed": self._seed}, sort_keys=True).encode())
        for tensor in (self._data, self._targets):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _write_checkpoint(self, round_: int, H: NDArray[np.uint8]) -> None:
        if self.checkpoint is None or _rank_and_world()[0] != 0:
            return
        arrays = {f"model.{k}": v for k, v in state_arrays(self.model_).items()}
        content = {"round": round_, "fingerprint": self._fingerprint(), "history": self.history_}
        modelfile.save(self.checkpoint, "checkpoint", content, {"codes": H, **arrays})

    def _read_checkpoint(self) -> tuple[int, NDArray[np.uint8]] | None:
        """The round a former fit finished, and its codes; the network is put back as it was."""
        if self.checkpoint is None or not os.path.exists(self.checkpoint):
            return None
        kind, content, arrays = modelfile.read(self.checkpoint)
        if kind != "checkpoint" or content["fingerprint"] != self._fingerprint():
            raise ValueError(
                f"checkpoint {self.checkpoint} belongs to other data or parameters: remove it, or name another file"
            )
        self.model_.load_state_dict(_state_tensors(arrays, "model."), strict=True)
        self.history_ = content["history"]
        return int(content["round"]), arrays["codes"]

    # --- the hash function ---

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """F(X), float32 (n, n_bits): the sign of an entry is the bit, its size how sure it is."""
        check_is_fitted(self)
        return self._decide(self._encodable(X))

    def transform(self, X: Any) -> NDArray[np.uint8]:
        """Packed codes, uint8 (n, ceil(n_bits / 8)) = ``np.packbits(decision_function(X) >= 0, axis=1)``."""
        check_is_fitted(self)
        return codes.pack(self._decide(self._encodable(X)))

    def _encodable(self, X: Any) -> NDArray[Any]:
        return self._check_rows(images.with_labels(X, None, self._side())[0], reset=False)

    def _decide(self, X: NDArray[Any]) -> NDArray[Any]:
        device = resolve_device(self.device)
        model, size = self.model_.to(device), self._at_a_time()
        parts = [
            self._forward(model, torch.tensor(X[i : i + size], device=device)).cpu().numpy()
            for i in range(0, len(X), size)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.n_bits), np.float32)

    # --- files ---

    def _hash_function(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("n_bits", "mirror", "vectors_", "n_features_in_")}
        return {**state_arrays(self.model_), **values, "size": self.model_.size}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        check_is_fitted(self)
        if isinstance(self.net, nn.Module):
            raise TypeError(
                "a hasher with a network of your own cannot be saved, since files hold no code: use export_onnx, or "
                "save hasher.model_.state_dict() yourself"
            )
        arrays = {f"model.{k}": v for k, v in state_arrays(self.model_).items()}
        if hasattr(self, "codes_"):
            arrays["codes_"] = self.codes_
        params = {k: plain(k, v) for k, v in self.get_params(deep=False).items()}
        params |= {"checkpoint": None, "weights": None}  # the file holds all weights itself
        fitted = {
            "n_features_in_": self.n_features_in_,
            "vectors_": self.vectors_,
            "width": self.model_.hash.in_features,
        }
        modelfile.save(path, type(self).__name__, {"init": params, "fitted": fitted}, arrays)

    @classmethod
    def _restore(cls, content: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        hasher = cls(**content["init"])
        fitted = content["fitted"]
        hasher.n_features_in_, hasher.vectors_ = fitted["n_features_in_"], fitted["vectors_"]
        if "codes_" in arrays:
            hasher.codes_ = arrays["codes_"]
        spec = nets.spec("mlp" if hasher.vectors_ else hasher.net)
        body = spec.make(None)
        if hasher.vectors_:
            body.eval()(torch.zeros(1, hasher.n_features_in_))  # lazy layers learn their width
        size = 0 if hasher.vectors_ else hasher.image_size or spec.size
        hasher.model_ = HashNet(body, fitted["width"], hasher.n_bits, size, spec.normal)
        try:
            hasher.model_.load_state_dict(_state_tensors(arrays, "model."), strict=True)
        except RuntimeError as error:
            raise modelfile.ModelFileError(f"the model file does not fit its network: {error}") from None
        return hasher

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write F as an ONNX graph: images uint8 (n, H, W, 3) (or rows float32) → float32 (n, n_bits).

        H and W are the network's own input size (``image_size``), for a module without one the size it learned from.
        """
        check_is_fitted(self)
        model = _Encoder(self.model_, self.mirror).cpu().eval()
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
                output_names=["F"],
                dynamic_axes={name: {0: "n"}, "F": {0: "n"}},
                dynamo=False,
            )


class _Encoder(nn.Module):
    """Raw rows → F, of images as the mean over both mirror images."""

    def __init__(self, model: HashNet, mirror: bool) -> None:
        super().__init__()
        self.model, self.mirror = model, mirror

    def forward(self, x: Tensor) -> Tensor:
        """F (n, r)."""
        x = self.model.prepare(x)
        F: Tensor = self.model(x)[1]
        if self.mirror and x.ndim == 4:
            F = (F + self.model(x.flip(3))[1]) / 2
        return F.float()


def class_targets(y: Any) -> Tensor:
    """Class numbers (n,) int64, or labels (n, l) float32 of 0 and 1."""
    from dish.labels import encode_classes

    if hasattr(y, "toarray"):
        y = y.toarray()
    if np.ndim(y) == 2:
        return torch.from_numpy(np.asarray(y, np.float32))
    return torch.from_numpy(encode_classes(y)[0].astype(np.int64))


def state_arrays(model: nn.Module) -> modelfile.Arrays:
    """The tensors of a network as arrays."""
    return {k: v.detach().cpu().contiguous().numpy() for k, v in model.state_dict().items()}


def _state_tensors(arrays: modelfile.Arrays, prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): torch.from_numpy(v.copy()) for k, v in arrays.items() if k.startswith(prefix)}


def _rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _same_everywhere(tensors: list[Tensor]) -> None:
    """Every process goes on with the first one's values."""
    if _rank_and_world()[1] > 1:
        for t in tensors:
            dist.broadcast(t.data, 0)


def _average_gradients(params: list[nn.Parameter]) -> None:
    """Data parallel: each process had its share of the batch; one message carries all gradients."""
    world = _rank_and_world()[1]
    if world == 1:
        return
    used = [p for p in params if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in used if p.grad is not None])
    dist.all_reduce(flat)
    for p, g in zip(used, (flat / world).split([p.numel() for p in used]), strict=True):
        p.grad = g.view_as(p)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The same initial weights and dropout for the same seed, the caller's generators untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
