"""Forms (multipart/form-data) with a few short fields and one file.

The body is in memory already, so it is split at its boundary in one go. Starlette's parser calls Python for every
header and every line, for half a second with a hostile body of 4 MiB, and writes files above 1 MiB to a temporary
folder.
"""

from __future__ import annotations

import io
import re
from urllib.parse import unquote_to_bytes

from fastapi import UploadFile
from starlette.exceptions import HTTPException

MAX_PARTS = 8
MAX_HEAD = 8 << 10  # bytes of the headers of a part
MAX_FIELD = 16 << 10  # bytes of a field that is not a file
MAX_TYPE = 1000  # characters of the Content-Type header
MAX_BOUNDARY = 200
PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))\s*')


def parse_form(content_type: str, body: bytes) -> dict[str, str | UploadFile]:
    """Return the fields of a form by name. One with a file name is an ``UploadFile``."""
    if len(content_type) > MAX_TYPE:
        raise HTTPException(400, f"the Content-Type of a form may have at most {MAX_TYPE:,} characters")
    boundary = _parameters(content_type).get("boundary", "").encode("latin1", "replace")
    if not 1 <= len(boundary) <= MAX_BOUNDARY:
        raise HTTPException(400, f"multipart/form-data needs a boundary of 1 to {MAX_BOUNDARY} characters")
    mark = b"\r\n--" + boundary
    body = b"\r\n" + body  # the first boundary may be at the start
    before, *parts = body.split(mark, MAX_PARTS + 2)
    if len(parts) > MAX_PARTS + 1:
        raise HTTPException(413, f"a form may have at most {MAX_PARTS} fields")
    if before.strip() or not parts or not parts.pop().startswith(b"--"):
        raise HTTPException(400, "the form does not start or does not end with its boundary")
    fields: dict[str, str | UploadFile] = {}
    for part in parts:
        name, value = _field(part)
        if name in fields:
            raise HTTPException(422, f"{name}: given twice")
        fields[name] = value
    return fields


def _field(part: bytes) -> tuple[str, str | UploadFile]:
    head, found, content = part.partition(b"\r\n\r\n")
    if not found or len(head) > MAX_HEAD or not head.startswith(b"\r\n"):
        raise HTTPException(400, f"each field of a form needs headers of at most {MAX_HEAD:,} bytes and a blank line")
    headers = dict(line.partition(":")[::2] for line in _text(head).strip().split("\r\n"))
    disposition = next((value for name, value in headers.items() if name.lower() == "content-disposition"), "")
    parameters = _parameters(disposition)
    name = parameters.get("name", "")
    if not name:
        raise HTTPException(400, "a field of the form has no name")
    if "filename" in parameters:
        return name, UploadFile(io.BytesIO(content), size=len(content), filename=parameters["filename"])
    if len(content) > MAX_FIELD:
        raise HTTPException(413, f"{name}: at most {MAX_FIELD:,} bytes")
    return name, _text(content)


def _parameters(header: str) -> dict[str, str]:
    """Return the parameters of a header such as ``form-data; name="image"``, up to the first mistake.

    Every character is looked at a few times at most, whatever the header is. ``name*=utf-8''…`` (RFC 5987) counts as
    ``name``.
    """
    found: dict[str, str] = {}
    end = header.find(";")
    while end >= 0 and (match := PARAMETER.match(header, end)):
        name, quoted, value = match.groups("")
        value = value or re.sub(r'\\(["\\])', r"\1", quoted)
        if name.endswith("*"):
            name, value = name[:-1], _text(unquote_to_bytes(value.rpartition("'")[2]))
        found.setdefault(name.lower(), value)
        end = match.end()
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the text of a form must be UTF-8") from None
