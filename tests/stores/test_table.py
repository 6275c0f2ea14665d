"""Statements and values of a table of codes, without a server."""

import numpy as np
import pytest

from dish import codes
from dish.errors import InputError
from dish.stores.table import CHUNK_BITS, CodeTable, _chunk_places, _neighbours, from_comment, to_comment, to_json
from helpers.codes import all_distances, make_codes

pytest.importorskip("psycopg", reason="PostgresStore is NOT tested: psycopg is not installed")


@pytest.mark.parametrize("n_bits", [1, 2, 20, 64, 131])
def test_chunks_do_not_overlap_and_fit_into_an_int(n_bits):
    places = _chunk_places(n_bits)
    assert len(places) == min(3, n_bits)
    assert all(0 < width <= CHUNK_BITS for _, width in places)
    covered = [bit for start, width in places for bit in range(start, start + width)]
    assert len(set(covered)) == len(covered)
    assert set(covered) <= set(range(n_bits))


def test_neighbours_are_the_integers_within_a_hamming_distance():
    for flips in range(4):
        found = _neighbours(0b01101, 5, flips)
        assert sorted(found) == [x for x in range(32) if (x ^ 0b01101).bit_count() <= flips]


@pytest.mark.parametrize("radius", [0, 2, 3, 5, 6])
def test_radius_queries_let_no_row_within_the_radius_pass(radius):
    """The chunks of the query's values must include a chunk of every row within the radius."""
    table = CodeTable("rows", 24, "integer")
    B = make_codes("clustered", 500, 24)
    bits = table.to_bits(B)
    _, (most, *chunks) = table.radius_query(bits[0], radius)
    assert most == radius
    assert bool(chunks) == (radius < 6)  # beyond, the table is scanned
    for row in np.flatnonzero(all_distances(B[:1], B)[0] <= radius) if chunks else []:
        parts = [int(bits[row][start : start + width], 2) for start, width in _chunk_places(24)]
        assert any(part in allowed for part, allowed in zip(parts, chunks, strict=True))


def test_names_are_quoted():
    statement = CodeTable('a"b%', 8, "string").statement("SELECT {n_bits}, '{id_type}' FROM {table}")
    assert statement.as_string(None) == """SELECT 8, 'text' FROM "a""b%%\""""


def test_codes_become_bit_strings():
    H = np.array([[1, -1, 1, 1, -1, -1, -1, 1, 1, -1]])
    assert CodeTable("rows", 10, "integer").to_bits(codes.pack(H)) == ["1011000110"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "no table 'rows': call create"),
        ({"id": "bigint", "code": "bit(32)"}, r"column code of table 'rows' must be bit\(64\), got bit\(32\)"),
        ({"id": "text", "code": "bit(64)"}, "column id of table 'rows' must be bigint, got text"),
        ({"code": "bit(64)"}, "must be bigint, got no such column"),
    ],
)
def test_columns_of_other_tables_are_rejected(columns, message):
    with pytest.raises(InputError, match=message):
        CodeTable("rows", 64, "integer").check(columns)


@pytest.mark.parametrize("name", ["", "x" * 49, "a\0"])
def test_invalid_table_names_are_rejected(name):
    with pytest.raises(InputError, match="table must be a name of 1 to 48 bytes"):
        CodeTable(name, 8, "integer")


def test_ids_of_the_wrong_type_are_rejected():
    with pytest.raises(InputError, match="must be of type 'integer', got 'a'"):
        CodeTable("rows", 8, "integer").to_ids(["a"])
    strings = CodeTable("rows", 8, "string")
    with pytest.raises(InputError, match="must be of type 'string', got 1"):
        strings.to_ids([1])
    for bad in ("a\0b", "\ud800"):
        with pytest.raises(InputError, match="ids must be text"):
            strings.to_ids(["fine", bad])


@pytest.mark.parametrize("label", ["a\0b", "\ud800", float("inf"), 1e300])
def test_labels_that_postgresql_cannot_store_are_rejected(label):
    with pytest.raises(InputError, match="labels"):
        to_json(["fine", label], 2)
    assert to_json(["é", None, 1.5, True], 4) == ['"\\u00e9"', None, "1.5", "true"]


def test_comments_record_the_model():
    assert from_comment(to_comment("0123456789abcdef")) == "0123456789abcdef"
    for other in (None, "", "a comment", '{"dish": {"model": "not a fingerprint"}}', "[1]"):
        assert from_comment(other) is None
