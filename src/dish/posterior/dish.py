"""DISH: our best method for vectors. Class probabilities first, then all bits together.

    F(x) = p(x)ᵃ V + offset ,    p(x) = softmax(Bᵀk(x) + b), or a sigmoid per label for multi-label data

A linear F fits every bit on its own. A bit separates a random half of the classes from the rest, which is hard with
many classes. p(x) is one logistic regression on the same features. Codes should preserve p(x)·p(x′), the chance that
two rows share a class; the signs of p(x) V preserve the angle between p(x) and p(x′) if the projection V has nearly
orthogonal rows or columns. V starts with the signs of the codewords that Fast C-BCD finds for the labels. Codewords
themselves would lose the angle: sgn(α c₁ + β c₂) is c₁ whenever α > β.

With one label per row, p is made sharper, and V is refined so that the codes of held-out rows rank rows of their
class first. For multi-label data, V and the offset are refined so that the codes of two rows are similar if the rows
share a label.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import codes
from dish.cbcd.codewords import class_codewords, distinct
from dish.checks import check_integer, check_option
from dish.encoder import Linear, Posterior, interleaved, raised, row_blocks
from dish.errors import InputError, UnsupportedError
from dish.hasher import F_ROWS, EncodeRows, class_values
from dish.io import modelfile
from dish.kernel.fit_data import FitData
from dish.kernel.held_out_check import warn_of_misplaced_labels, warn_of_useless_codes
from dish.kernel.streaming_hasher import FitInput, StreamingHasher
from dish.label_codes import ClassBits, LabelledHasher
from dish.labels import is_tags, merged_classes
from dish.lazy import Tensor, torch
from dish.metrics.profile import Profile, RowTraits
from dish.posterior import selection
from dish.posterior.compatible import Kept, check_comparable
from dish.posterior.geometry import Geometry, candidates, centred_rows
from dish.posterior.projection import centred, signed_projection
from dish.posterior.regression import WhitenedRows, Whiteners, regress
from dish.posterior.reservoir import Reservoir, small_reservoir
from dish.posterior.selection import Choice, Judged
from dish.progress import progress
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, n_labels, with_labels

MAX_CLASSES = 65536  # with more, B is larger than everything else
SURER = 1.1  # factor on the logits; with all rows instead of four fifths, factors up to 1.08 were seen
DESCRIBED = 1 << 22  # probabilities at a time
MAX_LABELS = 4096  # of multi-label rows: every step computes the scores of all labels


@dataclass(frozen=True)
class Unseen:
    """Outputs of held-out rows by regressions without them; the projection has seen them.

    These regressions learned from fewer rows than the final one, which is therefore surer of new rows.
    """

    F: NDArray[np.float32]  # (n, r)
    p: NDArray[np.float32]  # (n, l)
    surer: Unseen | None = None  # the same with sharper p


def fit_to_labels(
    data: FitData, C: NDArray[np.uint8], n_bits: int, geometry: int | str = 0, budget: int | None = None
) -> tuple[Posterior, Linear | None, Unseen | None]:
    """The hash functions for labels with codewords C (packed), of class bits and of geometry bits.

    The third result has the outputs of rows that were held out, if there were enough. ``budget``: bytes for the
    whitened features.
    """
    rng = np.random.RandomState(data.rng.randint(2**31 - 1))
    seed, one_label = rng.randint(2**31 - 1), isinstance(data.S, Classes)

    @functools.cache
    def plain(r: int) -> Choice:
        signs = codes.unpack(distinct(codes.prefix(C, n_bits, r), r, np.random.RandomState(seed)), r)
        V = signed_projection(signs.astype(np.float64), np.random.RandomState(seed), data.device)
        V = V.to(data.device, data.K.dtype)
        return Choice(*centred(V), selection.SHARP) if one_label else Choice(V, torch.zeros_like(V[0]), 1.0)

    with progress("class probabilities", selection.work(data)):
        return _fit(data, plain, n_bits, geometry, budget, rng)


def fit_compatibly(
    data: FitData, kept: Kept, budget: int | None = None
) -> tuple[Posterior, Linear | None, Unseen | None]:
    """The same hash functions with codes that can be compared with those of an older model; ``data.S`` has the
    classes of both.
    """
    rng = np.random.RandomState(data.rng.randint(2**31 - 1))
    V, offset, is_old = kept.tensors(data.device, data.K.dtype)
    sharp = selection.SHARP if isinstance(data.S, Classes) else 1.0
    start = Choice(V, offset, sharp, kept.power, is_old=is_old)
    bits = None if kept.geometry is None else kept.geometry.to(data.device, data.K.dtype)
    with progress("class probabilities", selection.work(data)):
        function, _, unseen = _fit(data, lambda r: start, V.shape[1], 0, budget, rng, bits)
    kept.check_codes(function)
    return function, kept.geometry, unseen


def _fit(
    data: FitData,
    plain: selection.ChoiceFor,
    n_bits: int,
    geometry: int | str,
    budget: int | None,
    rng: np.random.RandomState,
    kept: Linear | None = None,
) -> tuple[Posterior, Linear | None, Unseen | None]:
    """Make all choices on held-out rows, and learn from all rows.

    ``kept``: geometry bits of another model, in addition to ``n_bits``.
    """
    one_label = isinstance(data.S, Classes)
    with data.stage("whitening"):
        T = Whiteners(data)
    with data.stage("geometry"):
        most = max(candidates(n_bits)) if geometry == "auto" else int(geometry)
        of_x = Geometry.of(data, most) if geometry else None
    with data.stage("selection"):
        g = None if geometry == "auto" else int(geometry)
        choose = selection.choose_for_classes if one_label else selection.choose_for_label_sets
        choice, rows, judged = choose(data, T, plain, n_bits, of_x, g, rng, budget)
    if judged is not None:
        with data.stage("check"):
            unrefined = plain(choice.V.shape[1])  # the refined projection has seen the labels of held-out rows
            _check(data, rows, judged, replace(unrefined, sharp=choice.sharp, power=choice.power))
    with data.stage("posterior"):
        share = selection.share_of_steps(rows.n)
        W, b = regress(rows, np.arange(rows.n), rng, choice.start, share, choice.prior)
    assert choice.rho is not None
    function = _function(T(choice.rho), W, b, choice, "softmax" if one_label else "sigmoid")
    size = 1.0 if judged is None else _size(choice.outputs(judged.scored(choice.sharp)[0][0]))
    bits = _geometry_bits(of_x, n_bits - function.n_bits, size) if kept is None else kept
    return function, bits, None if judged is None else _unseen(data, rows, judged, choice, bits)


def _geometry_bits(geometry: Geometry | None, g: int, size: float) -> Linear | None:
    """g bits, for class bits whose outputs have the root mean square ``size``."""
    if geometry is None or g == 0:
        return None
    bits = geometry.bits(g)
    return Linear(size * bits.W, size * bits.intercept)


def _unseen(data: FitData, rows: WhitenedRows, judged: Judged, choice: Choice, bits: Linear | None) -> Unseen:
    """Outputs of the held-out rows."""
    halves = range(2 if judged.start is None else 1)  # with one regression, only the first half was held out
    G = None
    if bits is not None:
        G = bits(centred_rows(data, np.concatenate([rows.of_data(judged.indices[i]) for i in halves])))

    def outputs(sharp: float, surer: Unseen | None = None) -> Unseen:
        scored = judged.scored(sharp)
        p = torch.cat([scored[i][0] for i in halves])
        F = choice.outputs(p)
        F = F if G is None else interleaved(F, G.to(F))
        return Unseen(F.float().cpu().numpy(), p.float().cpu().numpy(), surer)

    return outputs(choice.sharp, outputs(SURER * choice.sharp))


def _size(F: Tensor) -> float:
    return float(F.square().mean().sqrt().clamp(min=1e-30))


def _function(T: Tensor, W: Tensor, b: Tensor, choice: Choice, link: str) -> Posterior:
    B = (T @ (choice.sharp * W).double()).to(W)
    return Posterior(B, (choice.sharp * b).to(B), choice.V.to(B), choice.offset.to(B), link, choice.power)


def _check(data: FitData, rows: WhitenedRows, judged: Judged, choice: Choice) -> None:
    """Warn if models that did not learn from held-out rows cannot tell their labels."""
    p, y = judged.scored(choice.sharp)[0]
    if warn_of_useless_codes(data.signs, rows.of_data(judged.indices[0]), choice.outputs(p), data.not_auto):
        return
    if rows.one_label:
        warn_of_misplaced_labels(p, y)


class DISH(LabelledHasher, StreamingHasher):
    """Our best method for vectors: learn class probabilities, and a projection of them onto bits.

    Learns from labels in time and memory linear in the rows. ``DISHK`` is the paper's method, which also learns from
    any similarity. Commands call it ``dish``.

    Parameters
    ----------
    n_bits : int, default=64
        Code length r. It need not be a multiple of 8.
    n_anchors : int, default=1000
        Number m of anchors of the kernel features. More anchors give better codes; time grows with n·m. If X has
        fewer rows, all rows become anchors (with a warning).
    gamma : "auto" or float, default="auto"
        RBF kernel coefficient γ in exp(−γ‖x−a‖²). "auto": one over the mean squared distance between rows and
        anchors, not counting outliers, which a warning names; or twice that if ``kernel`` is "auto" and held-out rows
        are predicted better.
    kernel : "auto", "rbf", "linear", "rbf+linear" or a function (X, A) → (n, m), default="auto"
        Feature map. "linear" is x − mean, without anchors; "rbf+linear" has both. "auto": "rbf+linear" if x has at
        most ``n_anchors`` features, but "rbf" if there are at most 32,768 rows and held-out rows are predicted
        better; "rbf" if x has more features.
    scale : "auto", None or (d,) factors, default="auto"
        Factors by which the features of x are multiplied first. "auto": one over the median deviation of each
        feature, if these differ by more than a factor of 100 and held-out rows are predicted better (from 200 rows
        on); a warning says so. None: no scaling.
    geometry : "auto" or int, default="auto"
        Number of bits that describe x itself instead of its label: they order the rows of one class, and find rows
        like an item of a new class. "auto": a quarter of all bits if this costs at most 1 % of the MAP of held-out
        rows, else an eighth. 0: none.
    anchors : "random", "kmeans" or an array (m, d), default="random"
        How the anchors are chosen.
    n_iter : int, default=5
        Maximum number of H-steps, which find the codewords of the labels.
    memory_budget : None, int or str, default=None
        Memory in bytes ("2GB") that a fit on the CPU may use. Features that do not fit are written to a scratch file
        in the folder for temporary files, or recomputed in every pass if that is faster; the probabilities are then
        learned from a sample of 131,072 rows. None: half of the free memory.
    device : "auto", "cpu", "cuda", …, default="auto"
        Where the linear algebra runs. "auto" uses a GPU if there is one.
    random_state : int, RandomState or None, default=0
        The same seed on the same machine gives the same codes.

    Attributes
    ----------
    classes_ : ndarray (l,)
        The labels, in the order of ``predict_proba``'s columns.
    codes_ : uint8 (n, ceil(n_bits/8))
        ``transform(X, labels=y)`` of the training rows: the class bits of their labels, and geometry bits of x.
    objective_ : float64 (n_iter_,)
        The objective Q after every H-step. It never rises.
    n_iter_ : int
        Number of H-steps.
    kernel_, gamma_, anchors_, centre_, mean_, scale_
        The features k(x).
    hash_function_ : dish.encoder.Posterior
        The class bits: F(x) = p(x)ᵃ V + offset with p(x) = link(k(x) B + b).
    geometry_ : dish.encoder.Linear or None
        The geometry bits, linear in x. Every prefix of a code has the same share of them.
    timings_ : dict
        Seconds spent in each stage of ``fit``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dish import DISH
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = DISH(n_bits=32, n_anchors=100).fit(X[:500], y[:500])
    >>> hasher.transform(X[500:]).shape  # 4 bytes per row
    (1297, 4)
    """

    similar_weight = "auto"
    batches_: Reservoir
    _kernels = ("auto", *StreamingHasher._kernels)
    _features_by = staticmethod(selection.prepare_features)
    _state = (*StreamingHasher._state, "classes_", "geometry_")
    _former_params = ("checkpoint", "verbose")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        kernel: Any = "auto",
        scale: Any = "auto",
        geometry: int | str = "auto",
        anchors: Any = "random",
        n_iter: int = 5,
        memory_budget: Any = None,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.gamma = gamma
        self.kernel = kernel
        self.scale = scale
        self.geometry = geometry
        self.anchors = anchors
        self.n_iter = n_iter
        self.memory_budget = memory_budget
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, compatible_with: DISH | str | os.PathLike[str] | None = None) -> Self:
        """Learn from rows X (n, d) and y: (n,) classes or (n, l) labels of 0 and 1.

        X is an array, a tensor on any device, a memory map, an iterable of row blocks, or the path of a file or of a
        folder of shards; all but the first two are read a block at a time. In an initialised ``torch.distributed``
        process group, all processes learn together: each passes its own rows, or all pass the same path.

        ``compatible_with``: a fitted ``DISH`` or the path of its file, with the same ``n_bits`` and features. The
        codes of both models can then be compared: labels of the older model keep their codes bit by bit, also those
        that y does not have, and geometry bits stay as they are. New labels get codes far from all others. Pass rows
        of old and of new classes: rows of a class that y lacks would be encoded as other classes.
        """
        return self._fit(X, y, None if compatible_with is None else self._older(compatible_with))

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn from a batch of rows X (n, d) with classes y (n,), and from a sample of all batches before it.

        The first call is a fit. Every later call fits again, with ``compatible_with`` this model: codes of labels and
        geometry bits stay as they are, so that codes from before and after the call can be compared, and all models
        have one family in their fingerprints. The rows of the fit are a bounded sample of all rows so far, with as
        many rows of every class as there is room for (2²⁶ numbers, 256 MB in float32). The order of the batches
        therefore hardly matters: they may be sorted by class, and bring new classes.

        The result is approximate: it differs from ``fit`` on all rows in the projection, which the first batch
        decides for its classes, and once there are more rows than there is room for. A call takes as long as a fit of
        the sample, so pass large batches.

        ``classes`` may name the classes of all batches in the first call; their codes are then chosen together. A
        later batch may bring others all the same. ``codes_`` are those of the sample. After ``fit``, it goes on if
        the rows of the fit were few (2²² numbers, 16 MB in float32, which ``fit`` keeps). After a larger fit, or in a
        loaded hasher, it refuses to continue: pass all rows to ``fit(X, y, compatible_with=…)``.
        """
        batch = self._open_batch(X, y, classes)
        first = not hasattr(self, "batches_")
        if first and len(set(batch.group.tolist())) < 2:
            raise InputError("y has 1 class; the first batch of DISH needs rows of at least two classes")
        before = Reservoir.none(batch.X, batch.classes) if first else self.batches_
        rows = before.plus(batch.X, batch.group, batch.classes)
        with self._keeping_names():
            self._fit(rows.X, rows.classes[rows.group], None if first else copy.copy(self), batch.classes)
        self.batches_, self.n_samples_seen_ = rows, rows.n_seen
        return self

    @contextmanager
    def _keeping_names(self) -> Iterator[None]:
        """Keep the names of the features, which the rows of a reservoir do not have."""
        names = getattr(self, "feature_names_in_", None)
        yield
        if names is not None:
            self.feature_names_in_ = names

    def _fit(self, X: Any, y: Any, old: DISH | None, classes: NDArray[Any] | None = None) -> Self:
        """``fit`` for rows and more ``classes``, that y need not have."""
        given = self._open(X, y)
        kept = None if old is None else self._kept(old, given, y, classes)
        budget = self._room_for_K(given.rows)
        fixed = {} if old is None else {"scale": old.scale_, "centre": old.centre_}
        classes = classes if kept is None else kept.classes
        S = given.S if classes is None else with_labels(given.S, classes)
        data = self._prepare(given.rows, S, given.rng, given.ranks, budget, fixed)
        small = small_reservoir(given.rows, S) if given.ranks.world == 1 else None
        del X, y, given  # the features replace the rows
        spare = max(1, budget - data.K.numel() * data.K.element_size()) if isinstance(data.K, Tensor) else 1
        function, self.geometry_, unseen, objective = self._learn(data, kept, spare)
        self.family_ = None if old is None else modelfile.family(old.fingerprint_)
        self._keep(data, function)
        self.geometry_ = None if self.geometry_ is None else self.geometry_.numpy()
        assert data.S.labels is not None
        self.classes_ = data.S.labels
        with self._stage("codes"):
            self._keep_codes(self._codes_of_labels(data), objective)
        with self._stage("profile"):
            self.profile_ = self._profile(data, unseen)
        if small is not None:
            self.batches_, self.n_samples_seen_ = small, small.n_seen
        return self

    def _learn(
        self, data: FitData, kept: Kept | None, budget: int
    ) -> tuple[Posterior, Linear | None, Unseen | None, NDArray[np.float64]]:
        """The hash functions of class bits and of geometry bits, held-out outputs, the objective of the codewords."""
        if kept is not None:
            return *fit_compatibly(data, kept, budget), np.empty(0)
        with self._stage("H-step"):
            C, objective = class_codewords(n_labels(data.S), self.n_bits, data.rng, self.n_iter)
        return *fit_to_labels(data, C, self.n_bits, self.geometry, budget), objective

    def _older(self, model: Any) -> DISH:
        """The model that this fit must be compatible with, read from its file if a path is given."""
        if isinstance(model, str | os.PathLike):
            kind, content, arrays = modelfile.read(model)
            if kind != DISH.__name__:
                raise InputError(f"compatible_with: {model} holds a {kind}; only DISH models can be kept compatible")
            model = DISH._restore(content, arrays)
        if not isinstance(model, DISH):
            raise InputError(
                f"compatible_with must be a fitted DISH or the path of its file, got {type(model).__name__}"
            )
        model._check_fitted()
        return model

    def _kept(self, old: DISH, given: FitInput, y: Any, classes: NDArray[Any] | None) -> Kept:
        """What this fit keeps of an older model. Raises InputError if their codes could not be compared.

        ``classes``: more classes than those of the rows.
        """
        if old.recentred_ is not None:
            raise UnsupportedError(
                "compatible_with: the model was recentred. A new fit would undo that, and its codes could not be "
                "compared with those of the model. Use the model from before recentre, or fit without compatible_with"
            )
        function, geometry = old.hash_function_, old.geometry_
        assert isinstance(function, Posterior)
        assert given.S.labels is not None
        g = 0 if geometry is None else geometry.n_bits
        of_model = (old.n_bits, old.n_features_in_, g, old._one_label)
        of_fit = (
            self.n_bits,
            given.rows.shape[1],
            g if isinstance(self.geometry, str) else self.geometry,
            isinstance(given.S, Classes),
        )
        check_comparable(of_model, of_fit)
        if not isinstance(self.scale, str) and not np.array_equal(_or_ones(self.scale), _or_ones(old.scale_)):
            raise InputError("scale: the model given as compatible_with has other factors; leave scale='auto'")
        labels = given.S.labels
        if not old._one_label and not is_tags(y) and len(labels) < len(old.classes_):
            raise InputError(
                f"y has {len(labels)} columns, but the model given as compatible_with knows {len(old.classes_)} "
                "labels: keep their columns, and add those of new labels after them"
            )
        new = labels if classes is None else merged_classes(labels, classes)
        return Kept.of(function, geometry, old.classes_, new, given.rng.randint(2**31 - 1))

    def _profile(self, data: FitData, unseen: Unseen | None) -> Profile:
        """What is normal, from held-out rows; from training rows if too few could be held out."""
        if unseen is None:
            return self._profile_of_training_rows(data)
        describe = self._probability_describer()
        size = max(1, DESCRIBED // unseen.p.shape[1])

        def traits(of: Unseen) -> RowTraits:
            return RowTraits.joined([describe(of.F[part], of.p[part]) for part in row_blocks(len(of.F), size)])

        surer = None if unseen.surer is None else traits(unseen.surer)
        return Profile.of(traits(unseen), self.n_bits, "held-out rows", surer)

    def _check_params(self) -> None:
        super()._check_params()
        if isinstance(self.geometry, str):
            check_option("geometry", self.geometry, ("auto",), " or a number of bits")
        else:
            check_integer("geometry", self.geometry, low=0, high=self.n_bits - 1)

    def _open(self, X: Any, y: Any) -> FitInput:
        if isinstance(y, Similarity):
            raise InputError("y: DISH learns from labels; use DISHK to learn from a similarity")
        given = super()._open(X, y)
        check_learnable(given.S, "DISH")
        assert given.S.labels is not None
        class_values(given.S.labels)  # before the work: such a model could not be saved
        return given

    def _codes_of_labels(self, data: FitData) -> NDArray[np.uint8]:
        """``transform(X, labels=y)`` of the training rows."""
        S, rows = data.S, data.rows
        assert rows is not None
        sets = S.sets if isinstance(S, LabelCounts | LabelSets) else sp.eye_array(S.n_groups, format="csr")
        encode, group, found = self._labelled_encoder(), S.row_group.cpu().numpy(), []
        for part in row_blocks(len(rows), F_ROWS):
            X, P = rows.read(part, torch.device("cpu"), check=False).numpy(), sets[group[part]]
            found.append(codes.pack(encode(X, P, np.diff(P.indptr) > 0)))
        return np.concatenate(found)

    @property
    def _one_label(self) -> bool:
        assert isinstance(self.hash_function_, Posterior)
        return self.hash_function_.link == "softmax"

    def _class_bits(self) -> ClassBits:
        on_device, function = self._encoder_on_device(), self.hash_function_
        assert isinstance(function, Posterior)
        return ClassBits(
            np.asarray(function.V, np.float64),
            np.asarray(function.offset, np.float64),
            function.power,
            scores=lambda X: raised(on_device.probabilities(X), function.power),
            values=on_device.class_values,
        )

    def _geometry_encoder(self) -> EncodeRows:
        return self._encoder_on_device().geometry_values

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """p(x) of every label, (n, l), in the order of ``classes_``.

        With one label per row, the probabilities add up to 1, and p(x)·p(x′) is the chance that two rows share their
        label. They are slightly over-confident: the codes need sharper probabilities than calibrated ones.
        """
        encoder = self._encoder_on_device()
        parts = [encoder.probabilities(rows) for _, rows in self._encoded_blocks(X)]
        return np.concatenate(parts or [encoder.probabilities(np.empty((0, self.n_features_in_), np.float32))])


def _or_ones(scale: Any) -> Any:
    return 1.0 if scale is None else scale


def check_learnable(S: Similarity, method: str) -> None:
    """Refuse labels whose probabilities cannot be learned."""
    l = n_labels(S)  # noqa: E741
    if l < 2:
        raise InputError("y has only one label; give at least two, or (n,) classes")
    if l > (most := most_labels(isinstance(S, Classes))):
        hint = "" if isinstance(S, Classes) else f" if a row may have several, and {MAX_CLASSES:,} classes"
        raise InputError(f"y has {l:,} labels; {method} learns at most {most:,}{hint}: use DISHK")


def most_labels(one_label: bool) -> int:
    """The largest number of labels that can be learned."""
    return MAX_CLASSES if one_label else MAX_LABELS
