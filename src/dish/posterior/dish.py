"""DISH: our best method for vectors. Class probabilities first, then all bits together.

    F(x) = p(x)ᵃ V + offset ,    p(x) = softmax(Bᵀk(x) + b), or a sigmoid per label for multi-label data

A linear F fits every bit on its own. A bit separates a random half of the classes from the rest, which is hard with
many classes. p(x) is one logistic regression on the same features. Codes should preserve p(x)·p(x′), the chance that
two rows share a class; the signs of p(x) V preserve the angle between p(x) and p(x′) if the projection V has nearly
orthogonal rows or columns. V has the signs of the codewords that the H-step finds for the labels. The codewords
themselves would lose the angle: sgn(α c₁ + β c₂) is c₁ whenever α > β.

With one label per row, p is made sharper, and V is refined so that the codes of held-out rows rank rows of their
class first. For multi-label data the best code of a label set need not be a sum of codewords: several projections are
tried, and the one that ranks held-out rows best is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import cbcd, codes
from dish.encoder import Posterior, raised, row_blocks
from dish.errors import InputError
from dish.hasher import class_values
from dish.kernel.dish_k import Effort, alternate
from dish.kernel.fit_data import FitData
from dish.kernel.fit_state import KernelState
from dish.kernel.held_out_check import warn_of_misplaced_labels, warn_of_useless_codes
from dish.kernel.streaming_hasher import AfterSweep, FitInput, StreamingHasher
from dish.lazy import Tensor, torch
from dish.posterior import selection
from dish.posterior.projection import centred, signed_projection
from dish.posterior.regression import Indices, WhitenedRows, regress, whitening
from dish.posterior.selection import Choice
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, from_labels, n_labels

MAX_LABELS = 4096  # with more, B is larger than everything else and a step too slow
FEWEST_ROWS = 500  # with fewer rows none are held out
CODEWORD_SWEEPS = 3  # of the H-step on classes
ROUGH = Effort(4, 2e-3)  # for multi-label data: only one sign per label and bit of the codes is used


def fit_posterior(data: FitData, H: NDArray[np.uint8], n_bits: int, budget: int | None = None) -> Posterior:
    """The posterior hash function for codes H (packed). ``budget``: bytes for the whitened features."""
    rng = np.random.RandomState(data.rng.randint(2**31 - 1))
    with data.stage("whitening"):
        T = whitening(data)
        rows = WhitenedRows.of(data, T, rng, budget)
    sums = group_sums(data, H, n_bits)
    C = codewords(data.S, sums, rng)
    if rows.one_label:
        V, offset = centred(signed_projection(C, rng, rows.U.device))
        choice = Choice(V.to(rows.U), offset.to(rows.U), selection.sharpness(n_bits))
    else:
        V, offset = nearest_projection(data.S, sums)
        choice = Choice(V.to(rows.U), offset.to(rows.U), 1.0, power=2)
    choice = _choose(data, rows, choice, C, rng)
    with data.stage("posterior"):
        share = 0.8 if choice.start else 1.0
        W, b = regress(rows, np.arange(rows.n), rng, choice.start, share, choice.prior)
    B = (T @ (choice.sharp * W).double()).to(data.K.dtype)
    link = "softmax" if rows.one_label else "sigmoid"
    return Posterior(B, (choice.sharp * b).to(B), choice.V.to(B), choice.offset.to(B), link, choice.power)


def _choose(
    data: FitData, rows: WhitenedRows, plain: Choice, C: NDArray[np.float64], rng: np.random.RandomState
) -> Choice:
    """Hold rows out, let them decide, and warn if their codes are of no use. With few rows they only warn."""
    few = rows.n < FEWEST_ROWS
    rng = np.random.RandomState(0) if few else rng
    order = rows.shuffled(np.arange(rows.n), rows.n, rng)
    n_held = rows.n // 3 if few else min(int(selection.HELD_OUT * rows.n), selection.MOST_HELD_OUT)
    held, seen = order[:n_held], order[n_held:]
    with data.stage("posterior"):
        starts = selection.regressions(rows, seen, rng)
    with data.stage("projection"):
        parts = (held, seen[:n_held])
        if few:
            choice = replace(plain, start=starts[1.0])
        elif rows.one_label:
            choice = selection.choose_for_classes(rows, parts, starts, plain, rng)
        else:
            choice = selection.choose_for_label_sets(rows, parts, starts, plain, C, rng)
    with data.stage("check"):
        _check(data, rows, held, choice)
    return plain if few else choice


def _check(data: FitData, rows: WhitenedRows, held: Indices, choice: Choice) -> None:
    """Warn if a model without the held-out rows cannot tell their labels."""
    assert choice.start is not None
    W, b = choice.start
    p, group = rows.scored(held, choice.sharp * W, choice.sharp * b)
    indices = held.cpu().numpy() if isinstance(held, Tensor) else held
    indices = indices if rows.of_all is None else rows.of_all[indices]
    F = raised(p, choice.power) @ choice.V + choice.offset
    useless = warn_of_useless_codes(data.signs, indices, F, data.not_auto)
    if rows.one_label and not useless:
        warn_of_misplaced_labels(p, group)


def group_sums(data: FitData, H: NDArray[np.uint8], n_bits: int) -> NDArray[np.float64]:
    """EᵀH (g, r): codes summed by label group over all processes."""
    columns = cbcd.columns_for(torch.from_numpy(H).to(data.device), n_bits)
    like = torch.zeros((), device=data.device)
    signs = ((rows, columns.signs(rows, like)) for rows in row_blocks(data.S.n, 1 << 14))
    sums: NDArray[np.float64] = data.S.group_totals(signs, data.ranks).cpu().numpy()
    return sums


def codewords(S: Similarity, sums: NDArray[np.float64], rng: np.random.RandomState) -> NDArray[np.float64]:
    """C (l, r) of ±1: the majority vote of the codes of each label's rows.

    With few rows per class, H may give two classes the same code. Then C is learned for the classes alone.
    """
    if isinstance(S, LabelCounts | LabelSets):
        return np.where(S.sets.T @ sums >= 0, 1.0, -1.0)
    C = np.where(sums >= 0, 1.0, -1.0)
    l, r = C.shape  # noqa: E741
    return C if len(np.unique(C, axis=0)) == min(l, 2.0**r) else distinct_codewords(l, r, rng)


def distinct_codewords(l: int, r: int, rng: np.random.RandomState) -> NDArray[np.float64]:  # noqa: E741
    """C (l, r) of ±1 for l classes that count once each: the H-step on l rows, from a random start."""
    H = cbcd.columns_for(torch.from_numpy(codes.pack(rng.standard_normal((l, r)))), r)
    S = from_labels(np.arange(l), similar_weight="auto")
    for _ in range(CODEWORD_SWEEPS):
        cbcd.sweep(H, S, torch.zeros(r, l))
    return codes.unpack(H.packed(), r).astype(np.float64)


def nearest_projection(S: Similarity, sums: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """V (l, r) and the offset (r,) for which YV + offset is nearest to the codes of the training rows."""
    assert isinstance(S, LabelCounts | LabelSets)
    size = S.group_sizes().cpu().numpy()
    Y = sp.csr_array(sp.hstack([S.sets, np.ones((S.n_groups, 1))]))
    gram = (Y.T @ (sp.diags_array(size) @ Y)).toarray()
    gram[np.diag_indices(len(gram))] += 1e-3 * np.trace(gram) / len(gram)
    solved = np.linalg.solve(gram, Y.T @ sums)
    return torch.from_numpy(solved[:-1]), torch.from_numpy(solved[-1])


def label_codes(S: Similarity, function: Posterior) -> NDArray[np.uint8]:
    """Packed codes of the training rows as if their labels were certain: p is 1 for each of them, else 0."""
    V, offset = (np.asarray(each, np.float64) for each in (function.numpy().V, function.numpy().offset))
    of_groups = S.sets @ V if isinstance(S, LabelCounts | LabelSets) else V
    return np.asarray(codes.pack(of_groups + offset)[S.row_group.cpu().numpy()])


class DISH(StreamingHasher):
    """Our best method for vectors: learn class probabilities, and a projection of them onto bits.

    Learns from labels in time and memory linear in the rows. ``DISHK`` is the paper's method, which also learns from
    any similarity.

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
    anchors : "random", "kmeans" or an array (m, d), default="random"
        How the anchors are chosen.
    n_iter : int, default=5
        Maximum number of H-steps, which find the codewords of the labels.
    memory_budget : None, int or str, default=None
        Memory in bytes ("2GB") that a fit on the CPU may use. Features that do not fit are written to a scratch file
        in the folder for temporary files, or recomputed in every pass if that is faster; the probabilities are then
        learned from a sample of 131,072 rows. None: half of the free memory.
    checkpoint : path or None, default=None
        Folder for the state after every H-step. A fit that finds its own state there resumes from it. Several
        processes need a shared folder. Not available with ``random_state=None``.
    device : "auto", "cpu", "cuda", …, default="auto"
        Where the linear algebra runs. "auto" uses a GPU if there is one.
    random_state : int, RandomState or None, default=0
        The same seed on the same machine gives the same codes.
    verbose : int, default=0
        1 reports every H-step on standard error.

    Attributes
    ----------
    classes_ : ndarray (l,)
        The labels, in the order of ``predict_proba``'s columns.
    codes_ : uint8 (n, ceil(n_bits/8))
        Codes of the labels of the training rows: F with certain probabilities. ``transform`` uses x alone.
    objective_ : float64 (n_iter_,)
        The objective Q after every H-step. It never rises.
    n_iter_ : int
        Number of H-steps.
    kernel_, gamma_, anchors_, centre_, mean_, scale_
        The features k(x).
    hash_function_ : dish.encoder.Posterior
        F(x) = p(x)ᵃ V + offset with p(x) = link(k(x) B + b).
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
    _kernels = ("auto", *StreamingHasher._kernels)
    _features_by = staticmethod(selection.prepare_features)
    _state = (*StreamingHasher._state, "classes_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        kernel: Any = "auto",
        scale: Any = "auto",
        anchors: Any = "random",
        n_iter: int = 5,
        memory_budget: Any = None,
        checkpoint: Any = None,
        device: str = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.gamma = gamma
        self.kernel = kernel
        self.scale = scale
        self.anchors = anchors
        self.n_iter = n_iter
        self.memory_budget = memory_budget
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _open(self, X: Any, y: Any) -> FitInput:
        if isinstance(y, Similarity):
            raise InputError("y: DISH learns from labels; use DISHK to learn from a similarity")
        given = super()._open(X, y)
        check_learnable(given.S, "DISH")
        assert given.S.labels is not None
        class_values(given.S.labels)  # before the work: such a model could not be saved
        return given

    def _resolved(self, given: FitInput) -> dict[str, Any]:
        return {"kernel": selection.first_kernel(self.kernel, given.rows.shape[1], self.n_anchors)}

    def _learn(self, data: FitData, state: KernelState | None, after_sweep: AfterSweep, budget: int) -> None:
        one_label = isinstance(data.S, Classes)
        effort = Effort() if one_label else ROUGH
        H, _, objective = alternate(
            data, self.n_bits, n_iter=self.n_iter, effort=effort, state=state, after_sweep=after_sweep
        )
        spare = max(1, budget - data.K.numel() * data.K.element_size()) if isinstance(data.K, Tensor) else 1
        function = fit_posterior(data, H, self.n_bits, spare)
        self._keep(data, function)
        self._keep_codes(label_codes(data.S, function), objective)
        self.classes_ = data.S.labels

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """p(x) of every label, (n, l), in the order of ``classes_``.

        With one label per row, the probabilities add up to 1, and p(x)·p(x′) is the chance that two rows share their
        label. They are slightly over-confident: the codes need sharper probabilities than calibrated ones.
        """
        encoder = self._encoder_on_device()
        parts = [encoder.probabilities(rows) for _, rows in self._encoded_blocks(X)]
        return np.concatenate(parts or [encoder.probabilities(np.empty((0, self.n_features_in_), np.float32))])


def check_learnable(S: Similarity, method: str) -> None:
    """Refuse labels whose probabilities cannot be learned."""
    l = n_labels(S)  # noqa: E741
    if l < 2:
        raise InputError("y has only one label; give at least two, or (n,) classes")
    if l > MAX_LABELS:
        raise InputError(f"y has {l:,} labels; {method} learns at most {MAX_LABELS:,}: use DISHK")
