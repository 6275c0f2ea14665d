"""Distances in other engines equal ours, for codes that were loaded in the form that ``codes.export`` makes for them.

Each engine returns the distances of all rows to each query: (queries, rows). Engines whose codes are whole bytes are
given the padded length.
"""

import numpy as np
import pyarrow as pa
import pytest

from dish import codes
from helpers.codes import all_distances, make_codes, make_queries

N, N_QUERIES = 1000, 4
LENGTHS = (8, 20, 64, 100, 256)


def in_row_order(D, rows):
    """Distances by row, of results that hold every row once."""
    assert (np.sort(rows, axis=1) == np.arange(N)).all()
    ordered = np.empty_like(D)
    np.put_along_axis(ordered, rows, D, axis=1)
    return ordered


def padded(r):
    return 8 * codes.n_bytes(r)


def faiss(B, Q, r, folder):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexBinaryFlat(padded(r))
    index.add(codes.export(B, r, "ubinary"))
    return in_row_order(*index.search(codes.export(Q, r, "ubinary"), N))


def usearch(B, Q, r, folder):
    index = pytest.importorskip("usearch.index")
    ix = index.Index(ndim=padded(r), metric=index.MetricKind.Hamming, dtype=index.ScalarKind.B1)
    ix.add(np.arange(N), codes.export(B, r, "ubinary"))
    found = ix.search(codes.export(Q, r, "ubinary"), N, exact=True)
    return in_row_order(found.distances, found.keys.astype(np.int64))


def duckdb_words(B, Q, r, folder):
    words = codes.export(B, r, "words64")
    table = pa.table({"id": np.arange(N)} | {f"w{j}": column for j, column in enumerate(words.T)})
    counts = [f"bit_count(xor(w{j}, ?::UBIGINT))::INTEGER" for j in range(words.shape[1])]  # a sum of bytes overflows
    distance = " + ".join(counts)
    return duckdb_scan(table, distance, codes.export(Q, r, "words64").tolist())


def duckdb_bits(B, Q, r, folder):
    table = pa.table({"id": np.arange(N), "code": codes.export(B, r, "bits")})
    return duckdb_scan(table, "bit_count(xor(code::BIT, ?::BIT))", [[q] for q in codes.export(Q, r, "bits")])


def duckdb_scan(table, distance, queries):
    connection = pytest.importorskip("duckdb").connect()
    connection.register("given", table)
    connection.execute("CREATE TABLE codes AS SELECT * FROM given")
    statement = f"SELECT {distance} FROM codes ORDER BY id"
    return np.array([[row[0] for row in connection.execute(statement, q).fetchall()] for q in queries])


def sqlite(B, Q, r, folder, form="ubinary"):
    apsw, sqlite_vec = pytest.importorskip("apsw"), pytest.importorskip("sqlite_vec")
    connection = apsw.Connection(str(folder / "codes.db"))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.execute("CREATE TABLE codes (id INTEGER PRIMARY KEY, code BLOB)")
    rows = enumerate(code.tobytes() for code in codes.export(B, r, form))
    with connection:  # one transaction
        connection.executemany("INSERT INTO codes VALUES (?, ?)", rows)
    statement = "SELECT vec_distance_hamming(vec_bit(code), vec_bit(?)) FROM codes ORDER BY id"
    found = [connection.execute(statement, (q.tobytes(),)).fetchall() for q in codes.export(Q, r, form)]
    connection.close()
    return np.array(found)[:, :, 0]


def sqlite_lsb(B, Q, r, folder):
    return sqlite(B, Q, r, folder, "lsb")


def lancedb(B, Q, r, folder):
    lancedb = pytest.importorskip("lancedb")
    vectors = pa.FixedSizeListArray.from_arrays(codes.export(B, r, "ubinary").ravel(), codes.n_bytes(r))
    table = lancedb.connect(folder).create_table("codes", pa.table({"id": np.arange(N), "code": vectors}))
    D, rows = [], []
    for q in codes.export(Q, r, "ubinary"):
        found = table.search(q, vector_column_name="code").distance_type("hamming").limit(N).to_arrow()
        D.append(found["_distance"].to_numpy())
        rows.append(found["id"].to_numpy())
    return in_row_order(np.array(D), np.array(rows))


def qdrant(B, Q, r, folder):
    edge = pytest.importorskip("qdrant_edge")
    parameters = edge.EdgeVectorParams(size=r, distance=edge.Distance.Dot)
    shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=parameters))
    points = [edge.Point(i, h) for i, h in enumerate(codes.export(B, r, "pm1").tolist())]
    shard.update(edge.UpdateOperation.upsert_points(points))
    D, rows = [], []
    for q in codes.export(Q, r, "pm1").tolist():
        nearest, exact = edge.Query.Nearest(q), edge.SearchParams(exact=True)
        hits = shard.search(edge.SearchRequest(query=nearest, limit=N, params=exact))
        D.append([(r - hit.score) / 2 for hit in hits])
        rows.append([hit.id for hit in hits])
    shard.close()
    return in_row_order(np.array(D), np.array(rows))


def milvus(B, Q, r, folder):
    pytest.importorskip("milvus_lite")
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(str(folder / "codes.db"))
    schema = MilvusClient.create_schema(auto_id=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("code", DataType.BINARY_VECTOR, dim=padded(r))
    index = MilvusClient.prepare_index_params()
    index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
    client.create_collection("codes", schema=schema, index_params=index, consistency_level="Strong")
    given = codes.export(B, r, "ubinary")
    client.insert("codes", [{"id": i, "code": code.tobytes()} for i, code in enumerate(given)])
    found = client.search("codes", data=[q.tobytes() for q in codes.export(Q, r, "ubinary")], limit=N)
    D, rows = ([[hit[name] for hit in hits] for hits in found] for name in ("distance", "id"))
    client.close()
    return in_row_order(np.array(D), np.array(rows))


def check(engine, kind, r, folder):
    B = make_codes(kind, N, r)
    Q = make_queries(B, N_QUERIES, r)
    if r % 8:  # flipping bits must not reach the unused ones
        codes.check_unused_bits(Q, r)
    found = engine(B, Q, r, folder)
    np.testing.assert_array_equal(found, all_distances(Q, B))
    np.testing.assert_array_equal(found, codes.hamming(Q, B))


@pytest.mark.parametrize("r", LENGTHS)
@pytest.mark.parametrize("kind", ["random", "duplicates"])
@pytest.mark.parametrize("engine", [faiss, usearch, duckdb_words, duckdb_bits, sqlite, sqlite_lsb])
def test_distances_are_equal(engine, kind, r, tmp_path):
    check(engine, kind, r, tmp_path)


@pytest.mark.engines
@pytest.mark.parametrize("r", LENGTHS)
@pytest.mark.parametrize("kind", ["random", "duplicates"])
@pytest.mark.parametrize("engine", [lancedb, qdrant, milvus])
def test_distances_in_larger_engines_are_equal(engine, kind, r, tmp_path):
    check(engine, kind, r, tmp_path)


@pytest.mark.postgres
@pytest.mark.parametrize("r", LENGTHS)
@pytest.mark.parametrize("kind", ["random", "duplicates"])
def test_distances_in_pgvector_are_equal(kind, r, dsn, tmp_path):
    import psycopg

    def pgvector(B, Q, r, folder):
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(f"CREATE TEMPORARY TABLE codes (id integer, code bit({r}))")
            with connection.cursor() as cursor, cursor.copy("COPY codes FROM STDIN") as copy:
                for row in enumerate(codes.export(B, r, "bits")):
                    copy.write_row(row)
            statement = f"SELECT code <~> %s::bit({r}), bit_count(code # %s::bit({r})) FROM codes ORDER BY id"
            found = [connection.execute(statement, (q, q)).fetchall() for q in codes.export(Q, r, "bits")]
            connection.rollback()
        distances = np.array(found, float)
        np.testing.assert_array_equal(distances[:, :, 0], distances[:, :, 1])
        return distances[:, :, 0]

    check(pgvector, kind, r, tmp_path)
