"""Random tables give the same codes on the command line and in Python, whatever the order of their columns."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import dish
from dish import DISH

NAMES = ("a", "b", "x 1", "Größe", "weight,kg", "y", "label", "n_1", 'say "so"', "10", "id_2", "Z")
OPTIONS = ("--bits", 8, "--anchors", 10, "-q")


@dataclass
class Table:
    """Labelled rows with named columns of several types; ``options`` name the columns of labels and ids."""

    rows: pd.DataFrame
    features: list[str]
    label: str
    options: list[str]
    rng: np.random.Generator

    def write(self, path, rows=None, shuffled=False):
        """Write the table, its columns perhaps in another order."""
        rows = self.rows if rows is None else rows
        rows = rows[self.rng.permutation(rows.columns)] if shuffled else rows
        rows.to_csv(path, index=False) if path.suffix == ".csv" else rows.to_parquet(path, index=False)
        return path

    def read(self, path):
        """The features in the order of the fit, and the labels, as Python users read them."""
        text = {self.label: str} if self.rows[self.label].dtype.kind == "O" else {}
        rows = pd.read_csv(path, dtype=text) if path.suffix == ".csv" else pd.read_parquet(path)
        return rows[self.features], rows[self.label]


def random_table(seed):
    """Values are multiples of 1/64, which every type and format holds exactly."""
    rng = np.random.default_rng(seed)
    n, d, c = int(rng.integers(30, 60)), int(rng.integers(2, 7)), int(rng.integers(2, 5))
    label = str(rng.choice(["y", "label", "topic"]))
    spare = [name for name in NAMES if label == "topic" or name not in ("y", "label")]
    features = rng.choice(spare, d, replace=False).tolist()
    y = rng.permutation(np.arange(n) % c)
    values = np.round((4 * rng.normal(size=(c, d))[y] + rng.normal(size=(n, d))) * 64) / 64
    rows = pd.DataFrame(values, columns=features)
    for name in features:
        kind = rng.choice(["float32", "float64", "int64", "int8", "bool", "large"])
        if kind == "bool":
            rows[name] = rows[name] > 0
        elif kind == "large":  # beyond the whole numbers that float32 holds
            rows[name] = rows[name].round().astype("int64") + 10**9
        else:
            rows[name] = rows[name].astype(kind) if kind[0] == "f" else rows[name].round().astype(kind)
    kind = rng.choice(["int", "text", "gaps", "text with gaps"])
    rows[label] = [f"class {k}" for k in y] if "text" in kind else y
    if "gaps" in kind:
        rows[label] = rows[label].astype("Int64" if kind == "gaps" else object).where(rng.random(n) > 0.2, None)
    options = ["--y-column", label] if label == "topic" else []
    if rng.random() < 0.5:
        rows.insert(0, "id", rng.permutation(n))
    order = rng.permutation(rows.columns)
    features = [name for name in order if name in features]
    return Table(rows[order], features, label, options, rng)


def check(cli, folder, seed):
    """Fit and encode on the command line and in Python, from files of any two kinds, and compare."""
    table = random_table(seed)
    kinds = table.rng.choice([".csv", ".parquet"], 2)
    train = table.write(folder / f"train{kinds[0]}")
    code, _, err = cli("fit", train, "-o", folder / "m.dish", *OPTIONS, *table.options, "--drop-missing")
    X, y = table.read(train)
    keep = y.notna().to_numpy()
    assert code == 0, err
    assert (f"{(~keep).sum()} of {len(keep)} rows without a label" in err) == (not keep.all())
    expected = DISH(8, n_anchors=10).fit(X[keep], y[keep].to_numpy())
    model = dish.load(folder / "m.dish")
    assert model.feature_names_in_.tolist() == table.features
    np.testing.assert_array_equal(model.codes_, expected.codes_)
    other = table.write(folder / f"other{kinds[1]}", shuffled=True)
    rows = table.read(other)[0]
    options = table.options
    if not keep.all():  # labels with gaps cannot be written next to the codes
        options = [word for name in table.rng.permutation(table.features) for word in ("--x-column", name)]
    code, _, err = cli("encode", folder / "m.dish", other, "-o", folder / "c.npy", *options)
    assert code == 0, err
    np.testing.assert_array_equal(np.load(folder / "c.npy"), expected.transform(rows))
    if not table.options:
        np.testing.assert_array_equal(model.transform(other), expected.transform(rows))
    np.savez(folder / "plain.npz", X=rows.to_numpy(np.float64))  # no names: by position
    assert cli("encode", folder / "m.dish", folder / "plain.npz", "-o", folder / "p.npy")[0] == 0
    np.testing.assert_array_equal(np.load(folder / "p.npy"), np.load(folder / "c.npy"))
    check_refused(cli, folder, table, expected, kinds[1])


def check_refused(cli, folder, table, hasher, kind):
    """A table with a missing, another or an empty column is refused by both, and the command names the column."""
    name = str(table.rng.choice(table.features))
    gap = table.rows.astype({name: "float64"})
    gap.loc[3, name] = np.nan
    fewer = table.rows.drop(columns=name) if len(table.features) > 1 else table.rows.rename(columns={name: "q"})
    wrong = {
        "without": fewer,
        "with 'extra'": table.rows.assign(extra=1.0),
        "": gap,
    }
    for says, rows in wrong.items():
        path = table.write(folder / f"wrong{kind}", rows, shuffled=True)
        code, _, err = cli("encode", folder / "m.dish", path, "-o", folder / "no.npy", *table.options)
        assert (code, says in err, (folder / "no.npy").exists()) == (2, True, False), err
        with pytest.raises(ValueError, match=r"[Ff]eature|NaN"):
            hasher.transform(rows[[one for one in rows.columns if one not in ("id", table.label)]])


@pytest.mark.slow
@pytest.mark.parametrize("some", [0, *(pytest.param(i, marks=pytest.mark.long) for i in (1, 2, 3))])
def test_random_tables_give_the_same_codes_as_in_python(cli, tmp_path, some):
    for seed in range(6 * some, 6 * some + 6):
        check(cli, tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("some", range(8))
def test_two_hundred_random_tables_give_the_same_codes_as_in_python(cli, tmp_path, some):
    for seed in range(25 * some, 25 * some + 25):
        check(cli, tmp_path, seed)


def test_eval_matches_columns_by_name(cli, tmp_path):
    table = random_table(1)
    table = Table(table.rows.dropna(), table.features, table.label, table.options, table.rng)
    train, other = table.write(tmp_path / "t.csv"), table.write(tmp_path / "o.parquet", shuffled=True)
    X, y = table.read(train)
    DISH(8, n_anchors=10).fit(X, y.to_numpy()).save(tmp_path / "m.dish")  # fitted to a data frame
    DISH(8, n_anchors=10).fit(X.to_numpy(), y.to_numpy()).save(tmp_path / "plain.dish")  # does not know the names
    for model in ("m.dish", "plain.dish"):
        scores = []
        for queries in (train, other):
            pairs = ("--db", train, "-", "--queries", queries, "-", "--json", *table.options)
            code, out, err = cli("eval", tmp_path / model, *pairs)
            assert code == 0, err
            scores.append(json.loads(out))
        assert scores[0] == scores[1]


def test_a_missing_file_of_labels_is_named(cli, folder):
    assert cli("fit", folder / "both.npz", "-o", folder / "m.dish", *OPTIONS)[0] == 0
    X, y = folder / "X.npy", folder / "y.npy"
    for option, words in {
        "--db": ("--db", X, "--queries", X, y),
        "--queries": ("--db", X, y, "--queries", X),
    }.items():
        code, _, err = cli("eval", folder / "m.dish", *words)
        assert (code, f"{option} takes rows and labels, two files; got {X}. Give" in err) == (2, True), err
    assert cli("eval", folder / "m.dish", "--queries", X, y, "--db", folder / "both.npz", "-")[0] == 0
