"""After a fit: warn if the codes of held-out rows are of no use, and say what to try."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics
from dish.io.rows import local_rows
from dish.kernel.features import KernelMatrix
from dish.kernel.typical_rows import RowSample
from dish.kernel.whitening import Whitening
from dish.lazy import Tensor, torch
from dish.parallel import Ranks
from dish.similarity import LabelCounts, LabelSets, Similarity

MOST, FEWEST = 400, 40  # held-out rows that are compared
CLEARLY = 2.0  # standard errors
MISPLACED, ENOUGH = 0.15, 10  # share of misplaced labels, and number of rows that show it, for a warning


@dataclass(frozen=True)
class SignBits:
    """Some rows of X in one bit per feature, with their labels: what learned codes have to beat."""

    indices: NDArray[np.intp]  # of the rows among those of all processes
    codes: NDArray[np.uint8]  # (s, ceil(d / 8)): whether a feature is above its median
    labels: NDArray[Any]  # (s,) classes, or (s, l) label sets

    @classmethod
    def of(cls, sample: RowSample, S: Similarity) -> SignBits | None:
        """From a sample; None if S was not made from labels."""
        if sample.groups is None:
            return None
        above = sample.rows >= sample.centre.to(sample.rows)
        groups = sample.groups.cpu().numpy()
        labels = groups
        if isinstance(S, LabelCounts | LabelSets):
            labels = S.sets[groups].toarray().astype(np.uint8)
        return cls(sample.indices, np.packbits(above.cpu().numpy(), axis=1), labels)


def warn_of_useless_codes(signs: SignBits | None, rows: NDArray[np.intp], F: Tensor) -> bool:
    """Warn if F (rows, r) of held-out rows ranks them no better than chance, or worse than sign bits.

    ``rows`` are their indices among the rows of all processes. Returns whether it warned.
    """
    if signs is None:
        return False
    _, here, there = np.intersect1d(rows, signs.indices, return_indices=True)
    here, there = here[:MOST], there[:MOST]
    if len(here) < FEWEST:
        return False
    learned = codes.pack(F[torch.from_numpy(here).to(F.device)].float().cpu().numpy())
    labels = signs.labels[there]
    shuffled = learned[np.random.RandomState(0).permutation(len(learned))]
    found, chance, by_signs = (_average_precisions(c, labels) for c in (learned, shuffled, signs.codes[there]))
    if len(found) < FEWEST // 4:  # hardly two rows have the same label
        return False
    if not _is_higher(found, chance):
        warnings.warn(
            f"the codes of {len(here)} held-out rows rank no better than chance (MAP {found.mean():.2f}, chance "
            f"{chance.mean():.2f}): y cannot be predicted from X. Check that the rows of X and y belong together, "
            "that X has no wrong values, and that the scales of its features are similar",
            stacklevel=2,
        )
        return True
    if _is_higher(by_signs, found):
        warnings.warn(
            f"the codes of {len(here)} held-out rows rank worse than one bit per feature, its sign after centring "
            f"(MAP {found.mean():.2f} and {by_signs.mean():.2f}). Try more labelled rows, more bits or more anchors, "
            "and check y for wrong labels",
            stacklevel=2,
        )
        return True
    return False


def _average_precisions(packed: NDArray[np.uint8], labels: NDArray[Any]) -> NDArray[np.float64]:
    """AP of the first half of the rows as queries for the other half; only of those with relevant rows."""
    n = len(packed) // 2
    counts = metrics.histograms(packed[:n], labels[:n], packed[n:], labels[n:], 8 * packed.shape[1], "cpu")
    found: NDArray[np.float64] = metrics.expected_average_precision(counts)
    return found[counts.relevant.sum(1) > 0]


def _is_higher(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether the mean of a is clearly higher than that of b, pair by pair."""
    gain = a - b
    return bool(gain.mean() > CLEARLY * gain.std() / len(gain) ** 0.5)


def warn_of_misplaced_labels(p: Tensor, label: Tensor) -> None:
    """Warn if many held-out rows have a label that fits no better than chance; p (rows, l), label (rows,) < l.

    A wrong label ranks anywhere among the probabilities of all labels, the right label of a difficult row seldom
    ranks in the last quarter.
    """
    l, last = p.shape[1], p.shape[1] // 4  # noqa: E741
    if last == 0:
        return
    rank = (p > p.gather(1, label[:, None])).sum(1)
    count = int((rank >= l - last).sum())
    share = count / len(p) * l / last
    if share > MISPLACED and count >= ENOUGH:
        warnings.warn(
            f"about {min(share, 1.0):.0%} of the labels of {len(p)} held-out rows fit no better than chance: check y "
            "for wrong labels",
            stacklevel=2,
        )


def left_out_F(
    K: KernelMatrix, white: Whitening, W: Tensor, H: NDArray[np.uint8], rows: NDArray[np.intp], ranks: Ranks
) -> Tensor:
    """F of ``rows`` by ridge regression of codes H (packed) on all other rows, without solving it again.

    Leaving rows h out changes their residuals to (I − K_h (KᵀK + ρI)⁻¹ K_hᵀ)⁻¹ (H_h − K_h W).
    """
    mine, here = local_rows(len(K), rows, ranks)
    K_h = torch.zeros(len(rows), K.shape[1], dtype=torch.float64, device=W.device)
    H_h = torch.zeros(len(rows), W.shape[1], dtype=torch.float64, device=W.device)
    K_h[here] = K[torch.from_numpy(mine).to(W.device)].double()
    H_h[here] = torch.from_numpy(codes.unpack(H[mine], W.shape[1])).to(H_h)
    K_h, H_h = ranks.sum(K_h, H_h)
    leverage = K_h @ white.solve(K_h.T)
    residuals = torch.linalg.solve(torch.eye(len(rows)).to(leverage) * (1 + 1e-9) - leverage, H_h - K_h @ W.double())
    return H_h - residuals
