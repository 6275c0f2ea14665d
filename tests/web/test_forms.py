"""Forms are split at their boundary; strange ones are rejected."""

import pytest
from starlette.exceptions import HTTPException

from dish.web.forms import parse_form

KIND = "multipart/form-data; boundary=B"


def part(disposition, content=b"1"):
    return b"--B\r\nContent-Disposition: form-data; " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"


def test_fields_and_file():
    body = (
        part('name="k"') + part('name="image"; filename="写 \\"a;b.png"', b"\r\n--A\0\r\n") + part("name=empty", b"")
    )
    for kind in (KIND, 'multipart/form-data; charset=x; boundary="B"'):
        fields = parse_form(kind, body + b"--B--\r\n")
        assert (fields["k"], fields["empty"]) == ("1", "")
        assert fields["image"].filename == '写 "a;b.png'
        assert fields["image"].file.read() == b"\r\n--A\0\r\n"
    encoded = parse_form(KIND, part("name=image; filename*=utf-8''%e5%86%99.png") + b"--B--")
    assert encoded["image"].filename == "写.png"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (part('name="k"'), 400),  # no end
        (b"junk" + part('name="k"') + b"--B--", 400),
        (b"--B\r\n\r\n1\r\n--B--", 400),
        (part('filename="a"') + b"--B--", 400),
        (part('name="k"', b"\xff") + b"--B--", 400),
        (b"--B\r\n" + b"a: b\r\n" * 9000 + b"\r\n1\r\n--B--", 400),
        (part('name="k"') * 2 + b"--B--", 422),
        (part('name="k"', b"1" * 20_000) + b"--B--", 413),
        (part('name="k"') * 100 + b"--B--", 413),
    ],
)
def test_rejects(body, status):
    with pytest.raises(HTTPException) as error:
        parse_form(KIND, body)
    assert error.value.status_code == status


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", f"x; boundary={'b' * 201}"]
)
def test_needs_a_boundary(kind):
    with pytest.raises(HTTPException, match="boundary"):
        parse_form(kind, b"--B--")
