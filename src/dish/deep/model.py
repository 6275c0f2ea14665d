"""The network: Φ by any module, F(x) = Wᵀ Φ(x) on top of it, and the encoder that is exported."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dish import nets
from dish.errors import InputError, ModelFileError
from dish.io import modelfile

OWN = "own"  # weights: those that a module came with
MOST_AT_ONCE, SMALL_SIDE = 512, 64
ROOM = 24 * 2**30  # bytes: the activations of 512 images of 224 × 224 pixels may take half of it (VGG-16)


class Top(nn.Module):
    """What turns the outputs of a trained network into F; this one leaves them as they are."""

    def forward(self, *views: Tensor) -> Tensor:
        """F (n, r) of outputs (n, R); of several views of the same rows by the mean of what they say."""
        return self.bits(torch.stack([self.scores(view) for view in views]).mean(0))

    def scores(self, f: Tensor) -> Tensor:
        """What one view of the rows says."""
        return f

    def bits(self, scores: Tensor) -> Tensor:
        """F of the mean over views."""
        return scores


class HashingNet(nn.Module):
    """Φ by any network, then r outputs; uint8 images (n, H, W, 3) or vectors (n, d) in."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, width: int, n_outputs: int, size: int, normal: nets.Normal, norm: bool = False
    ) -> None:
        """``norm``: batch norm of the outputs, so that every one is above zero about as often as below.

        Without outputs ``top`` takes Φ itself.
        """
        super().__init__()
        self.body, self.width, self.n_outputs = body, width, n_outputs
        self.hash: nn.Module = nn.Linear(width, n_outputs) if n_outputs else nn.Identity()
        self.norm = nn.BatchNorm1d(n_outputs, affine=False) if norm else nn.Identity()
        self.top = Top()  # after training another
        self.size = size
        mean, std = (255 * torch.tensor(v).view(-1, 1, 1) for v in normal)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def prepare(self, x: Tensor) -> Tensor:
        """Images (n, H, W, 3) of 0 … 255 → normalised (n, 3, size, size); vectors as they are.

        Images of another shape are treated as files are: their middle square, resized.
        """
        if x.ndim == 2:
            return x.float()
        x = x.permute(0, 3, 1, 2).float()  # of channels-last images this is channels-last memory: no copy
        if self.size and x.shape[2:] != (self.size, self.size):
            x = _middle_square(x)
            x = functional.interpolate(x, (self.size, self.size), mode="bilinear", antialias=x.shape[2] > self.size)
        return (x - self.mean) / self.std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared rows → Φ (n, D) and the outputs that are trained, (n, r) or as many as ``top`` takes."""
        phi = self.body(x)
        return phi, self.norm(self.hash(phi))

    def rows_at_once(self, shape: Sequence[int]) -> int:
        """Of rows (n, …) like these, how many to encode at once.

        Fewer of large images, whose activations leave the caches of a processor, or fill the memory of a GPU.
        """
        side = 0 if len(shape) == 2 else self.size or max(shape[1:3])
        if side <= SMALL_SIDE:
            return MOST_AT_ONCE
        device = self.mean.device
        large_gpu = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory >= ROOM
        rows = 16 if device.type == "cpu" else MOST_AT_ONCE if large_gpu else 128  # of 224 × 224 pixels
        return max(1, min(rows, int(rows * (224 / side) ** 2)))


class Encoder(nn.Module):
    """Raw rows → F, of images by both mirror images."""

    def __init__(self, model: HashingNet, mirror: bool) -> None:
        super().__init__()
        self.model, self.mirror = model, mirror

    def forward(self, x: Tensor) -> Tensor:
        """F (n, r)."""
        x = self.model.prepare(x)
        views = [x, x.flip(3)] if self.mirror and x.ndim == 4 else [x]
        F: Tensor = self.model.top(*(self.model(view)[1] for view in views))
        return F.float()


class Packer(nn.Module):
    """Raw rows → packed codes, as ``codes.pack`` makes them of F."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """uint8 (n, ceil(r / 8))."""
        bits = (self.encoder(x) >= 0).to(torch.int32)
        bits = functional.pad(bits, (0, -bits.shape[1] % 8))
        worth = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32, device=bits.device)
        return (bits.unflatten(1, (-1, 8)) * worth).sum(2).to(torch.uint8)


def encode(model: HashingNet, x: Tensor, mirror: bool) -> Tensor:
    """F (n, r) of raw rows, outside of training."""
    model.eval()
    with torch.no_grad():
        return Encoder(model, mirror)(x)


def make_model(
    net: Any, weights: Any, image_size: int | None, n_outputs: int, rows: Tensor, norm: bool = False
) -> tuple[HashingNet, frozenset[str]]:
    """The network for such rows, and the parameters of its body that came without weights.

    A module is copied, so that the caller's stays as it is; vectors get a perceptron in place of a named network.
    """
    if isinstance(net, nn.Module):
        body, size, normal = copy.deepcopy(net), image_size or 0, nets.NETS["vgg16"].normal
    else:
        spec = nets.spec(net if rows.ndim == 4 else "mlp")
        body, size, normal = spec.make(None), image_size or spec.size, spec.normal
    if rows.ndim == 2:
        size = 0
    probe = HashingNet(nn.Identity(), 1, 1, size, normal)
    x = probe.prepare(rows[:2].cpu())
    try:
        with torch.no_grad():
            phi = body.cpu().eval()(x)
    except Exception as error:
        given = f"float32 rows of shape {tuple(x.shape)}"
        raise InputError(f"net: the module cannot take {given} ({type(error).__name__}: {error})") from error
    if not isinstance(phi, Tensor) or phi.ndim != 2:
        gave = f"shape {tuple(phi.shape)}" if isinstance(phi, Tensor) else f"a {type(phi).__name__}"
        raise InputError(f"net must give one feature vector per row, a tensor (n, D); it gave {gave}")
    if isinstance(body, nets.MLP) and weights != OWN:
        body.begin_with(rows)
    fresh: list[str] = []
    if weights == OWN and isinstance(net, str):
        raise InputError(
            f"weights={OWN!r} is for a module that was trained; net is {net!r}: give 'imagenet' or a path"
        )
    if weights not in (None, OWN):  # after the first pass: lazy layers have their widths
        fresh = nets.load_weights(body, weights, net if isinstance(net, str) else "")
    return HashingNet(body, phi.shape[1], n_outputs, size, normal, norm), frozenset(fresh)


def _middle_square(x: Tensor) -> Tensor:
    """(n, 3, H, W) → (n, 3, s, s), s the shorter side."""
    height, width = x.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return x[:, :, top : top + side, left : left + side]


def state_arrays(model: nn.Module, prefix: str = "") -> modelfile.Arrays:
    """The tensors of a network as arrays."""
    return {prefix + k: v.detach().cpu().contiguous().numpy() for k, v in model.state_dict().items()}


def load_state(model: nn.Module, arrays: modelfile.Arrays, prefix: str) -> None:
    """Put the arrays of a file back into a network of the same shape."""
    state = {k.removeprefix(prefix): torch.from_numpy(v.copy()) for k, v in arrays.items() if k.startswith(prefix)}
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelFileError(f"the model file does not fit its network: {error}") from None
