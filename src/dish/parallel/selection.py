"""The k largest values of all processes, by two or three messages of fixed size."""

from __future__ import annotations

from collections.abc import Callable

from dish.errors import InputError
from dish.lazy import Tensor, torch
from dish.parallel.transport import Transport

SAMPLE = 2048  # values of all processes together from which the first two bounds are estimated
BINS = 4096  # bins of the histogram between two bounds
MOST_SENT = 1024  # values that a process may send in the end, to be sorted by all

Between = Callable[[Tensor, float, float], tuple[int, Tensor]]


def sample(values: Tensor, ranks: Transport) -> Tensor:
    """This process's part of the first message of a selection, (world, size + 2).

    Its row holds some of its values, the number of values that are not finite, and the number of values; the other
    rows are 0. The sum over all processes may be taken together with other sums.
    """
    size = -(-SAMPLE // ranks.world)
    some = values.new_full((ranks.world, size + 2), 0.0)
    drawn = values[:: max(1, len(values) // size)][:size]
    some[ranks.rank, :-2] = torch.nan
    some[ranks.rank, : len(drawn)] = drawn
    some[ranks.rank, -2] = (~values.isfinite()).sum()
    some[ranks.rank, -1] = len(values)
    return some


def between(values: Tensor, low: float, high: float) -> tuple[int, Tensor]:
    """The number of values above ``high``, and the values in [low, high]."""
    return int((values > high).sum()), values[(values >= low) & (values <= high)]


def kth_largest(
    values: Tensor, k: int, ranks: Transport, samples: Tensor | None = None, between: Between = between
) -> tuple[float, int]:
    """The k-th largest value of all processes, and how many of this process's values equal to it are selected.

    Among equal values, those of lower ranks are selected first. A sample gives two bounds, and a histogram between
    them gives one bin. If it has few values, they are sorted, otherwise they are binned again. ``samples`` is the sum
    of all processes' ``sample``, if it was sent before.
    """
    samples = ranks.total(sample(values, ranks)) if samples is None else samples
    _check_finite(samples)
    low, high = _bounds(samples, k)
    above, left = between(values, low, high)
    while True:
        bins, counts = _histogram(left, low, high)
        totals, all_above = ranks.sum(counts.double(), counts.new_tensor([float(above)], dtype=torch.float64))
        totals, n_above = totals.cpu(), int(all_above)
        if not n_above < k <= n_above + float(totals.sum()):  # not between the bounds: look outside
            left = values[values > high] if k <= n_above else values[values < low]
            above = 0 if k <= n_above else len(values) - len(left)
            inside = MOST_SENT + 1
        else:
            from_top = totals.flip(0).cumsum(0) + n_above
            chosen = BINS - 1 - int((from_top < k).sum())
            above += int((bins > chosen).sum())
            left = left[bins == chosen]
            inside = int(totals[chosen])
        if inside <= MOST_SENT:
            every = ranks.gather(_padded(left, MOST_SENT)).cpu()
            larger = n_above + int(totals[chosen + 1 :].sum())
            return _among(every, k - larger, ranks.rank)
        ends = ranks.gather(torch.stack(_ends(left))).cpu()
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        if low == high:  # all equal
            counts = ranks.gather(torch.tensor([float(above), float(len(left))]))
            ties, before = k - int(counts[:, 0].sum()), int(counts[: ranks.rank, 1].sum())
            return low, max(0, min(len(left), ties - before))


def _check_finite(samples: Tensor) -> None:
    """Raise an error on all processes if any value is NaN or infinite."""
    bad = samples[:, -2].tolist()
    if any(bad):
        rank = next(rank for rank, count in enumerate(bad) if count)
        raise InputError(
            f"{sum(bad):,.0f} NaN or infinite values to select from; the first of them in process {rank}"
        )


def _among(every: Tensor, k: int, rank: int) -> tuple[float, int]:
    """The k-th largest of all values (world, MOST_SENT), padded with NaN, and how many ties of row ``rank`` count."""
    ordered = every[~every.isnan()].sort(descending=True).values
    threshold = ordered[k - 1]
    ties = k - int((ordered > threshold).sum())
    equal = (every == threshold).sum(1)
    return float(threshold), max(0, min(int(equal[rank]), ties - int(equal[:rank].sum())))


def _bounds(samples: Tensor, k: int) -> tuple[float, float]:
    """Two bounds that very likely enclose the k-th largest value."""
    some, n = samples[:, :-2].cpu(), float(samples[:, -1].sum())
    ordered = some[~some.isnan()].sort().values
    place, margin, last = (n - k) / n * len(ordered), 2 * len(ordered) ** 0.5, len(ordered) - 1
    low, high = (float(ordered[max(0, min(last, int(at)))]) for at in (place - margin, place + margin))
    return low, high


def _histogram(values: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The bin of each value between two bounds, and the number of values per bin."""
    width = high / 2 - low / 2  # halves, because the difference may overflow
    if width > 0:
        bins = ((values / 2 - low / 2) / width * BINS).floor_().clamp_(0, BINS - 1).long()
    else:
        bins = (values > low) * (BINS - 1)
    return bins, torch.bincount(bins, minlength=BINS)


def _padded(values: Tensor, size: int) -> Tensor:
    out = values.new_full((size,), float("nan"))
    out[: len(values)] = values[:size]
    return out


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value; ∞ and −∞ if there are none."""
    if len(values) == 0:
        return values.new_tensor(float("inf")), values.new_tensor(float("-inf"))
    return values.min(), values.max()
