"""The k largest values of all processes, by two or three messages whose size does not grow with the values."""

from __future__ import annotations

from collections.abc import Callable

from dish.errors import InputError
from dish.lazy import Tensor, torch
from dish.parallel.transport import Transport

SAMPLE = 2048  # values of all processes together that give the first two bounds
BINS = 4096  # of the histogram between two bounds
FEW = 1024  # values that a process may send at the end, to be sorted by everybody

Between = Callable[[Tensor, float, float], tuple[int, Tensor]]


def sample(values: Tensor, ranks: Transport) -> Tensor:
    """What a selection needs first: (world, size + 2), a few of our values, how many are not finite, how many in all.

    Zero in the rows of other processes: to be summed over all of them, with whatever else is to be sent.
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
    """How many values exceed ``high``, and those in [low, high]."""
    return int((values > high).sum()), values[(values >= low) & (values <= high)]


def kth_largest(
    values: Tensor, k: int, ranks: Transport, samples: Tensor | None = None, between: Between = between
) -> tuple[float, int]:
    """The k-th largest of the values of all processes, and how many of ours that equal it are among the k largest.

    Of equal values those of lower ranks come first. A sample gives two bounds, a histogram between them one bin, and
    the values of that bin are sorted if they are few, else binned again. ``samples`` are the summed ``sample`` of
    all, if they were sent already.
    """
    samples = ranks.total(sample(values, ranks)) if samples is None else samples
    _check_finite(samples)
    low, high = _bounds(samples, k)
    above, left = between(values, low, high)
    while True:
        bins, counts = _histogram(left, low, high)
        totals, all_above = ranks.sum(counts.double(), counts.new_tensor([float(above)], dtype=torch.float64))
        totals, n_above = totals.cpu(), int(all_above)
        if not n_above < k <= n_above + float(totals.sum()):  # the bounds missed it: look on that side
            left = values[values > high] if k <= n_above else values[values < low]
            above = 0 if k <= n_above else len(values) - len(left)
            inside = FEW + 1
        else:
            from_top = totals.flip(0).cumsum(0) + n_above
            chosen = BINS - 1 - int((from_top < k).sum())
            above += int((bins > chosen).sum())
            left = left[bins == chosen]
            inside = int(totals[chosen])
        if inside <= FEW:
            every = ranks.gather(_padded(left, FEW)).cpu()
            larger = n_above + int(totals[chosen + 1 :].sum())
            return _among(every, k - larger, ranks.rank)
        ends = ranks.gather(torch.stack(_ends(left))).cpu()
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        if low == high:  # all equal
            numbers = ranks.gather(torch.tensor([float(above), float(len(left))]))
            ties, before = k - int(numbers[:, 0].sum()), int(numbers[: ranks.rank, 1].sum())
            return low, max(0, min(len(left), ties - before))


def _check_finite(samples: Tensor) -> None:
    """Refuse NaN and infinity, by numbers that all processes have: all of them stop."""
    bad = samples[:, -2].tolist()
    if any(bad):
        rank = next(rank for rank, count in enumerate(bad) if count)
        raise InputError(
            f"the values to select from hold NaN or infinity: {sum(bad):,.0f} of them, the first in process {rank}"
        )


def _among(every: Tensor, k: int, rank: int) -> tuple[float, int]:
    """The k-th largest of the values (world, few), padded with NaN, and how many of our own are its ties."""
    ordered = every[~every.isnan()].sort(descending=True).values
    threshold = ordered[k - 1]
    ties = k - int((ordered > threshold).sum())
    equal = (every == threshold).sum(1)
    return float(threshold), max(0, min(int(equal[rank]), ties - int(equal[:rank].sum())))


def _bounds(samples: Tensor, k: int) -> tuple[float, float]:
    """Two numbers that very likely hold the k-th largest value between them."""
    some, n = samples[:, :-2].cpu(), float(samples[:, -1].sum())
    ordered = some[~some.isnan()].sort().values
    place, margin, last = (n - k) / n * len(ordered), 2 * len(ordered) ** 0.5, len(ordered) - 1
    low, high = (float(ordered[max(0, min(last, int(at)))]) for at in (place - margin, place + margin))
    return low, high


def _histogram(values: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Bins of values between two bounds, and how many are in each; the bounds fall in the first and the last."""
    width = high / 2 - low / 2  # halves: the whole difference may overflow
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
    """Smallest and largest, of nothing ±∞."""
    if len(values) == 0:
        return values.new_tensor(float("inf")), values.new_tensor(float("-inf"))
    return values.min(), values.max()
