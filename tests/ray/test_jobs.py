import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from dish import DISH, codes
from dish.errors import ClusterError, DataFileError, InputError, ModelMismatchError
from dish.ray.jobs import BlockEncoder, BlockWorker, encode_files, make_plan, prepare
from dish.ray.shards import plan_shards

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Hashers and their files: two models of the same rows."""
    folder = tmp_path_factory.mktemp("models")
    X = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
    hashers = [DISH(n_bits=12, n_anchors=20, random_state=i).fit(X[:90], X[:90, i] > 0) for i in range(2)]
    for i, hasher in enumerate(hashers):
        hasher.save(folder / f"{i}.dish")
    return hashers[0], folder / "0.dish", folder / "1.dish", X


@pytest.fixture
def rows(model, tmp_path):
    """A folder of .npy files and one of .parquet files with the same 500 rows."""
    X = model[-1]
    for folder in ("npy", "parquet"):
        (tmp_path / folder).mkdir()
    for i, part in enumerate(np.split(np.arange(500), [200, 350])):
        np.save(tmp_path / "npy" / f"{i}.npy", X[part])
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(X[part].ravel()), 5)
        table = pa.table({"vector": vectors, "name": [f"row {j}" for j in part], "topic": part % 3, "other": part})
        pq.write_table(table, tmp_path / "parquet" / f"{i}.parquet", row_group_size=40)
    return tmp_path


def run_here(model_path, inputs, output, most=None, **options):
    """Encode blocks in this process, ``most`` of them: what the workers do."""
    plan = make_plan(model_path, inputs, **options)
    todo = prepare(plan, output)
    encoder = BlockEncoder(str(model_path), plan, str(output))
    for block in todo[:most]:
        encoder(pa.Table.from_pylist([vars(block)]))
    return plan


def read_all(folder):
    parts = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in sorted(folder.glob("part-*.arrow"))]
    return pa.concat_tables([part.replace_schema_metadata(None) for part in parts])


def check_all_rows(model, table, carried=False):
    """Each row once, in order, with its code."""
    hasher, *_, X = model
    np.testing.assert_array_equal(codes.parse(table, 12, "arrow"), hasher.transform(X))
    if carried:
        assert table["id"].to_pylist() == [f"row {i}" for i in range(500)]
        assert table["label"].to_pylist() == [i % 3 for i in range(500)]


@pytest.mark.parametrize("block_rows", [64, 10_000])
@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_each_block_has_a_file(model, rows, kind, block_rows):
    options = {"ids": "name", "labels": "topic"} if kind == "parquet" else {}
    plan = run_here(model[1], rows / kind, rows / "out", block_rows=block_rows, **options)
    check_all_rows(model, read_all(rows / "out"), carried=kind == "parquet")
    assert all(0 < block.stop - block.start <= block_rows for block in plan.blocks)
    assert len(list((rows / "out").glob("part-*.arrow"))) == len(plan.blocks)
    found = plan_shards(rows / "out")
    assert (found.n, found.n_bits, found.model) == (500, 12, model[0].fingerprint_)


def test_a_row_group_stays_whole(model, rows):
    plan = make_plan(model[1], rows / "parquet", block_rows=7)
    sizes = [block.stop - block.start for block in plan.blocks]
    assert sizes == [40, 40, 40, 40, 40, 40, 40, 40, 30, 40, 40, 40, 30]


def test_a_second_run_encodes_only_what_is_missing(model, rows):
    run_here(model[1], rows / "npy", rows / "out", most=3, block_rows=64)
    before = {path: path.stat().st_mtime_ns for path in (rows / "out").glob("part-*")}
    assert len(before) == 3
    plan = make_plan(model[1], rows / "npy", block_rows=64)
    assert len(prepare(plan, rows / "out")) == len(plan.blocks) - 3
    run_here(model[1], rows / "npy", rows / "out", block_rows=64)
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    check_all_rows(model, read_all(rows / "out"))


def test_a_block_that_is_there_is_not_written_again(model, rows):
    plan = run_here(model[1], rows / "npy", rows / "out")
    times = [path.stat().st_mtime_ns for path in sorted((rows / "out").iterdir())]
    BlockEncoder(str(model[1]), plan, str(rows / "out"))(pa.Table.from_pylist([vars(one) for one in plan.blocks]))
    assert times == [path.stat().st_mtime_ns for path in sorted((rows / "out").iterdir())]


def test_other_models_rows_and_options_are_refused(model, rows):
    run_here(model[1], rows / "npy", rows / "out", most=1, block_rows=64)
    with pytest.raises(ModelMismatchError, match="holds codes of the model"):
        run_here(model[2], rows / "npy", rows / "out", block_rows=64)
    with pytest.raises(InputError, match="the output of a job with other blocks"):
        run_here(model[1], rows / "npy", rows / "out", block_rows=65)
    with pytest.raises(InputError, match="is not empty"):
        run_here(model[1], rows / "npy", rows / "npy")
    run_here(model[2], rows / "npy", rows / "other", most=1, block_rows=64)
    part = sorted((rows / "other").glob("part-*"))[0]
    os.replace(part, rows / "out" / part.name)
    with pytest.raises(DataFileError, match="holds codes of another model or of other rows"):
        run_here(model[1], rows / "npy", rows / "out", block_rows=64)
    (rows / "out" / part.name).write_bytes(b"cut")
    with pytest.raises(DataFileError, match="is damaged"):
        run_here(model[1], rows / "npy", rows / "out", block_rows=64)


def test_an_input_that_changes_during_the_job_is_refused(model, rows):
    plan = run_here(model[1], rows / "npy", rows / "out", most=1, block_rows=64)
    np.save(rows / "npy" / "2.npy", model[-1][:150] + 1)
    block = plan.blocks[-1]
    with pytest.raises(DataFileError, match=r"2\.npy has changed since the job was started"):
        BlockEncoder(str(model[1]), plan, str(rows / "out"))(pa.Table.from_pylist([vars(block)]))


def test_a_worker_returns_errors_as_rows(model, rows):
    plan = make_plan(model[1], rows / "parquet", column="no such column")
    prepare(plan, rows / "out")
    found = BlockWorker(str(model[1]), plan, str(rows / "out"))(pa.Table.from_pylist([vars(plan.blocks[0])]))
    assert found["error"].to_pylist() == ["DataFileError"]
    assert "no column 'no such column'" in found["message"][0].as_py()
    plan = make_plan(model[1], rows / "parquet", column="vector")
    prepare(plan, rows / "other")
    found = BlockWorker(str(model[1]), plan, str(rows / "other"))(pa.Table.from_pylist([vars(plan.blocks[0])]))
    assert found.to_pylist() == [{"rows": plan.blocks[0].stop, "error": None, "message": None}]


def test_a_bad_row_is_named_and_leaves_no_file(model, rows):
    X = model[-1].copy()
    X[70, 1] = np.nan
    np.save(rows / "bad.npy", X)
    with pytest.raises(InputError, match=r"bad\.npy, rows 64 to 127: .*row 6\b"):
        run_here(model[1], rows / "bad.npy", rows / "out", block_rows=64)
    assert [path.name for path in sorted((rows / "out").iterdir())] == ["part-0.arrow", "plan.json"]


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("npy", {"ids": "name"}, "has no columns"),
        ("parquet", {"ids": "name", "labels": "name"}, "must be different columns"),
        ("parquet", {"block_rows": 0}, "block_rows must be"),
        (["npy/0.npy", "npy/0.npy"], {}, "must be distinct files"),
        ("missing.npy", {}, "there is no file"),
        ("notes.txt", {}, r"must be \.npy, \.parquet, \.lance files"),
        ("empty", {}, "must hold files of one kind"),
        ("gap", {}, "part-1 is missing"),
    ],
)
def test_inputs_that_cannot_be_planned(model, rows, inputs, options, message):
    (rows / "notes.txt").write_text("x")
    (rows / "empty").mkdir()
    (rows / "gap").mkdir()
    for i in (0, 2):
        np.save(rows / "gap" / f"part-{i}.npy", model[-1])
    given = [rows / one for one in inputs] if isinstance(inputs, list) else rows / inputs
    with pytest.raises((InputError, DataFileError, FileNotFoundError), match=message):
        make_plan(model[1], given, **options)


# --- on Ray ---


@pytest.mark.engines
@pytest.mark.parametrize("kind", ["npy", "parquet", "lance"])
def test_a_job_on_ray(model, rows, ray, kind):
    options = {} if kind == "npy" else {"ids": "name", "labels": "topic"}
    inputs = rows / kind
    if kind == "lance":
        lance = pytest.importorskip("lance", reason="encoding of .lance folders is NOT tested: no pylance")
        inputs = rows / "x.lance"
        lance.write_dataset(pq.read_table(rows / "parquet"), str(inputs), max_rows_per_file=150)
    assert encode_files(model[1], inputs, rows / "out", block_rows=64, workers=1, **options) == 500
    check_all_rows(model, read_all(rows / "out"), carried=kind != "npy")
    assert encode_files(model[1], inputs, rows / "out", block_rows=64, workers=1, **options) == 500


@pytest.mark.engines
def test_more_workers_than_free_cpus_and_bad_columns_are_refused(model, rows, ray):
    """Ray would wait for ever for more CPUs."""
    with pytest.raises(ClusterError, match=r"5 workers need 5 free CPUs, and the cluster has \d:"):
        encode_files(model[1], rows / "npy", rows / "out", block_rows=64, workers=5)
    with pytest.raises(DataFileError, match="no column 'zz'"):  # an error in a worker keeps its class
        encode_files(model[1], rows / "parquet", rows / "other", column="zz", workers=1)


@pytest.mark.engines
def test_a_killed_worker_loses_and_repeats_no_row(model, rows, ray):
    """The worker is killed while its second file is being written."""
    X = np.concatenate([model[-1]] * 200)
    np.save(rows / "large.npy", X)
    killed = []

    def kill_worker():
        import psutil

        end = time.monotonic() + 60
        while not killed and time.monotonic() < end:
            if len(list((rows / "out").glob("part-*"))) >= 2:
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if "MapWorker" in " ".join(process.cmdline()):
                            process.send_signal(signal.SIGKILL)
                            killed.append(process.pid)
            time.sleep(0.002)

    thread = threading.Thread(target=kill_worker)
    thread.start()
    assert encode_files(model[1], rows / "large.npy", rows / "out", block_rows=500, workers=1) == len(X)
    thread.join()
    assert killed
    table = read_all(rows / "out")
    np.testing.assert_array_equal(codes.parse(table, 12, "arrow"), model[0].transform(X))
    assert not list((rows / "out").glob(".part-*.tmp"))


@pytest.mark.engines
def test_a_job_that_was_killed_resumes(model, rows, ray):
    """The whole job, driver and Ray, is killed; the next one finds what it wrote."""
    X = np.concatenate([model[-1]] * 200)
    np.save(rows / "large.npy", X)
    script = (
        "import sys; from dish.ray import cluster, encode_files\n"
        "with cluster(cpus=1): encode_files(*sys.argv[1:], block_rows=500)"
    )
    arguments = [str(model[1]), str(rows / "large.npy"), str(rows / "out")]
    job = subprocess.Popen([sys.executable, "-c", script, *arguments], start_new_session=True)
    try:
        end = time.monotonic() + 120
        while len(list((rows / "out").glob("part-*"))) < 3 and time.monotonic() < end and job.poll() is None:
            time.sleep(0.002)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    done = {path: path.stat().st_mtime_ns for path in (rows / "out").glob("part-*")}
    assert 3 <= len(done) < 200
    assert encode_files(*arguments, block_rows=500, workers=1) == len(X)
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())
    np.testing.assert_array_equal(codes.parse(read_all(rows / "out"), 12, "arrow"), model[0].transform(X))
