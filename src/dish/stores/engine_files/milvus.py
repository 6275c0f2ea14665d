"""Milvus: a binary vector with the metric HAMMING; scripts for pymilvus, and a file for Milvus' own import."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dish.stores.engine_files.collection import NEAREST, EngineFiles, ExportedRows

MILVUS_LONGEST = 65_535  # bytes of a VARCHAR


class MilvusFiles(EngineFiles):
    """Collection, rows and query of Milvus."""

    title = "Milvus"
    form = "ubinary"
    rows_file = "rows.json"
    tested = (
        "Tests of dish run load.py and query.py with pymilvus and milvus-lite 2.5.1 and compare the answer with the "
        "exact one. They have not been run with a Milvus server, nor has its import of rows.json."
    )

    def definition(self) -> dict[str, str]:
        """A script that makes the collection and loads the rows."""
        collection = self.collection
        key = "DataType.INT64" if collection.ids is int else f"DataType.VARCHAR, max_length={MILVUS_LONGEST}"
        script = f'''"""Create {collection.name} in Milvus and load rows.json: python load.py [URI] [TOKEN]."""

import json
import sys
from pathlib import Path

from pymilvus import DataType, MilvusClient

client = MilvusClient(*(sys.argv[1:] or ["http://127.0.0.1:19530"]))
schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True)  # dynamic: rows may lack a label
schema.add_field("id", {key}, is_primary=True)
schema.add_field("code", DataType.BINARY_VECTOR, dim={collection.padded_bits})
index = MilvusClient.prepare_index_params()
index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
client.create_collection("{collection.name}", schema=schema, index_params=index)


def insert(rows):
    client.insert("{collection.name}", [row | {{"code": bytes(row["code"])}} for row in rows])


rows, total = [], 0
with open(Path(__file__).with_name("rows.json"), encoding="utf-8") as file:
    for line in file:  # the first and the last line hold the brackets, each other line one row
        if line.startswith('{{"id"'):
            rows.append(json.loads(line.rstrip(",\\n")))
        if len(rows) == 1000:
            insert(rows)
            rows, total = [], total + len(rows)
if rows:
    insert(rows)
print(f"{{total + len(rows):,}} rows loaded")
'''
        return {"load.py": script}

    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """One row per line, separated by commas."""
        yield ",\n".join(json.dumps({"id": one, "code": code.tolist()} | label) for one, code, label in rows)

    def frame(self) -> tuple[str, str, str]:
        """The brackets of the JSON document."""
        return '{"rows": [\n', ",\n", "\n]}\n"

    def query(self, code: Any) -> dict[str, str]:
        """A script that prints the nearest rows."""
        name = self.collection.name
        script = f'''"""Print the {NEAREST} rows nearest to the first code, as JSON: python query.py [URI] [TOKEN]."""

import json
import sys

from pymilvus import MilvusClient

client = MilvusClient(*(sys.argv[1:] or ["http://127.0.0.1:19530"]))
client.load_collection("{name}")
found = client.search(
    "{name}",
    data=[bytes.fromhex("{code.tobytes().hex()}")],
    anns_field="code",
    limit={NEAREST},
    search_params={{"metric_type": "HAMMING"}},
    output_fields=["label"],
    consistency_level="Strong",
)
for hit in found[0]:
    print(json.dumps({{"id": hit["id"], "distance": hit["distance"], **hit["entity"]}}))
'''
        return {"query.py": script}

    def steps(self) -> str:
        """The scripts."""
        return """```sh
pip install pymilvus
python load.py http://127.0.0.1:19530
python query.py http://127.0.0.1:19530
```

`distance` of a hit is the Hamming distance. The address may also be a file of Milvus Lite 2.5.1:
`pip install milvus-lite==2.5.1 'setuptools<81'`. Milvus Lite 3 refuses binary vectors. To import many rows on a
cluster, upload `rows.json` to its object storage and run Milvus' own import.
"""
