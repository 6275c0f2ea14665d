"""Qdrant has no Hamming distance: codes become ±1 vectors, compared by the dot product."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from dish.stores.engine_files.collection import NEAREST, EngineFiles, ExportedRows


class QdrantFiles(EngineFiles):
    """Collection, points and query of Qdrant."""

    title = "Qdrant"
    form = "pm1"
    rows_file = "points.jsonl"
    tested = (
        "Tests of dish load these points into Qdrant Edge (qdrant-edge-py 0.9) and compare the answer with the exact "
        "one. The requests to a Qdrant server follow its documentation; they have not been run."
    )

    def definition(self) -> dict[str, str]:
        """The collection."""
        body = {"vectors": {"size": self.collection.n_bits, "distance": "Dot"}}
        return {"collection.json": json.dumps(body, indent=2)}

    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """One request with all points per line."""
        points = [
            {"id": as_uuid_or_number(one), "vector": as_integers(code), "payload": {"item": one} | label}
            for one, code, label in rows
        ]
        yield json.dumps({"points": points}) + "\n"

    def query(self, code: Any) -> dict[str, str]:
        """An exact search."""
        body = {"query": as_integers(code), "limit": NEAREST, "with_payload": True, "params": {"exact": True}}
        return {"query.json": json.dumps(body, indent=2)}

    def steps(self) -> str:
        """The calls by curl."""
        url = f"http://127.0.0.1:6333/collections/{self.collection.name}"
        kind = "-H 'Content-Type: application/json' --data-binary"
        return f"""```sh
curl -X PUT {url} {kind} @collection.json
while read -r points; do
  printf '%s' "$points" | curl -X PUT "{url}/points?wait=true" {kind} @-
done < points.jsonl
curl -X POST {url}/points/query {kind} @query.json
```

The Hamming distance of a hit is ({self.collection.n_bits} − `score`) / 2. Qdrant only takes whole numbers of at least
0 and UUIDs as ids. Other ids become UUIDs (version 5); the payload `item` has the id itself.
"""


def as_uuid_or_number(one: Any) -> Any:
    """An id of Qdrant: the number itself, or a UUID that only depends on the id."""
    return one if isinstance(one, int) and one >= 0 else str(uuid.uuid5(uuid.NAMESPACE_OID, str(one)))


def as_integers(code: Any) -> list[int]:
    """A ±1 vector in whole numbers, which take less space as text."""
    return [int(value) for value in code.tolist()]
