"""Exports hold every row, in the form of the engine; Milvus and Qdrant run here and answer as they should."""

import json
import os
import re
import subprocess
import sys
import uuid

import numpy as np
import pytest

from dish.errors import InputError
from dish.stores.engine_files import writer
from dish.stores.engine_files.writer import ENGINES, write_engine_files
from helpers.codes import all_distances, make_codes

N = 23
IDS = {"none": None, "integers": np.arange(N) * 7 - 30, "strings": [f'a "b" é/{i}' for i in range(N)]}
LABELS = {"none": None, "integers": [i % 4 for i in range(N)], "gaps": [None if i % 3 else f"l{i}" for i in range(N)]}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(writer, "BATCH", 10)


def bits_of(vector, engine):
    """The bits of a vector as the engine reads it."""
    if engine in ("qdrant", "weaviate"):
        assert set(vector) <= {-1, 1}
        return [int(x > 0) for x in vector]
    values = bytes.fromhex(vector) if isinstance(vector, str) else [x % 256 for x in vector]
    if engine in ("opensearch", "vespa"):
        assert all(-128 <= x < 128 for x in vector)
    if engine == "milvus":
        assert all(0 <= x < 256 for x in vector)
    return [int(bit) for value in values for bit in f"{value:08b}"]


def rows_in(folder, engine):
    """(id, vector, label or None) of every row of a bulk file, by the format of the engine."""
    text = (folder / ENGINES[engine].rows_file).read_text(encoding="utf-8")
    if engine == "milvus":
        return [(row["id"], row["code"], row.get("label")) for row in json.loads(text)["rows"]]
    lines = [json.loads(line) for line in text.splitlines()]
    if engine in ("elasticsearch", "opensearch"):
        return [(a["index"]["_id"], d["code"], d.get("label")) for a, d in zip(lines[::2], lines[1::2], strict=True)]
    if engine == "vespa":
        for line in lines:
            assert line["put"] == f"id:products:products::{line['fields']['item']}"
        fields = [line["fields"] for line in lines]
        return [(one["item"], one["code"]["values"], one.get("label")) for one in fields]
    name = {"qdrant": ("points", "payload"), "weaviate": ("objects", "properties")}[engine]
    found = [one for line in lines for one in line[name[0]]]
    assert len({one["id"] for one in found}) == len(found)
    return [(one[name[1]]["item"], one["vector"], one[name[1]].get("label")) for one in found]


@pytest.mark.parametrize("r", [20, 64])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_bulk_file_has_every_row(engine, ids, labels, r, tmp_path):
    B = make_codes("random", N, r)
    write_engine_files(tmp_path / "out", engine, "products", B, r, IDS[ids], LABELS[labels])
    found = rows_in(tmp_path / "out", engine)
    wanted_ids = range(N) if ids == "none" else list(IDS[ids])
    as_text = engine in ("elasticsearch", "opensearch")
    assert [one for one, _, _ in found] == [str(one) if as_text else one for one in wanted_ids]
    assert [label for _, _, label in found] == (LABELS[labels] or [None] * N)
    bits = np.array([bits_of(vector, engine) for _, vector, _ in found])
    np.testing.assert_array_equal(bits[:, :r], np.unpackbits(B, axis=1, count=r))
    assert not bits[:, r:].any()


def definition(folder, engine):
    """What the collection says about its vectors and labels, in one form for all engines."""
    if engine in ("elasticsearch", "opensearch"):
        fields = json.loads((folder / "index.json").read_text())["mappings"]["properties"]
        return fields["code"].get("dims", fields["code"].get("dimension")), fields.get("label", {}).get("type")
    if engine == "vespa":
        schema = (folder / "products.sd").read_text()
        assert schema.count("{") == schema.count("}")
        sizes = set(re.findall(r"tensor<int8>\(x\[(\d+)\]\)", schema))
        label = re.search(r"field label type (\w+)", schema)
        return 8 * int(sizes.pop()), label and label[1]
    if engine == "milvus":
        return int(re.search(r"dim=(\d+)", (folder / "load.py").read_text())[1]), None
    body = json.loads((folder / "collection.json").read_text())
    if engine == "qdrant":
        return body["vectors"]["size"], None
    return None, {one["name"]: one["dataType"] for one in body["properties"]}.get("label")


def vector_of_the_query(folder, engine):
    if engine == "milvus":
        return list(bytes.fromhex(re.search(r'fromhex\("(\w+)"\)', (folder / "query.py").read_text())[1]))
    body = json.loads((folder / "query.json").read_text())
    if engine == "elasticsearch":
        return body["knn"]["query_vector"]
    if engine == "opensearch":
        approximate = json.loads((folder / "query_approximate.json").read_text())["query"]["knn"]["code"]["vector"]
        assert approximate == body["query"]["script_score"]["script"]["params"]["query_value"]
        return approximate
    if engine == "vespa":
        return body["input.query(q)"]
    return body["query"] if engine == "qdrant" else json.loads(re.search(r"\[[-\d, ]*\]", body["query"])[0])


@pytest.mark.parametrize("r", [20, 64])
@pytest.mark.parametrize("engine", ENGINES)
def test_definition_and_query_fit_the_rows(engine, r, tmp_path):
    B = make_codes("random", N, r)
    types = {"elasticsearch": ("long", "keyword"), "opensearch": ("long", "keyword"), "vespa": ("long", "string")}
    types |= {"weaviate": (["int"], ["text"])}
    for i, labels in enumerate(("integers", "gaps")):
        folder = tmp_path / labels
        write_engine_files(folder, engine, "products", B, r, labels=LABELS[labels])
        n_bits, kind = definition(folder, engine)
        assert n_bits in (None, r if engine == "qdrant" else -(-r // 8) * 8)
        assert kind == (types[engine][i] if engine in types else None)
        vector = vector_of_the_query(folder, engine)
        assert vector == rows_in(folder, engine)[0][1]
    write_engine_files(tmp_path / "plain", engine, "products", B, r)
    assert definition(tmp_path / "plain", engine)[1] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_the_readme_says_what_was_run(engine, tmp_path):
    write_engine_files(tmp_path / "out", engine, "products", make_codes("random", N, 20), 20)
    text = (tmp_path / "out" / "README.md").read_text()
    assert ("Tests of dish" in text) == (engine in ("milvus", "qdrant"))
    assert "follow" in text if engine != "milvus" else "not been run with a Milvus server" in text
    assert "not been run" in text
    assert ("padded with 4 zeros" in text) == (engine not in ("qdrant", "weaviate"))
    for name in re.findall(r"@(\w+\.json)|python (\w+\.py)", text):
        assert (tmp_path / "out" / "".join(name)).exists()


def test_wrong_arguments_write_nothing(tmp_path):
    B = make_codes("random", 3, 16)

    def refused(message, engine="vespa", name="products", B=B, **options):
        with pytest.raises(InputError, match=message):
            write_engine_files(tmp_path / "out", engine, name, B, 16, **options)

    refused("engine must be one of 'elasticsearch', 'opensearch'", engine="solr")
    refused("name must be lower-case letters.*got 'My shop'", name="My shop")
    refused("at least one row", B=B[:0])
    refused("ids has 2 entries for 3 codes", ids=[1, 2])
    refused("ids must be distinct, but 'a' occurs twice", ids=["a", "b", "a"])
    refused("labels must be all integers or all strings to be exported, got int, str", labels=[1, "a", None])
    refused("labels must be all integers or all strings to be exported, got float", labels=[1.5, 2.5, None])
    with pytest.raises(InputError, match="bits set beyond the first 12"):
        write_engine_files(tmp_path / "out", "vespa", "products", B | 1, 12)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="full exists already: name a new folder"):
        write_engine_files(tmp_path / "full", "vespa", "products", B, 16)
    assert [one.name for one in tmp_path.iterdir()] == ["full"]


# --- engines that run here ---


def check_answer(found, B, r, ids, labels):
    """Ids, distances and labels of the ten rows nearest to the first one; ties in any order."""
    D = all_distances(B[:1], B)[0]
    rows = [list(ids).index(one) for one, _, _ in found]
    assert len(set(rows)) == len(rows) == 10
    assert [d for _, d, _ in found] == D[rows].tolist() == sorted(D)[:10]
    assert [label for _, _, label in found] == [labels[row] for row in rows]


@pytest.mark.engines
@pytest.mark.parametrize(("ids", "r"), [("integers", 64), ("strings", 20)])  # each starts two processes
def test_milvus_runs_the_scripts(ids, r, tmp_path):
    pytest.importorskip("milvus_lite")
    B = make_codes("clustered", N, r)
    write_engine_files(tmp_path / "out", "milvus", "products", B, r, IDS[ids], LABELS["gaps"])

    def run(script):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MILVUS")}
        command = [sys.executable, "-W", "ignore", tmp_path / "out" / script, str(tmp_path / "milvus.db")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert run("load.py") == [f"{N} rows loaded"]
    hits = [json.loads(line) for line in run("query.py")]
    check_answer([(hit["id"], hit["distance"], hit.get("label")) for hit in hits], B, r, IDS[ids], LABELS["gaps"])


@pytest.mark.engines
@pytest.mark.parametrize("r", [20, 64, 256])
@pytest.mark.parametrize("ids", ["integers", "strings"])
def test_qdrant_edge_takes_the_points(ids, r, tmp_path):
    edge = pytest.importorskip("qdrant_edge")
    B = make_codes("clustered", N, r)
    write_engine_files(tmp_path / "out", "qdrant", "products", B, r, IDS[ids], LABELS["gaps"])
    vectors = json.loads((tmp_path / "out" / "collection.json").read_text())["vectors"]
    parameters = edge.EdgeVectorParams(size=vectors["size"], distance=getattr(edge.Distance, vectors["distance"]))
    shard = edge.EdgeShard.create(str(tmp_path / "shard"), edge.EdgeConfig(vectors=parameters))
    try:
        for line in (tmp_path / "out" / "points.jsonl").read_text(encoding="utf-8").splitlines():
            points = [
                edge.Point(
                    one["id"] if isinstance(one["id"], int) else uuid.UUID(one["id"]), one["vector"], one["payload"]
                )
                for one in json.loads(line)["points"]
            ]
            shard.update(edge.UpdateOperation.upsert_points(points))
        body = json.loads((tmp_path / "out" / "query.json").read_text())
        request = edge.SearchRequest(
            query=edge.Query.Nearest([float(x) for x in body["query"]]),
            limit=body["limit"],
            params=edge.SearchParams(exact=body["params"]["exact"]),
            with_payload=body["with_payload"],
        )
        hits = shard.search(request)
    finally:
        shard.close()
    found = [(hit.payload["item"], (vectors["size"] - hit.score) / 2, hit.payload.get("label")) for hit in hits]
    check_answer(found, B, r, IDS[ids], LABELS["gaps"])
