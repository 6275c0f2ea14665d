"""The report of ``evaluate`` against the single scores."""

import pytest

from dish import codes, metrics
from helpers.rankings import make_codes


@pytest.mark.parametrize("multi", [False, True])
def test_report_equals_the_single_scores(multi):
    data = make_codes(nq=20, r=8, multi=multi)
    report = metrics.evaluate(*data, n_bits=8, k=7, at=(7, 10_000))
    assert report.map == pytest.approx(metrics.mean_average_precision(*data, k=7))
    assert report.map_possible == pytest.approx(metrics.mean_average_precision(*data, k=7, denominator="possible"))
    assert report.precision_within_2 == pytest.approx(metrics.precision_within_radius(*data))
    assert report.recall_within_2 == pytest.approx(metrics.recall_within_radius(*data))
    assert report.f1_within_2 == pytest.approx(metrics.f1_within_radius(*data))
    assert report.precision_at == {7: pytest.approx(metrics.precision_at_k(*data, k=7))}
    assert report.recall_at == {7: pytest.approx(metrics.recall_at_k(*data, k=7))}
    assert report.empty_balls == pytest.approx(((codes.hamming(data[0], data[2]) <= 2).sum(1) == 0).mean())
    assert report.curve_recall[-1] == 1.0
    assert len(report.curve_recall) == report.n_bits + 1 == 9
    assert metrics.evaluate(*data).map == pytest.approx(metrics.mean_average_precision(*data))


def test_report_prints_as_a_short_table():
    q, yq, b, yb = make_codes()
    report = metrics.evaluate(q, yq, b, yb, k=10)
    text = str(report)
    assert text.splitlines()[0] == "9 queries, 60 rows, 16 bits"
    assert f"MAP@10                         {report.map:.4f}" in text
    assert "curve" not in text
    assert len(text.splitlines()) <= 12
    assert max(map(len, text.splitlines())) < 60


@pytest.mark.parametrize("k", [0, -5, 1000])
def test_rejects_bad_k(k):
    with pytest.raises(ValueError, match="k must be"):
        metrics.evaluate(*make_codes(), k=k)
