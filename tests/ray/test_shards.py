import datetime
import json

import numpy as np
import pytest

from dish import HammingIndex, codes
from dish.errors import DataFileError, InputError, ModelMismatchError
from dish.io.code_provenance import note_model
from dish.ray.search import ShardedIndex
from dish.ray.shards import Shard, plan_shards
from helpers.codes import KINDS, assert_radius, assert_same, brute_nearest, make_codes, make_queries

pa = pytest.importorskip("pyarrow")
MODELS = "0123456789abcdef", "fedcba9876543210"


def here(plan):
    """An index whose shards are in this process."""
    shards = [Shard(ranges, plan.n_bits) for ranges in plan.shards]
    return ShardedIndex(plan, lambda method, *args: [getattr(shard, method)(*args) for shard in shards])


def open_here(*args, **options):
    return here(plan_shards(*args, **options))


def write_arrow(path, B, n_bits, ids=None, labels=None, model=None):
    table = codes.export(B, n_bits, to="arrow", model=model)
    for name, values in (("id", ids), ("label", labels)):
        if values is not None:
            table = table.append_column(name, pa.array(values))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.fixture
def whole(tmp_path):
    """An index with labels and with ids that are not in order, its file, and queries."""
    B = make_codes("duplicates", 700, 20)
    ids = np.random.default_rng(0).permutation(7000)[:700]
    labels = [None if i % 10 == 0 else f"label {i % 4}" for i in range(700)]
    index = HammingIndex(20, model=MODELS[0])
    index.add(B, ids=ids, labels=labels)
    index.save(tmp_path / "index.dish")
    return index, tmp_path / "index.dish", make_queries(B, 12, 20)


def check_same_results(sharded, index, Q):
    """Every kind of search gives the results of the index, types included."""
    some = [*index.ids[::3].tolist(), "unknown" if sharded.has_string_ids else -5]
    for k in (1, 7, 300, 1000):
        assert_same(sharded.search(Q, k), index.search(Q, k))
        assert_same(sharded.search(Q, k, ids=some), index.search(Q, k, ids=some))
        assert_same(sharded.search(Q, k, labels=["label 1", None]), index.search(Q, k, labels=["label 1", None]))
        assert_same(sharded.search(Q, k, some, labels=["label 2"]), index.search(Q, k, some, labels=["label 2"]))
    for radius in (0, 3, 20, 99):
        assert_same(sharded.radius_search(Q, radius), index.radius_search(Q, radius))
        assert_same(sharded.radius_search(Q, radius, limit=5), index.radius_search(Q, radius, limit=5))
        assert_same(sharded.radius_search(Q, radius, some), index.radius_search(Q, radius, some))
        assert_same([sharded.radius_count(Q, radius)], [index.radius_count(Q, radius)])
    assert sharded.search(Q, 3, ids=[])[0].shape == (len(Q), 0)
    assert sharded.search(Q[:0], 3)[0].shape == (0, 3)


@pytest.mark.parametrize("shards", [1, 2, 5, 30])
def test_shards_of_one_index_file_find_what_the_index_finds(whole, shards):
    index, path, Q = whole
    check_same_results(open_here(path, shards), index, Q)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_bits", [8, 20, 64, 128, 200])
def test_ranges_of_code_files_find_what_brute_force_finds(tmp_path, kind, n_bits):
    """Three files, four shards: some shards cover parts of two files. Ids are positions."""
    B = make_codes(kind, 1000, n_bits)
    for i, part in enumerate(np.split(B, [100, 650])):
        np.save(tmp_path / f"{i}.npy", part)
    Q = make_queries(B, 10, n_bits)
    sharded = open_here([tmp_path / f"{i}.npy" for i in range(3)], shards=4, n_bits=n_bits)
    D, rows = brute_nearest(Q, B, 30)
    assert_same(sharded.search(Q, 30), (D, rows))
    assert_radius(sharded.radius_search(Q, 9), Q, B, 9)
    assert_same([sharded.ids], [np.arange(1000)])


@pytest.mark.parametrize("names", [None, "string"])
def test_a_folder_of_arrow_files_keeps_ids_and_labels(tmp_path, names):
    B = make_codes("clustered", 300, 33)
    ids = np.arange(300)[::-1] * 5 if names is None else np.array([f"row {i}" for i in range(300)], object)
    labels = [None if i % 7 == 0 else f"label {i % 3}" for i in range(300)]
    for i, part in enumerate(np.split(np.arange(300), [90, 91, 200])):
        write_arrow(tmp_path / f"part-{i}.arrow", B[part], 33, ids[part], [labels[j] for j in part], MODELS[0])
    index = HammingIndex(33)
    index.add(B, ids, labels)
    sharded = open_here(tmp_path)
    check_same_results(sharded, index, make_queries(B, 9, 33))
    assert (sharded.n_bits, sharded.model, len(sharded)) == (33, MODELS[0], 300)
    assert sharded.has_string_ids == (names is not None)


def test_codes_labels_and_samples_by_id(whole):
    index, path, _ = whole
    sharded = open_here(path, 3)
    wanted = [*index.ids[[5, 650, 300]].tolist(), int(index.ids[5])]
    assert_same([sharded.get(wanted)], [index.get(wanted)])
    assert sharded.label_list(wanted) == index.snapshot().label_list(wanted)
    assert sharded.labels_of(wanted).tolist() == index.labels_of(wanted).tolist()
    assert sharded.get([]).shape == (0, 3)
    assert int(index.ids[1]) in sharded
    assert 8000 not in sharded
    with pytest.raises(KeyError, match="id 8000 is not in the index"):
        sharded.get([wanted[0], 8000])
    sample = sharded.sample_ids(50, np.random.default_rng(0))
    assert len(set(sample.tolist())) == 50
    assert set(sample.tolist()) <= set(index.ids.tolist())


def test_codes_are_mapped_and_not_copied(tmp_path):
    B = make_codes("random", 64, 64)
    np.save(tmp_path / "codes.npy", B)
    index = HammingIndex(64)
    index.add(B)
    index.save(tmp_path / "index.dish")
    write_arrow(tmp_path / "codes.arrow", B, 64)
    for name in ("codes.npy", "index.dish", "codes.arrow"):
        (part,) = Shard(plan_shards(tmp_path / name).shards[0], 64).parts
        base = part.codes
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap) and base.base is not None:
            base = base.base
        assert isinstance(base, np.memmap) or type(base).__name__ in ("memoryview", "Buffer", "mmap"), name


def test_equal_ids_in_several_files_are_refused(tmp_path):
    for name, ids in {"a": [0, 1, 2], "b": [2, 3, 4], "c": [5, 6, 7], "d": ["5", "6", "7"]}.items():
        index = HammingIndex(8)
        index.add(np.arange(3, dtype=np.uint8)[:, None], ids)
        index.save(tmp_path / f"{name}.dish")
    a, b, c, d = (tmp_path / f"{name}.dish" for name in "abcd")
    assert open_here([c, a]).ids.tolist() == [5, 6, 7, 0, 1, 2]
    with pytest.raises(InputError, match="the id 2 occurs twice"):
        open_here([a, b])
    with pytest.raises(InputError, match="integers in some files and strings in others"):
        open_here([a, d])


@pytest.mark.parametrize("ids", [[1, 1, 2], ["a", "b", "a"]])
def test_equal_ids_in_one_file_are_refused(tmp_path, ids):
    write_arrow(tmp_path / "a.arrow", make_codes("random", 3, 16), 16, ids)
    with pytest.raises(InputError, match=f"the id {ids[0]!r} occurs twice"):
        open_here(tmp_path / "a.arrow")


def test_a_folder_that_is_not_encoded_to_the_end_is_refused(tmp_path):
    blocks = [{"output": f"part-{i}.arrow"} for i in range(3)]
    (tmp_path / "plan.json").write_text(json.dumps({"blocks": blocks}))
    for i in (0, 2):
        write_arrow(tmp_path / f"part-{i}.arrow", make_codes("random", 3, 16), 16)
    with pytest.raises(DataFileError, match=r"part-1\.arrow and 0 other files .* are missing.*again"):
        open_here(tmp_path)
    write_arrow(tmp_path / "part-1.arrow", make_codes("random", 3, 16), 16)
    with open_here(tmp_path) as sharded:
        assert len(sharded) == 9
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(DataFileError, match=r"plan\.json is damaged"):
        open_here(tmp_path)


def test_labels_are_those_of_an_index(tmp_path):
    """NaN is no label. What an index refuses as a label is refused."""
    B, labels = make_codes("random", 4, 16), [1.5, float("nan"), None, 2.0]
    write_arrow(tmp_path / "a.arrow", B, 16, labels=pa.array(labels, from_pandas=False))
    index = HammingIndex(16)
    index.add(B, labels=labels)
    with open_here(tmp_path / "a.arrow") as sharded:
        assert sharded.label_list(range(4)) == [1.5, None, None, 2.0]
        assert_same(sharded.search(B, 4, labels=[None]), index.search(B, 4, labels=[None]))
    for n, wrong in enumerate(([datetime.date(2026, 1, 1)] * 4, [b"a"] * 4, [[1]] * 4)):
        write_arrow(tmp_path / f"{n}.arrow", B, 16, labels=wrong)
        with pytest.raises(InputError, match=r"must .*numbers or strings"):
            open_here(tmp_path / f"{n}.arrow")


def test_codes_of_two_models_or_lengths_are_refused(tmp_path):
    for i, (n_bits, model) in enumerate([(16, MODELS[0]), (16, MODELS[1]), (15, MODELS[0])]):
        np.save(tmp_path / f"{i}.npy", make_codes("random", 5, n_bits))
        note_model(tmp_path / f"{i}.npy", model, n_bits)
    with pytest.raises(ModelMismatchError, match=MODELS[1]):
        plan_shards([tmp_path / "0.npy", tmp_path / "1.npy"])
    with pytest.raises(InputError, match="holds codes of 15 bits, not of 16"):
        plan_shards([tmp_path / "0.npy", tmp_path / "2.npy"])
    with pytest.raises(ModelMismatchError, match="the query's model"):
        open_here(tmp_path / "0.npy").check_model(MODELS[1], "the query's model")


def test_a_file_that_was_replaced_is_refused(tmp_path):
    path = tmp_path / "codes.npy"
    np.save(path, make_codes("random", 50, 16))
    plan = plan_shards(path)
    np.save(path, make_codes("random", 50, 16, seed=1))
    with pytest.raises(DataFileError, match="has changed since its shards were planned"):
        here(plan)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("missing.npy", FileNotFoundError, "there is no file"),
        ("codes.txt", InputError, r"must be in \.dish, \.npy, \.arrow files"),
        ("floats.npy", DataFileError, "packed codes are uint8"),
        ("table.arrow", DataFileError, "no column 'code'"),
        ("damaged.arrow", DataFileError, "not an Arrow file"),
        ("folder", InputError, r"holds no \.arrow files"),
        ("empty.npy", InputError, "no rows"),
    ],
)
def test_files_that_hold_no_codes(tmp_path, name, error, message):
    (tmp_path / "codes.txt").write_text("x")
    (tmp_path / "damaged.arrow").write_bytes(b"ARROW1 and no more")
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "floats.npy", np.zeros((3, 2)))
    np.save(tmp_path / "empty.npy", np.zeros((0, 2), np.uint8))
    with pa.OSFile(str(tmp_path / "table.arrow"), "wb") as sink, pa.ipc.new_file(sink, pa.schema([])) as writer:
        writer.write_table(pa.table({}))
    with pytest.raises(error, match=message):
        plan_shards(tmp_path / name)


def test_arguments_are_checked(whole):
    _, path, Q = whole
    with pytest.raises(InputError, match="shards must be a whole number from 1 to 700"):
        plan_shards(path, 701)
    with pytest.raises(InputError, match="each once"):
        plan_shards([path, path])
    sharded = open_here(path, 2)
    with pytest.raises(InputError, match="k must be"):
        sharded.search(Q, 0)
    with pytest.raises(InputError, match="queries must be packed codes"):
        sharded.search(Q.astype(float))
    with pytest.raises(InputError, match="queries have bits set beyond"):
        sharded.search(Q | 1)
    with pytest.raises(InputError, match="labels must be a list"):
        sharded.search(Q, labels="label 1")
    with pytest.raises(InputError, match="limit must be"):
        sharded.radius_search(Q, 1, limit=0)
