"""After a fit: warn if the codes of held-out rows are of no use, and say what to try."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
MISPLACED, EVIDENCE = 0.15, 6.0  # share of random labels, and twice its gain in log-likelihood, for a warning
FEWEST_LABELS, EXAMINED, ENTRIES = 4, 1000, 1 << 22  # different labels; rows and numbers that are examined for it


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


def warn_of_useless_codes(
    signs: SignBits | None, rows: NDArray[np.intp], F: Tensor, not_auto: Sequence[str] = ()
) -> bool:
    """Whether it warned: F (rows, r) of held-out rows ranks them no better than chance, or worse than sign bits.

    ``rows`` are their indices among the rows of all processes. ``not_auto`` names parameters that "auto" may choose
    better.
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
    auto = "".join(f", {name}='auto'" for name in not_auto)
    if not _is_higher(found, chance):
        warnings.warn(
            f"the codes of {len(here)} held-out rows rank no better than chance (MAP {found.mean():.2f}, chance "
            f"{chance.mean():.2f}). Check that the rows of X and y belong together, that X has no wrong values, and "
            f"that the scales of its features are similar{'; try ' + auto[2:] if auto else ''}",
            stacklevel=2,
        )
        return True
    if _is_higher(by_signs, found):
        warnings.warn(
            f"the codes of {len(here)} held-out rows rank worse than one bit per feature, its sign after centring "
            f"(MAP {found.mean():.2f} and {by_signs.mean():.2f}). Try more labelled rows, more bits, more anchors, "
            f"features of similar scales{auto}, and check y for wrong labels",
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
    """Warn if many labels of held-out rows were drawn at random, it seems; p (rows, l), label (rows,) < l."""
    if p.shape[1] < FEWEST_LABELS:
        return
    few = min(EXAMINED, ENTRIES // p.shape[1])
    share, evidence = random_labels(p[:few], label[:few])
    if share > MISPLACED and evidence > EVIDENCE:
        warnings.warn(
            f"about {share:.0%} of the labels of {len(p)} held-out rows fit no better than chance: check y for wrong "
            "labels",
            stacklevel=2,
        )


def random_labels(p: Tensor, label: Tensor) -> tuple[float, float]:
    """The share ε of labels that were drawn at random, and twice the gain in log-likelihood over ε = 0.

    Labels follow (1 − ε) pᵗ / Σpᵗ + ε / l; t and ε have the largest likelihood. Where classes overlap, a label that
    is not the most likely one is still a likely one, and a smaller t explains it: the gain is small. A wrong label
    may be any one, however certain p is.
    """
    log_p = p.double().clamp(min=1e-30).log()
    fits = [(t * log_p).log_softmax(1).gather(1, label[:, None].long())[:, 0].exp() for t in np.geomspace(0.1, 8, 25)]
    q, shares = torch.stack(fits), np.linspace(0, 0.98, 50)
    likelihood = [float(((1 - e) * q + e / p.shape[1]).clamp(min=1e-300).log().sum(1).max()) for e in shares]
    best = int(np.argmax(likelihood))
    return float(shares[best]), 2 * (likelihood[best] - likelihood[0])


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
