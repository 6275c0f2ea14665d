"""The page of the service: every route with its parameters, body and answer, from the OpenAPI schema.

A line ``<!-- generated: routes -->`` of a page becomes the sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commands_page import escaped

MARK = "<!-- generated: routes -->"
Schema = dict[str, Any]


def schema() -> Schema:
    """The OpenAPI schema of a server with a small model."""
    import numpy as np

    from dish import DISHK, HammingIndex
    from dish.web.app import app_of, create_app
    from dish.web.collection import Collection
    from dish.web.generations import ServedGeneration

    rows = np.random.default_rng(0).standard_normal((40, 4))
    hasher = DISHK(n_bits=64, n_anchors=20).fit(rows, np.arange(40) % 2)
    collection = Collection(hasher, HammingIndex(n_bits=64))
    found: Schema = app_of(create_app(collection), ServedGeneration(collection, 2, None)).openapi()
    return found


def routes_text(api: Schema) -> str:
    """Markdown with a section for each route."""
    lines: list[str] = []
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            lines += [f"## {method.upper()} {path}\n", f"{_text(route)}\n"]
            lines += [*_parameters(route), *_body(api, route), *_answers(api, route)]
    return "\n".join(lines)


def _parameters(route: Schema) -> Iterator[str]:
    given = route.get("parameters", [])
    rows = {p["name"]: p["schema"] | {k: p[k] for k in ("description",) if k in p} for p in given}
    yield from _table("parameter", rows, [p["name"] for p in given if p.get("required")])


def _body(api: Schema, route: Schema) -> Iterator[str]:
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        body = _resolved(api, content.get("schema", {}))
        fields = body.get("properties", {})
        yield f"Body: `{kind}`{':' if fields else '.'}\n"
        yield from _table("field", fields, body.get("required", ()))


def _answers(api: Schema, route: Schema) -> Iterator[str]:
    kinds = route["responses"]["200"].get("content", {})
    kinds = {kind: _resolved(api, about.get("schema", {})) for kind, about in kinds.items()}
    for kind, body in kinds.items():
        if not body and len(kinds) > 1:
            continue  # FastAPI adds JSON to every answer
        items = _resolved(api, body.get("items", body))
        fields = items.get("properties", {})
        of = f", a list{' of' * bool(fields)}" if body.get("type") == "array" else ""
        yield f"Answer: `{kind}`{of}{':' if fields else '.'}\n"
        yield from _table("field", fields, ())


def _table(first: str, fields: Schema, required: Any) -> Iterator[str]:
    if fields:
        yield f"| {first} | type | |\n|---|---|---|"
        for name, about in fields.items():
            default = f"Default: `{about['default']}`." if about.get("default") is not None else ""
            text = " ".join(filter(None, ("Required." * (name in required), _text(about), default)))
            yield f"| `{name}` | {_type(about)} | {text} |"
        yield ""


def _type(about: Schema) -> str:
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_type(each) for each in about["anyOf"]))
    if "enum" in about or "const" in about:
        return " or ".join(f"`{each}`" for each in about.get("enum", [about.get("const")]))
    if about.get("type") == "array":
        inner = _type(about.get("items", {}))
        return f"list of ({inner})" if " " in inner else f"list of {inner}"
    return str(about.get("type", "any"))


def _resolved(api: Schema, about: Schema) -> Schema:
    name = about.get("$ref", "").rpartition("/")[2]
    found: Schema = api["components"]["schemas"][name] if name else about
    return found


def _text(about: Schema) -> str:
    return " ".join(escaped(about.get("description", "")).split())


def insert(app: Any, name: str, source: list[str]) -> None:
    """Replace the mark on a page."""
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, routes_text(schema()))


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
