"""Reading request bodies: media types, JSON, forms."""

import numpy as np
import pytest

from helpers.web import JSON, png, upload


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"vector": [NaN]}', "[" * 50, '{"k": 1e999}', "\x00"])
def test_rejects_broken_json(client, text):
    answer = client.post("/search", content=text, headers=JSON)
    assert answer.status_code == 422
    assert answer.json().keys() == {"error"}


def test_rejects_other_media_types_methods_and_fields(client):
    assert client.post("/search", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/search").status_code == 405
    assert client.get("/search").json().keys() == {"error"}
    assert client.get("/nothing").status_code == 404
    assert client.get("/nothing").json().keys() == {"error"}
    assert client.get("/samples?n=x").status_code == 422
    assert client.get("/samples?n=1000").json().keys() == {"error"}
    assert client.post("/search", content=b"--x", headers={"content-type": "multipart/form-data"}).status_code == 400
    assert client.post("/search", data={"k": "1"}, files={"other": b"x"}).status_code == 422
    assert upload(client, png(np.zeros((8, 8), np.uint8)), k="x").status_code == 422
    assert upload(client, png(np.zeros((8, 8), np.uint8)), k="0").status_code == 422
    assert upload(client, png(np.zeros((8, 8), np.uint8)), knob="1").status_code == 422


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_parameters_and_case_of_the_media_type_are_ignored(client, kind):
    response = client.post("/search", content=b'{"id": 1003, "k": 1}', headers={"content-type": kind})
    assert (response.status_code, response.json()["ids"]) == (200, [1003])


def test_empty_form_field_counts_as_missing(client):
    response = upload(client, png(np.zeros((8, 8), np.uint8)), k="", radius="")
    assert (response.status_code, len(response.json()["ids"])) == (200, 10)
