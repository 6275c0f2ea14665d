"""Forms (multipart/form-data) with a few short fields and one file.

The body is in memory already, so it is split at its boundary in one go. Starlette's parser calls Python for every
header and every line, for half a second with a hostile body of 4 MiB, and writes files above 1 MiB to a temporary
folder.
"""

from __future__ import annotations

import io
from email.message import Message

from fastapi import UploadFile
from starlette.exceptions import HTTPException

MAX_PARTS = 8
MAX_HEAD = 8 << 10  # bytes of the headers of a part
MAX_FIELD = 16 << 10  # bytes of a field that is not a file


def parse_form(content_type: str, body: bytes) -> dict[str, str | UploadFile]:
    """Return the fields of a form by name. One with a file name is an ``UploadFile``."""
    boundary = _parameter(content_type, "boundary").encode("latin1", "replace")
    if not 1 <= len(boundary) <= 200:
        raise HTTPException(400, "multipart/form-data needs a boundary of 1 to 200 characters")
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
    name, file_name = _parameter(disposition, "name"), _parameter(disposition, "filename")
    if not name:
        raise HTTPException(400, "a field of the form has no name")
    if file_name or "filename" in disposition:
        return name, UploadFile(io.BytesIO(content), size=len(content), filename=file_name)
    if len(content) > MAX_FIELD:
        raise HTTPException(413, f"{name}: at most {MAX_FIELD:,} bytes")
    return name, _text(content)


def _parameter(header: str, name: str) -> str:
    """Return a parameter of a header such as ``form-data; name="image"``, "" if it has none."""
    message = Message()
    message["x"] = header.replace("\r", " ").replace("\n", " ")
    value = message.get_param(name, "", header="x")
    if isinstance(value, tuple):  # RFC 2231: filename*=utf-8''…
        return _text(value[2].encode("latin1", "replace"))
    return value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the text of a form must be UTF-8") from None
