"""Weaviate: ±1 vectors; its distance "hamming" counts the elements that differ."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from dish.stores.engine_files.collection import NEAREST, EngineFiles, ExportedRows
from dish.stores.engine_files.qdrant import as_integers

WEAVIATE_TYPES = {int: "int", str: "text"}


class WeaviateFiles(EngineFiles):
    """Collection, objects and query of Weaviate."""

    title = "Weaviate"
    form = "pm1"
    rows_file = "objects.jsonl"

    @property
    def _class(self) -> str:
        """The collection's name, with the capital letter that Weaviate wants."""
        return self.collection.name.capitalize()

    def definition(self) -> dict[str, str]:
        """The collection, with the index that compares all vectors."""
        kinds = {"item": self.collection.ids, "label": self.collection.labels}
        body = {
            "class": self._class,
            "vectorizer": "none",
            "vectorIndexType": "flat",
            "vectorIndexConfig": {"distance": "hamming"},
            "properties": [
                {"name": name, "dataType": [WEAVIATE_TYPES[kind]]} for name, kind in kinds.items() if kind is not None
            ],
        }
        return {"collection.json": json.dumps(body, indent=2)}

    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """One request with all objects per line."""
        objects = [
            {
                "class": self._class,
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, str(one))),
                "properties": {"item": one} | label,
                "vector": as_integers(code),
            }
            for one, code, label in rows
        ]
        yield json.dumps({"objects": objects}) + "\n"

    def query(self, code: Any) -> dict[str, str]:
        """A search in GraphQL."""
        label = "" if self.collection.labels is None else " label"
        what = f"{self._class}(nearVector: {{vector: {as_integers(code)}}}, limit: {NEAREST})"
        body = {"query": f"{{ Get {{ {what} {{ item{label} _additional {{ distance }} }} }} }}"}
        return {"query.json": json.dumps(body, indent=2)}

    def steps(self) -> str:
        """The calls by curl."""
        url, kind = "http://127.0.0.1:8080/v1", "-H 'Content-Type: application/json' --data-binary"
        return f"""```sh
curl -X POST {url}/schema {kind} @collection.json
while read -r objects; do
  printf '%s' "$objects" | curl -X POST {url}/batch/objects {kind} @-
done < objects.jsonl
curl -X POST {url}/graphql {kind} @query.json
```

`distance` of a hit is the Hamming distance. Weaviate only takes UUIDs as ids: each id becomes one (version 5), and
the property `item` has the id itself.
"""
