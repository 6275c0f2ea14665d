"""Addresses of stores."""

import pytest

from dish import stores
from dish.errors import InputError


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_file_is_relative_after_three_slashes_and_absolute_after_four(scheme, tmp_path, monkeypatch):
    pytest.importorskip({"sqlite": "apsw"}.get(scheme, scheme))
    monkeypatch.chdir(tmp_path)
    for address, file in ((f"{scheme}:///here.db", "here.db"), (f"{scheme}:///{tmp_path}/there.db", "there.db")):
        with stores.open(address, "rows", n_bits=8) as store:
            store.create()
        assert (tmp_path / file).exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mysql://me:secret@host/db", r"address must be postgresql://.*sqlite:///file\.db.*, got mysql://…"),
        ("codes.db", "address must be .* got 'codes.db'"),
        (None, "address must be .* got None"),
        ("sqlite://codes.db", "three slashes"),
        ("duckdb:///", "three slashes"),
        ("sqlite:///no/such/folder/codes.db", "there is no folder no/such/folder; an absolute path has four slashes"),
    ],
)
def test_other_addresses_are_refused_and_no_password_is_shown(address, message):
    with pytest.raises(InputError, match=message) as caught:
        stores.open(address, "rows")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 49, "a\0", None])
def test_invalid_table_names_are_refused(name):
    with pytest.raises(InputError, match="table must be a name of 1 to 48 bytes"):
        stores.open("sqlite:///codes.db", name)


def test_invalid_parameters_are_refused():
    for options, message in (
        ({"n_bits": 0}, "n_bits must be"),
        ({"ids": "float"}, "ids must be one of"),
        ({"model": "DISH"}, "model must be the fingerprint_"),
    ):
        with pytest.raises(InputError, match=message):
            stores.open("sqlite:///codes.db", "rows", **options)
