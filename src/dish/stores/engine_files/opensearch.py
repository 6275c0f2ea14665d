"""OpenSearch 2.16 or later: a ``knn_vector`` of the type binary, as signed bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dish.stores.engine_files.collection import NEAREST, EngineFiles, ExportedRows
from dish.stores.engine_files.elasticsearch import bulk_steps, label_field


class OpenSearchFiles(EngineFiles):
    """Index, bulk requests and search of OpenSearch."""

    title = "OpenSearch"
    form = "int8"
    rows_file = "bulk.ndjson"

    def definition(self) -> dict[str, str]:
        """The index, with a graph, the only method for binary vectors; the exact query does not use it."""
        code = {
            "type": "knn_vector",
            "dimension": self.collection.padded_bits,
            "data_type": "binary",
            "method": {"name": "hnsw", "engine": "faiss", "space_type": "hamming"},
        }
        index = {
            "settings": {"index": {"knn": True}},
            "mappings": {"properties": {"code": code, **label_field(self)}},
        }
        return {"index.json": json.dumps(index, indent=2)}

    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """Two lines per row: the action with the id, and the document."""
        for one, code, label in rows:
            document = {"code": code.tolist()} | label
            yield json.dumps({"index": {"_id": str(one)}}) + "\n" + json.dumps(document) + "\n"

    def query(self, code: Any) -> dict[str, str]:
        """An exact search by a script, and an approximate one by the graph."""
        vector = code.tolist()
        parameters = {"field": "code", "query_value": vector, "space_type": "hamming"}
        script = {"source": "knn_score", "lang": "knn", "params": parameters}
        exact = {"script_score": {"query": {"match_all": {}}, "script": script}}
        approximate = {"knn": {"code": {"vector": vector, "k": NEAREST}}}
        return {
            name: json.dumps({"size": NEAREST, "_source": ["label"], "query": query}, indent=2)
            for name, query in (("query.json", exact), ("query_approximate.json", approximate))
        }

    def steps(self) -> str:
        """The calls by curl."""
        return bulk_steps(self.collection.name, 9200) + (
            "\nThe Hamming distance of a hit is 1 / `_score` − 1. `query.json` compares all codes. "
            "`query_approximate.json` uses the graph: it is faster, and misses rows, above all if codes repeat.\n"
        )
