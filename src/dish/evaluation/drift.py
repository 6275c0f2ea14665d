"""Drift: are new rows still like those that a model learned from?

``drift`` compares four things: how often each bit is set, the distance of codes to the nearest codeword, the entropy
of the label probabilities, and the share of rows that belong to no known class. Other hashers than DISH and DeepDISH
have the bits, the distance if training rows share their codes, and the mean |F|, the margin.

The score is one number to alert on: at least this share of the new rows is unlike the reference rows. It is the
largest distance of ``metrics.profile``, from which the effect of chance is subtracted, so that small samples raise no
false alarm. Rows of the same kind as given reference rows score 0 in all but one of a thousand cases. The profile in
a model is of regressions that learned from fewer rows; against it, normal rows scored up to 0.013. Alert from 0.1 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dish.errors import InputError
from dish.metrics.profile import Change, Counts, Profile, RowTraits, changes
from dish.progress import progress

if TYPE_CHECKING:
    from dish.hasher import Hasher

FEWEST = 10  # rows
NAMES = {
    "bits": "share of rows with a bit set",
    "distance": "distance to the nearest codeword",
    "entropy": "entropy of the label probabilities",
    "ambiguity": "ambiguity of the label",
    "margin": "mean |F|",
}  # of what is compared


@dataclass(frozen=True)
class Drift:
    """The result of ``drift``."""

    score: float  # from 0 to 1: at least this share of the rows is unlike the reference rows
    n: int  # new rows
    n_reference: int
    source: str  # of the reference: "held-out rows", "training rows" or "given rows"
    changes: dict[str, Change]  # by what was compared: "bits", and the names of the histograms
    unknown: float | None  # share of rows that belong to no known class
    unknown_reference: float | None  # the same of the reference rows
    profile: Profile  # the reference
    counts: Counts  # of the new rows

    @classmethod
    def of(cls, profile: Profile, counts: Counts) -> Drift:
        """From counted rows, at least one."""
        found = changes(profile, counts)
        return cls(
            score=max(change.beyond_chance for change in found.values()),
            n=profile.n_rows(counts),
            n_reference=profile.n_rows(),
            source=profile.source,
            changes=found,
            unknown=profile.unknown_share(counts),
            unknown_reference=profile.unknown_share(),
            profile=profile,
            counts=counts,
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "score": self.score,
            "n": self.n,
            "n_reference": self.n_reference,
            "source": self.source,
            "changes": {name: vars(change) for name, change in self.changes.items()},
            "unknown": self.unknown,
            "unknown_reference": self.unknown_reference,
        }


def drift(hasher: Hasher, X: Any, reference: Any = None) -> Drift:
    """Compare rows X with the rows that a fitted hasher learned from, or with ``reference`` rows.

    X and ``reference`` are whatever ``transform`` takes, without labels. ``reference`` must be rows that the hasher
    did not learn from: it is too sure of its training rows. Without it, the profile that ``fit`` left in the model is
    used. DISH has one of rows that it held out while it chose parameters; ``Drift.source`` says which rows they were.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dish import DISH
    >>> from dish.evaluation.drift import drift
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = DISH(n_bits=32, n_anchors=100).fit(X[:900], y[:900])
    >>> drift(hasher, X[900:]).score < 0.1 < drift(hasher, X[900:] + 4).score
    True
    """
    profile = hasher.profile_ if reference is None else profile_of(hasher, reference)
    if profile is None:
        raise InputError(
            f"this {type(hasher).__name__} has no profile of normal rows: pass reference=, rows that it did not "
            "learn from (on the command line --reference), or fit it again"
        )
    return Drift.of(profile, count_rows(hasher, profile, X))


def profile_of(hasher: Hasher, X: Any) -> Profile:
    """The profile of reference rows X. As ``hasher.profile_`` it is saved with the hasher, and replaces X."""
    parts = list(hasher.row_traits(X))
    _check_number("reference", sum(len(part.codes) for part in parts))
    return Profile.of(RowTraits.joined(parts), hasher.n_bits, "given rows")


def count_rows(hasher: Hasher, profile: Profile, X: Any) -> Counts:
    """The counts of rows X in the bins of a profile; only a block of rows is in memory at a time."""
    total = profile.nothing
    with progress("comparing", None) as advance:
        for traits in hasher.row_traits(X):
            total = total + profile.count(traits)
            advance(len(traits.codes))
    _check_number("X", profile.n_rows(total))
    return total


def _check_number(name: str, n: int) -> None:
    if n < FEWEST:
        raise InputError(f"{name} must have at least {FEWEST} rows to be compared, got {n}")
