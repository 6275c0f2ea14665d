"""`dish demo`."""

import pytest


@pytest.mark.slow
def test_demo_writes_table_model_and_page(cli, tmp_path):
    code, out, _ = cli("demo", "--output", tmp_path / "d")
    assert code == 0
    for text in ("l2 distance", "LSH, 16 bits", "DISH-K, 64 bits", "DISH, 64 bits", "query"):
        assert text in out
    page = (tmp_path / "d" / "digits.html").read_text()
    assert page.count("<figure") == 110
    assert "DISH-K, 64 bits" in page
    assert page.count('class="right"') >= 80  # of 100
    assert (tmp_path / "d" / "digits.dish").exists()
