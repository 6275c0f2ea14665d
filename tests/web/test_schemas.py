"""Validation of requests: every error is one sentence."""

import json
from collections import Counter

import hypothesis
import orjson
import pytest
from hypothesis import strategies as st

from dish.web.schemas import count_json


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"vector": [1.0] * 63}, 422, "64 numbers, got 63"),
        ({"vector": []}, 422, "64 numbers, got 0"),
        ({"vector": [0.5] * 2000}, 422, "64 numbers, got 2000"),
        ({"vector": [1e300] * 64}, 422, "float32"),
        ({"vector": ["1"] * 64}, 422, "vector"),
        ({"vector": [[1.0]] * 64}, 422, "vector"),
        ({"vector": [0.0] * 64, "id": 1000}, 422, "exactly one of vector, id and code"),
        ({}, 422, "exactly one of vector, id and code"),
        ({"code": "00"}, 422, "8 lower-case hexadecimal digits"),
        ({"code": "GG000000"}, 422, "hexadecimal"),
        ({"id": 1000, "k": 0}, 422, "k"),
        ({"id": 1000, "k": 1001}, 422, "between 1 and 1000"),
        ({"id": 1000, "k": 2.5}, 422, "k"),
        ({"id": 1000, "k": True}, 422, "k"),
        ({"id": 1000, "k": 1, "radius": 1}, 422, "either k or radius"),
        ({"id": 1000, "radius": -1}, 422, "radius"),
        ({"id": 1000, "radius": 33}, 422, "between 0 and 32"),
        ({"id": 1000, "colour": "red"}, 422, "colour"),
        ({"id": 2**70}, 422, "id"),
        ({"id": 5}, 404, "no item 5"),
        ({"id": "1000"}, 404, "no item"),
        ({"id": "../../etc/passwd"}, 404, "no item"),
        ([1], 422, ""),
    ],
)
def test_rejects_invalid_searches(client, body, status, says):
    answer = client.post("/search", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert says in answer.json()["error"]
    assert "Traceback" not in answer.text


def count(value):
    """The counts of a parsed body."""
    if isinstance(value, dict):
        parts = [count(one) for one in value.values()]
        own = Counter(lists=1, fields=len(value), strings=len(value), commas=max(0, len(value) - 1))
    elif isinstance(value, list):
        parts, own = [count(one) for one in value], Counter(lists=1, commas=max(0, len(value) - 1))
    else:
        parts, own = [], Counter(strings=int(isinstance(value, str)))
    return sum(parts, own)


@hypothesis.settings(deadline=None, database=None, max_examples=60)
@hypothesis.given(
    st.recursive(
        st.none() | st.integers(-9, 9) | st.text(alphabet='"\\\\[]{},:aé'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"\\\\[{,:a'), inner),
    )
)
def test_punctuation_counts_what_parsing_counts(value):
    expected = count(value)
    for text in (orjson.dumps(value), json.dumps(value, indent=1).encode()):
        found = count_json(text)
        assert found["values"] == expected["commas"] + 1
        assert all(found[name] == expected[name] for name in ("lists", "fields", "strings"))


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/encode", {"vectors": [[0.0]] * 400_000}, "lists"),
        ("/search", {"vector": [0] * 400_000}, "values"),
        ("/search", {str(i): 0 for i in range(50_000)}, "fields"),
        ("/search", {str(i): 0 for i in range(1000)}, "fields"),  # 10 kB
        ("/encode", {str(i): 0 for i in range(10_000)}, "fields"),
        ("/search", {"vector": ["ab"] * 100_000}, "strings"),
        ("/encode", {"vectors": [{}] * 100_000}, "lists"),
        ("/encode", {"vectors": [[0] * 64] * 10_001}, "10,000 rows"),
    ],
)
def test_too_many_elements_get_413(client, path, body, says):
    answer = client.post(path, json=body)
    assert answer.status_code == 413
    assert says in answer.json()["error"]


def test_nested_lists_are_counted_before_they_are_parsed(client):
    answer = client.post("/search", content=b"[" * 100_000, headers={"content-type": "application/json"})
    assert (answer.status_code, "100,000 lists" in answer.json()["error"]) == (413, True)


@pytest.mark.parametrize("text", ["x" * 4_000_000, "写" * 1000])
def test_unknown_field_is_named_in_short(client, text):
    answer = client.post("/search", json={"id": 1000, text: 1})
    assert answer.status_code == 422
    takes = "this request takes vector, id, code, k, radius, ids, labels, rescore, shortlist"
    assert answer.json()["error"] == f"{text[:100]}…: unknown field; {takes}"


def test_first_error_ends_the_validation(client):
    answer = client.post("/encode", json={"vectors": [[0]] * 9000})
    assert (answer.status_code, answer.json()["error"]) == (422, "a vector must have 64 numbers, got 1")


def test_read_only_server_does_not_look_at_items(client):
    """The body is not even JSON."""
    for headers in ({"content-type": "application/json"}, {"content-type": "multipart/form-data; boundary=B"}):
        answer = client.post("/items", content=b"[" * 1000, headers=headers)
        assert (answer.status_code, "read-only" in answer.json()["error"]) == (403, True)
