"""What "auto" stands for in the parameters of DISH, and how far its codes are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dish.cbcd import MAX_STEPS
from dish.errors import InputError
from dish.kernel.fstep import LOSSES
from dish.posterior.regression import MAX_LABELS, can_learn_posterior
from dish.similarity import Similarity


@dataclass(frozen=True)
class Effort:
    """How far the H-step goes: steps per bit in a sweep, and what share of the objective a sweep has to gain."""

    steps: int
    gain: float = 0.0

    def is_spent(self, objective: list[float]) -> bool:
        """Whether the last sweep, the objective after each being given, gained too little for another one."""
        return bool(self.gain) and len(objective) > 1 and objective[-1] > (1 - self.gain) * objective[-2]


FULL = Effort(MAX_STEPS)
ROUGH = Effort(4, 2e-3)  # for the posterior of several labels: of the codes it takes one sign per label and bit


def takes_posterior(loss: Any, polish: int, S: Similarity) -> bool:
    """Whether the hash function is the posterior one: "auto" takes it where there are labels to learn."""
    if _is(loss, "posterior") and not can_learn_posterior(S):
        raise InputError(
            f"loss='posterior' learns the probability of every label: y must hold classes or (n, l) labels, at most "
            f"{MAX_LABELS:,} different ones; use loss='ridge'"
        )
    return _is(loss, "posterior") or (_is(loss, "auto") and not polish and can_learn_posterior(S))


def linear_loss(loss: Any) -> Any:
    """The loss of the F-step that the codes are learned in turn with."""
    return "ridge" if _is(loss, "auto", "posterior") else loss


def chosen_kernel(kernel: Any, posterior: bool, d: int, n_anchors: int) -> Any:
    """The features: "auto" adds x itself for the posterior, if it has no more features than there are anchors.

    The linear F of the paper has the RBF kernel alone.
    """
    if not _is(kernel, "auto"):
        return kernel
    return "rbf+linear" if posterior and d <= n_anchors else "rbf"


def check_resumable(loss: Any, random_state: Any) -> None:
    """Refuse a checkpoint that no later fit could resume from."""
    if not isinstance(loss, str):
        raise InputError(
            f"checkpoint works with loss {', '.join(map(repr, LOSSES))}: the classifiers of {type(loss).__name__} "
            "cannot be kept in a file; pass checkpoint=None"
        )
    if random_state is None:
        raise InputError("checkpoint needs a random_state that a later fit can repeat: pass a number, not None")


def _is(value: Any, *words: str) -> bool:
    return isinstance(value, str) and value in words
