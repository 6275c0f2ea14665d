"""DishHead: a hasher as the last module of a SentenceTransformer."""

from __future__ import annotations

import os
from typing import Any, Self

import torch
from sentence_transformers.sentence_transformer.modules import Module

from dish.errors import InputError, ModelFileError, UnsupportedError
from dish.hasher import Hasher
from dish.registry import load

MODEL_FILE = "hasher.dish"


class DishHead(Module):
    """Replaces sentence embeddings by the outputs F of a hasher, of which ``encode`` makes packed codes.

    ``encode(texts, precision="ubinary")`` returns the same codes as ``hasher.transform(embeddings)``, and
    ``precision="float32"`` the outputs F for asymmetric search. The head is saved with the model, in a model file
    without pickle. It is fixed: training the SentenceTransformer does not change it.

    sentence-transformers loads modules of other packages only if you trust them:
    ``SentenceTransformer(path, trust_remote_code=True)``.

    Parameters
    ----------
    hasher : Hasher
        A fitted hasher of vectors, such as DISH or DISHK.
    """

    def __init__(self, hasher: Hasher) -> None:
        super().__init__()
        if not hasattr(type(hasher), "encoder_"):
            raise UnsupportedError(
                f"DishHead takes hashers with kernel features, such as DISH or DISHK, not {type(hasher).__name__}"
            )
        self.hasher = hasher
        self._encoder = hasher.encoder_
        self._on_device: dict[torch.device, Any] = {}

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Replace ``features["sentence_embedding"]`` (n, d) by F (n, r)."""
        X = features["sentence_embedding"]
        d = self.hasher.n_features_in_
        if X.ndim != 2 or X.shape[1] != d:
            raise InputError(f"the hasher was fitted on vectors of {d} numbers, got embeddings of {X.shape[-1]}")
        encoder = self._on_device.get(X.device)
        if encoder is None:
            encoder = self._on_device[X.device] = self._encoder.to(X.device)
        with torch.no_grad():
            F = encoder(X.to(encoder.features.anchors)).float()
            if not F.isfinite().all():
                raise InputError("the outputs of the hasher are not finite: an embedding holds NaN or is too large")
            smallest = torch.finfo(F.dtype).smallest_normal
            features["sentence_embedding"] = F.masked_fill(F == 0, smallest)  # 0 is bit 1 in our codes, 0 in theirs
        return features

    def get_embedding_dimension(self) -> int:
        """The number of bits."""
        return int(self.hasher.n_bits)

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Write the hasher to a model file in the folder of this module."""
        self.hasher.save(os.path.join(output_path, MODEL_FILE))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:
        """Read the hasher of a saved model."""
        where = {name: options.get(name) for name in ("token", "cache_folder", "revision")}
        local = bool(options.get("local_files_only", False))
        path = cls.load_file_path(model_name_or_path, MODEL_FILE, subfolder, local_files_only=local, **where)
        if path is None:
            raise ModelFileError(f"there is no {MODEL_FILE} in {os.path.join(model_name_or_path, subfolder)}")
        return cls(load(path))
