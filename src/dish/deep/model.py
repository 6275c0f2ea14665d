"""The network: any module that computes Φ(x), a linear layer on it, and the head that turns its outputs into F(x)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dish import nets
from dish.deep.heads import Head
from dish.errors import InputError, ModelFileError
from dish.io import modelfile
from dish.parallel import Ranks
from dish.progress import progress

OWN = "own"  # value of ``weights``: the module was trained and keeps its weights
MAX_ROWS_AT_ONCE, SMALL_SIDE = 512, 64
LARGE_GPU = 24 * 2**30  # bytes; VGG-16 needs half of it for 512 images of 224×224 pixels


class HashingNet(nn.Module):
    """A body that computes Φ, a linear layer, and a head. Takes uint8 images (n, H, W, 3) or vectors (n, d)."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, width: int, n_outputs: int, size: int, normal: nets.Normal, norm: bool = False
    ) -> None:
        """``norm`` puts batch norm on the outputs, so that each is positive about half of the time.

        With ``n_outputs=0`` there is no linear layer: the head takes Φ itself.
        """
        super().__init__()
        self.body, self.width, self.n_outputs, self.has_norm = body, width, n_outputs, norm
        self.hash: nn.Module = nn.Linear(width, n_outputs) if n_outputs else nn.Identity()
        self.norm = nn.BatchNorm1d(n_outputs, affine=False) if norm else nn.Identity()
        self.head = Head()  # replaced after training
        self.size = size
        mean, std = (255 * torch.tensor(v).view(-1, 1, 1) for v in normal)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def prepare(self, x: Tensor) -> Tensor:
        """Images (n, H, W, 3) of 0 … 255 → normalised (n, 3, size, size); vectors are returned as float32.

        Images of another size are treated like image files: cut to their middle square and resized.
        """
        if x.ndim == 2:
            return x.float()
        x = x.permute(0, 3, 1, 2).float()  # channels-last images stay channels-last in memory: no copy
        if self.size and x.shape[2:] != (self.size, self.size):
            x = _middle_square(x)
            x = functional.interpolate(x, (self.size, self.size), mode="bilinear", antialias=x.shape[2] > self.size)
        return (x - self.mean) / self.std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared rows → Φ (n, D) and the outputs f that are trained, (n, n_outputs)."""
        phi = self.body(x)
        return phi, self.norm(self.hash(phi))

    def rows_at_once(self, shape: Sequence[int]) -> int:
        """How many rows of this shape (n, …) to encode at once.

        Fewer for large images: their activations must fit in the caches of a CPU, or in the memory of a GPU.
        """
        side = 0 if len(shape) == 2 else self.size or max(shape[1:3])
        if side <= SMALL_SIDE:
            return MAX_ROWS_AT_ONCE
        device = self.mean.device
        large_gpu = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory >= LARGE_GPU
        rows = 16 if device.type == "cpu" else MAX_ROWS_AT_ONCE if large_gpu else 128  # of 224×224 pixels
        return max(1, min(rows, int(rows * (224 / side) ** 2)))


class NetworkEncoder(nn.Module):
    """Raw rows → F. An image is encoded together with its mirror image if ``mirror`` is set."""

    def __init__(self, model: HashingNet, mirror: bool, head: Head | None = None) -> None:
        """``head`` replaces that of the model."""
        super().__init__()
        self.model, self.mirror, self.head = model, mirror, head or model.head

    def forward(self, x: Tensor) -> Tensor:
        """F (n, r)."""
        x = self.model.prepare(x)
        views = [x, x.flip(3)] if self.mirror and x.ndim == 4 else [x]
        F: Tensor = self.head(*(self.model(view)[1] for view in views))
        return F.float()


class PackedEncoder(nn.Module):
    """Raw rows → packed codes, equal to ``codes.pack`` of F."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """uint8 (n, ceil(r / 8))."""
        bits = (self.encoder(x) >= 0).to(torch.int32)
        bits = functional.pad(bits, (0, -bits.shape[1] % 8))
        values = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32, device=bits.device)
        return (bits.unflatten(1, (-1, 8)) * values).sum(2).to(torch.uint8)


def encode(model: HashingNet, x: Tensor, mirror: bool, head: Head | None = None) -> Tensor:
    """F (n, r) of raw rows in evaluation mode; ``head`` replaces that of the model."""
    model.eval()
    with torch.no_grad():
        return NetworkEncoder(model, mirror, head)(x)


def extract_features(model: HashingNet, rows: Tensor, ranks: Ranks) -> Tensor:
    """Φ (n, D) of rows as they are, without augmentation. Each process computes a part."""
    size, model = model.rows_at_once(rows.shape), model.eval()
    phi = torch.zeros(len(rows), model.width, device=rows.device)
    with torch.no_grad(), progress("network features", len(rows)) as done:
        for i in range(ranks.rank * size, len(rows), ranks.world * size):
            phi[i : i + size] = model(model.prepare(rows[i : i + size]))[0]
            done(ranks.world * size)
    ranks.sum_in_place(phi)
    return phi


def make_model(
    net: Any, weights: Any, image_size: int | None, n_outputs: int, rows: Tensor, norm: bool = False
) -> tuple[HashingNet, frozenset[str]]:
    """The network for such rows, and the names of the tensors of its body for which there were no weights.

    A module is copied, so that the caller's is not changed. Vectors get a perceptron instead of a named network.
    """
    if isinstance(net, nn.Module):
        body, size, normal = copy.deepcopy(net), image_size or 0, nets.NETS["vgg16"].normal
    else:
        spec = nets.spec(net if rows.ndim == 4 else "mlp")
        body, size, normal = spec.make(None), image_size or spec.size, spec.normal
    if rows.ndim == 2:
        size = 0
    width = _output_width(body, HashingNet(nn.Identity(), 1, 1, size, normal).prepare(rows[:2].cpu()))
    if isinstance(body, nets.MLP) and weights != OWN:
        body.begin_with(rows)
    fresh: list[str] = []
    if weights == OWN and isinstance(net, str):
        raise InputError(
            f"weights={OWN!r} is for a module that was trained; net is {net!r}: give 'imagenet' or a path"
        )
    if weights not in (None, OWN):  # after the first forward pass, which gives lazy layers their widths
        fresh = nets.load_weights(body, weights, net if isinstance(net, str) else "")
    return HashingNet(body, width, n_outputs, size, normal, norm), frozenset(fresh)


def move_to(model: HashingNet, rows: Tensor) -> HashingNet:
    """The network on the device of the rows, in the memory layout that is fastest for images."""
    model = model.to(rows.device)
    if rows.ndim == 4 and all(p.ndim <= 4 for p in model.parameters()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _output_width(body: nn.Module, x: Tensor) -> int:
    """D of the features (n, D) that a network computes from prepared rows; an error if it cannot."""
    try:
        with torch.no_grad():
            phi = body.cpu().eval()(x)
    except Exception as error:
        given = f"float32 rows of shape {tuple(x.shape)}"
        raise InputError(f"net: the module cannot take {given} ({type(error).__name__}: {error})") from error
    if not isinstance(phi, Tensor) or phi.ndim != 2:
        gave = f"shape {tuple(phi.shape)}" if isinstance(phi, Tensor) else f"a {type(phi).__name__}"
        raise InputError(f"net must return one feature vector per row, a tensor (n, D); it returned {gave}")
    return int(phi.shape[1])


def _middle_square(x: Tensor) -> Tensor:
    """(n, 3, H, W) → (n, 3, s, s) with s the shorter side."""
    height, width = x.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return x[:, :, top : top + side, left : left + side]


def state_arrays(module: nn.Module, prefix: str = "") -> modelfile.Arrays:
    """The tensors of a module as named arrays."""
    return {prefix + k: v.detach().cpu().contiguous().numpy() for k, v in module.state_dict().items()}


def load_state(module: nn.Module, arrays: modelfile.Arrays, prefix: str) -> None:
    """Copy arrays with this prefix into a module of the same shapes."""
    state = {k.removeprefix(prefix): torch.from_numpy(v.copy()) for k, v in arrays.items() if k.startswith(prefix)}
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelFileError(f"the file does not fit its network: {error}") from None
