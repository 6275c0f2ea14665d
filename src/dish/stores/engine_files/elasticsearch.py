"""Elasticsearch 8.15 or later: a ``dense_vector`` of bits, as hexadecimal digits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dish.stores.engine_files.collection import NEAREST, EngineFiles, ExportedRows


class ElasticsearchFiles(EngineFiles):
    """Index, bulk requests and search of Elasticsearch."""

    title = "Elasticsearch"
    form = "hex"
    rows_file = "bulk.ndjson"

    def definition(self) -> dict[str, str]:
        """The index. "flat" compares all codes; without it, Elasticsearch builds an approximate graph (HNSW)."""
        code = {
            "type": "dense_vector",
            "element_type": "bit",
            "dims": self.collection.padded_bits,
            "index_options": {"type": "flat"},
        }
        return {"index.json": json.dumps({"mappings": {"properties": {"code": code, **label_field(self)}}}, indent=2)}

    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """Two lines per row: the action with the id, and the document."""
        for one, code, label in rows:
            yield json.dumps({"index": {"_id": str(one)}}) + "\n" + json.dumps({"code": code} | label) + "\n"

    def query(self, code: Any) -> dict[str, str]:
        """An exact search, since the index is flat."""
        knn = {"field": "code", "query_vector": code, "k": NEAREST, "num_candidates": 10 * NEAREST}
        body = {"knn": knn, "size": NEAREST, "_source": ["label"]}
        return {"query.json": json.dumps(body, indent=2)}

    def steps(self) -> str:
        """The calls by curl."""
        bits = self.collection.padded_bits
        return bulk_steps(self.collection.name, 9200) + (
            f"\nThe Hamming distance of a hit is {bits} · (1 − `_score`).\n"
        )


def label_field(files: EngineFiles) -> dict[str, Any]:
    """The mapping of the labels, if there are any."""
    labels = files.collection.labels
    return {} if labels is None else {"label": {"type": "long" if labels is int else "keyword"}}


def bulk_steps(name: str, port: int) -> str:
    """Calls to make an index, load the rows in parts of 20,000, and search. OpenSearch has the same."""
    url, kind = f"http://127.0.0.1:{port}/{name}", "-H 'Content-Type: application/json'"
    return f"""```sh
curl -X PUT {url} {kind} --data-binary @index.json
split -l 40000 bulk.ndjson part-
for part in part-*; do
  curl -X POST {url}/_bulk -H 'Content-Type: application/x-ndjson' --data-binary @$part
done
curl -X POST {url}/_refresh
curl -X POST {url}/_search {kind} --data-binary @query.json
```

Each answer of `_bulk` says `"errors": false` if all rows of a part are stored.
"""
