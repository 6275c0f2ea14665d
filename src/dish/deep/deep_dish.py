"""DeepDISH: our best method for images. A network is trained towards one codeword per class."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from dish import parallel
from dish.checks import check_flag, check_integer
from dish.deep import codewords
from dish.deep.codewords import CodewordFit
from dish.deep.data import DeepFitData
from dish.deep.deep_hasher import DeepHasher, Fitted, Learned
from dish.deep.heads import FrozenHead, ProjectionHead, Scores
from dish.deep.model import HashingNet, extract_features, make_model, move_to
from dish.deep.training import RoundState, Settings, Training
from dish.errors import InputError
from dish.hasher import class_values
from dish.label_codes import ClassBits, LabelledHasher
from dish.posterior.dish import DISH, most_labels

MAX_ANCHORS = 1000  # of DISH on the features of a frozen network
TRAINING_ONLY = (
    *("n_iter", "epochs", "batch_size", "lr", "weight_decay", "accumulate", "augment", "checkpoint"),
    *("patience", "error_diffusion"),
)


@dataclass(eq=False, repr=False, kw_only=True)
class DeepDISH(LabelledHasher, DeepHasher):
    """Learn codes of images with a network that is trained towards one codeword per class.

    Each of the ``n_iter`` + 1 rounds has an H-step, which finds codes that reproduce the similarity of the labels,
    and a round of SGD towards the codewords that these codes give the classes. Multi-label rows have a logistic loss
    per label instead. Labels (n, l) may be between 0 and 1, or missing (NaN); missing ones do not count in the loss.
    In the end a head turns the class probabilities of the network into codes (``deep.heads``). With 500 rows or more,
    the first rounds hold out some rows, to which the head is fitted.

    ``DISHD`` is the paper's method. Commands call this one ``deep_dish``.

    Parameters in addition to those of ``DeepHasher``:

    Parameters
    ----------
    freeze : bool, default=False
        Do not train the network. Extract its features once and fit ``DISH`` on them, which takes seconds. Recommended
        for a few thousand images, or without a GPU. Requires ``weights`` or a trained module, and labels of 0 and 1.
        Parameters of training have no effect.
    n_iter : int, default=3
        Rounds after the first.
    lr, weight_decay : "auto" or float, default="auto"
        "auto" is 0.05 and 0.002 for images from scratch, 0.1 and 0.0005 for vectors. If all layers came with weights
        it is 0.1, and no weight decay for these layers.
    patience : int or None, default=None
        Stop the first cycle of training when this many epochs have not lowered the loss of the held-out rows. The
        second cycle then has as many epochs as gave the lowest loss. None: all epochs.
    error_diffusion : bool, default=True
        Whether bits may pass their rounding errors on to later bits, for data with one label per row. This is used
        where classes are few and of about equal size and where held-out rows should be ranked better. It puts
        uncertain rows far from all others: MAP is higher, but fewer rows are within a small radius. Set it to False
        to search within a radius, or to find near-duplicates.

    Attributes
    ----------
    classes_ : ndarray (l,)
        The labels.
    codes_ : uint8 (n, ceil(n_bits/8))
        ``transform(X, labels=y)`` of the training rows: the codes of their labels. The code of a label is the sign of
        F with p = 1 for this label; labels between 0 and 1 are p themselves, and x decides missing ones.
    agreement_ : list of float
        The share of bits of the codewords that equal the signs of the outputs, after every H-step.
    history_ : list of dict
        Round, epoch and loss of every epoch.
    timings_ : dict
        Seconds spent in each stage of ``fit``.
    model_ : nn.Module
        The network with its head.
    """

    freeze: bool = False
    n_iter: int = 3
    patience: int | None = None
    error_diffusion: bool = True

    _learns_from_graded = True

    def _check_params(self) -> None:
        super()._check_params()
        check_integer("n_iter", self.n_iter, low=0)
        for name in ("freeze", "error_diffusion"):
            check_flag(name, getattr(self, name))
        if self.patience is not None:
            check_integer("patience", self.patience, low=1)
        if self.freeze and self.weights is None and not isinstance(self.net, nn.Module):
            raise InputError(
                "freeze=True needs weights, since random weights must be trained: give weights='imagenet' or a file, "
                "or freeze=False"
            )
        if self.freeze:
            self._warn_unused(TRAINING_ONLY, "freeze=True does not train the network")

    def _fit_data(self, rows: NDArray[Any], y: Any, ranks: parallel.Ranks) -> DeepFitData:
        data = super()._fit_data(rows, y, ranks)
        assert data.S.labels is not None
        class_values(data.S.labels)  # before the work: such a model could not be saved
        return data

    # --- codes of labels ---

    def _fitted_to(self, rows: NDArray[Any], y: Any, data: DeepFitData) -> None:
        assert data.S.labels is not None
        self.classes_ = data.S.labels
        self.codes_ = self.without_names().transform(rows, labels=y)

    @property
    def _one_label(self) -> bool:
        return self._projection.one_label

    @property
    def _projection(self) -> ProjectionHead:
        head = self.model_.head
        assert isinstance(head, ProjectionHead)
        return head

    def _class_bits(self) -> ClassBits:
        head = self._projection
        V, offset = (part.double().cpu().numpy() for part in (head.V, head.offset))
        return ClassBits(
            V,
            offset,
            head.power,
            scores=functools.partial(self._decision_values, head=Scores(head)),
            values=self._decision_values,
        )

    # --- training ---

    def _outputs(self, data: DeepFitData) -> tuple[int, bool]:
        if data.multilabel:
            return data.n_targets, False
        return codewords.width(self.n_bits, data.n_targets), codewords.NORM

    def _settings(self, data: DeepFitData, model: HashingNet, fresh: frozenset[str]) -> Settings:
        settings = super()._settings(data, model, fresh)
        chosen = codewords.recipe(data.rows, settings.fine_tuning)
        return replace(settings, preserve_body=codewords.preserves_body(chosen, model, fresh))

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        fit = CodewordFit(training, self.n_bits, self.n_iter + 1, self.patience, self.error_diffusion)
        head, agreement = fit.learn(state)
        return Learned(head, {"agreement_": agreement})

    # --- frozen networks ---

    def _fit_network(self, data: DeepFitData) -> Fitted:
        return self._fit_frozen(data) if self.freeze else super()._fit_network(data)

    def _fit_frozen(self, data: DeepFitData) -> Fitted:
        """Extract features, and fit ``DISH`` on them; each process passes its share of the rows."""
        with data.ranks.raise_together():
            self._check_frozen(data)
            model, _ = make_model(self.net, self.weights, self.image_size, 0, data.rows)
            model = move_to(model, data.rows)
        start = time.perf_counter()
        features = functional.normalize(extract_features(model, data.rows, data.ranks), dim=1)
        seconds = time.perf_counter() - start
        mine = torch.arange(data.n).tensor_split(data.ranks.world)[data.ranks.rank].to(data.device)
        y = data.targets[mine].cpu().numpy()
        hasher = DISH(
            self.n_bits,
            n_anchors=min(MAX_ANCHORS, data.n),
            scale=None,
            geometry=0,  # a network's head has class bits alone
            device=str(data.device),
            random_state=data.seed,
        ).fit(features[mine].cpu().numpy(), y.astype(np.uint8) if data.multilabel else y)
        model.head = FrozenHead.of(hasher.encoder_, data.device)
        data.ranks.broadcast(model.head.buffers())
        return {
            "agreement_": [],
            "history_": [],
            "timings_": {"features": seconds, **hasher.timings_},
            "model_": model,
        }

    def _check_frozen(self, data: DeepFitData) -> None:
        if data.rows.ndim == 2:
            raise InputError("freeze=True is for images; use DISH to learn from vectors")
        if data.n_targets > (most := most_labels(not data.multilabel)):
            raise InputError(
                f"y has {data.n_targets:,} labels; freeze=True runs DISH, which learns at most {most:,}: use "
                "freeze=False"
            )
        if data.multilabel and not bool(((data.targets == 0) | (data.targets == 1)).all()):
            raise InputError(
                "y has labels that are missing (NaN) or between 0 and 1: freeze=True learns from labels of 0 and 1; "
                "use DeepDISH with freeze=False for these"
            )
