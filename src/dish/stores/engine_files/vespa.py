"""Vespa: a tensor of signed bytes with the distance metric hamming."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dish import codes
from dish.stores.engine_files.collection import NEAREST, EngineFiles, ExportedRows


class VespaFiles(EngineFiles):
    """Schema, documents and query of Vespa."""

    title = "Vespa"
    form = "int8"
    rows_file = "documents.jsonl"

    def definition(self) -> dict[str, str]:
        """The schema. Without "index", Vespa builds no graph: the search compares all codes."""
        name, tensor = self.collection.name, f"tensor<int8>(x[{codes.n_bytes(self.collection.n_bits)}])"
        fields = [("item", VESPA_TYPES[self.collection.ids])]
        if self.collection.labels is not None:
            fields.append(("label", VESPA_TYPES[self.collection.labels]))
        stored = "{\n      indexing: summary | attribute\n    }\n"
        columns = "".join(f"    field {field} type {kind} {stored}" for field, kind in fields)
        schema = f"""# From the documentation of Vespa, not run.
schema {name} {{
  document {name} {{
{columns}    field code type {tensor} {{
      indexing: attribute
      attribute {{
        distance-metric: hamming
      }}
    }}
  }}
  rank-profile hamming {{
    inputs {{
      query(q) {tensor}
    }}
    first-phase {{
      expression: closeness(field, code)
    }}
    match-features {{
      distance(field, code)
    }}
  }}
}}
"""
        return {f"{name}.sd": schema}

    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """One document per line."""
        name = self.collection.name
        for one, code, label in rows:
            fields = {"item": one, **label, "code": {"values": code.tolist()}}
            yield json.dumps({"put": f"id:{name}:{name}::{one}", "fields": fields}) + "\n"

    def query(self, code: Any) -> dict[str, str]:
        """An exact search."""
        nearest = f"{{targetHits: {NEAREST}, approximate: false}}nearestNeighbor(code, q)"
        body = {
            "yql": f"select * from {self.collection.name} where {nearest}",
            "ranking": "hamming",
            "input.query(q)": code.tolist(),
            "hits": NEAREST,
        }
        return {"query.json": json.dumps(body, indent=2)}

    def steps(self) -> str:
        """The calls by the Vespa command line and by curl."""
        name = self.collection.name
        return f"""Put `{name}.sd` into the folder `schemas` of your application package,
name the document type `{name}` in its `services.xml`, and deploy it. Then:

```sh
vespa feed documents.jsonl
curl -X POST http://127.0.0.1:8080/search/ -H 'Content-Type: application/json' --data-binary @query.json
```

The Hamming distance of a hit is `distance(field, code)` in its `matchfeatures`.
"""


VESPA_TYPES = {int: "long", str: "string"}
