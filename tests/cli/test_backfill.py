"""`dish fit --compatible-with` and `dish backfill`."""

import numpy as np
import pytest

import dish
from dish.io.modelfile import family

QUICK = ("--bits", 16, "--anchors", 20, "-q")


@pytest.fixture
def models(cli, folder):
    """An older model of two classes, a newer one of three, and codes of the older one."""
    X, y = np.load(folder / "X.npy"), np.load(folder / "y.npy")
    np.save(folder / "X2.npy", X[y < 2])
    np.save(folder / "y2.npy", y[y < 2])
    assert cli("fit", folder / "X2.npy", folder / "y2.npy", "-o", folder / "old.dish", *QUICK)[0] == 0
    compatible = ("--compatible-with", folder / "old.dish")
    code, _, errors = cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "new.dish", *QUICK, *compatible)
    assert code == 0, errors
    assert cli("encode", folder / "old.dish", folder / "X.npy", "-o", folder / "codes.npy")[0] == 0
    return folder


def test_backfill_says_how_many_rows_remain(cli, models):
    old, new = (dish.load(models / f"{name}.dish") for name in ("old", "new"))
    assert family(new.fingerprint_) == old.fingerprint_
    command = ("backfill", models / "new.dish", models / "X.npy", models / "codes.npy", "--budget", 70)
    for encoded, remaining in ((70, 50), (50, 0), (0, 0)):
        code, out, _ = cli(*command)
        assert code == 0
        assert f"{encoded} rows encoded again" in out
        assert f"{remaining} rows remain" in out
    np.testing.assert_array_equal(np.load(models / "codes.npy"), new.transform(np.load(models / "X.npy")))


def test_backfill_refuses_another_family_and_label_codes_without_labels(cli, models):
    strange = models / "strange.dish"
    assert cli("fit", models / "X.npy", models / "y.npy", "-o", strange, *QUICK, "--seed", 5)[0] == 0
    command = ("backfill", strange, models / "X.npy", models / "codes.npy", "--budget", 10)
    code, _, errors = cli(*command)
    assert code == 2
    assert "cannot be compared" in errors
    np.save(models / "rows_only.npy", np.load(models / "X.npy"))
    code, _, errors = cli(*("backfill", models / "new.dish", models / "rows_only.npy", *command[3:]), "--label-codes")
    assert code == 2
    assert "--y-column" in errors


def test_a_method_that_cannot_be_compatible_says_so(cli, models):
    command = ("fit", models / "X.npy", models / "y.npy", "-o", models / "k.dish", "--method", "dish_k", *QUICK)
    code, _, errors = cli(*command, "--compatible-with", models / "old.dish")
    assert code == 2
    assert "DISH can" in errors
