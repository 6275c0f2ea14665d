"""Validation of requests: every error is one sentence."""

import pytest


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"vector": [1.0] * 63}, 422, "64 numbers, got 63"),
        ({"vector": []}, 422, "64 numbers, got 0"),
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
