"""Row matrices read in blocks: arrays, memory maps, shards, tensors, iterables of row blocks."""

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from dish.errors import InputError
from dish.io import rows as io_rows
from dish.io.rows import RowSource, Shards, as_tensor, blocks_of, check_finite, is_blocks, is_streamed, number_type

CPU = torch.device("cpu")
X = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)


def pieces():
    return np.array_split(X, [10, 170, 171])


def shards(dtype=np.float32):
    parts = pieces()
    return Shards([lambda p=p: p for p in parts], [len(p) for p in parts], 5, dtype, ["a", "b", "c", "d"])


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


# --- RowSource ---


@pytest.mark.parametrize("kind", ["array", "map", "shards", "list", "generator", "tensor", "tensors"])
def test_every_kind_of_rows_is_read_alike(kind, mapped):
    given = {
        "array": lambda: X,
        "map": lambda: mapped,
        "shards": shards,
        "list": pieces,
        "generator": lambda: (part for part in pieces()),
        "tensor": lambda: torch.from_numpy(X),
        "tensors": lambda: (torch.from_numpy(part).requires_grad_() for part in pieces()),
    }[kind]
    rows = RowSource.of(given())
    assert rows.shape == (300, 5)
    assert len(rows) == 300
    assert rows.on_disk == (kind not in ("array", "tensor"))
    np.testing.assert_array_equal(rows.read(slice(165, 180), CPU), X[165:180])
    np.testing.assert_array_equal(rows.read(slice(290, 400), CPU), X[290:])
    picked = np.array([0, 9, 10, 170, 299])
    np.testing.assert_array_equal(rows.take(picked, CPU), X[picked])


def test_a_part_of_the_rows(mapped):
    for array in (X, mapped, shards(), torch.from_numpy(X)):
        rows = RowSource(array, slice(100, 200))
        assert rows.shape == (100, 5)
        np.testing.assert_array_equal(rows.read(slice(60, 300), CPU), X[160:200])
        np.testing.assert_array_equal(rows.take(np.array([3, 99]), CPU), X[[103, 199]])


@pytest.mark.parametrize("dtype", [">f4", "uint16", "int16", "uint8", "int8", "bool", "float16", "bfloat16"])
def test_types_that_are_exact_in_float32_become_float32(dtype):
    whole = np.arange(12).reshape(4, 3) % 2
    array = torch.from_numpy(whole).bfloat16() if dtype == "bfloat16" else whole.astype(dtype)
    block = RowSource(array).read(slice(0, 4), CPU)
    assert block.dtype == torch.float32
    np.testing.assert_array_equal(block, whole)


@pytest.mark.parametrize("dtype", [">f8", "longdouble", "int64", "uint64", ">i8", "int32", "uint32"])
def test_larger_types_become_float64(dtype):
    whole = 1_700_000_000 + np.arange(12).reshape(4, 3)
    for array in (
        whole.astype(dtype),
        [whole[:2].astype(dtype), whole[2:].astype(dtype)],
        iter([whole.astype(dtype)]),
    ):
        rows = RowSource.of(array)
        assert rows.dtype == torch.float64
        np.testing.assert_array_equal(rows.read(slice(0, 4), CPU), whole)
    assert RowSource(torch.from_numpy(whole)).dtype == torch.float64


def test_blocks_of_several_types_keep_their_values(monkeypatch):
    parts = [X[:50], 10**9 + np.arange(15).reshape(3, 5), X[50:].astype(np.float64) / 3]
    monkeypatch.setattr(io_rows._widen, "__defaults__", (7,))
    rows = RowSource.of(iter(parts))
    np.testing.assert_array_equal(rows.read(slice(0, 303), CPU), np.concatenate(parts))


def test_number_types_of_frames_and_lists():
    frame = pd.DataFrame({"a": np.arange(3, dtype=np.int8), "b": [True, False, True]})
    assert number_type(frame) == number_type(frame.astype({"a": "Int16"})) == np.float32
    for wide in (frame.assign(c=0.5), frame.astype({"a": "int64"}), frame.astype({"a": "Int64"}), [[1, 2]], [[0.5]]):
        assert number_type(wide) == np.float64


def test_float64_rows_stay_float64():
    assert RowSource(X.astype(np.float64)).read(slice(0, 2), CPU).dtype == torch.float64
    assert RowSource.of(iter([X.astype(np.float64)])).dtype == torch.float64


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (X[0], r"X must be a matrix \(n, d\), got shape \(5,\)"),
        (X[:0], r"at least one row and one feature, got shape \(0, 5\)"),
        (X[:, :0], r"got shape \(300, 0\)"),
    ],
)
def test_arrays_that_are_not_a_matrix_are_refused(array, message):
    with pytest.raises(InputError, match=message):
        RowSource(array)


def test_rows_that_are_not_numbers_are_refused(tmp_path):
    np.save(tmp_path / "X.npy", X.astype(str))
    with pytest.raises(InputError, match="X must hold numbers, got <U"):
        RowSource.of(np.load(tmp_path / "X.npy", mmap_mode="r"))
    with pytest.raises(InputError, match="a row block must hold numbers"):
        RowSource.of(iter([X.astype(str)]))


def test_nan_is_named_by_row_and_file():
    bad = X.copy()
    bad[177, 2] = np.inf
    with pytest.raises(InputError, match=r"NaN or infinity in row 177$"):
        RowSource(bad).read(slice(150, 200), CPU)
    with pytest.raises(InputError, match=r"NaN or infinity in row 177$"):
        RowSource(bad, slice(100, 200)).take(np.array([3, 77]), CPU)
    parts = [bad[:170], bad[170:]]
    one = Shards([lambda p=p: p for p in parts], [170, 130], 5, np.float32, ["0.npy", "1.npy"])
    with pytest.raises(InputError, match=r"row 177 \(1\.npy\)"):
        RowSource(one).read(slice(0, 300), CPU)
    assert not RowSource(bad).read(slice(150, 200), CPU, check=False).isfinite().all()
    assert not RowSource(bad, checked=True).read(slice(150, 200), CPU).isfinite().all()


def test_read_only_rows_are_copied_without_a_warning():
    assert as_tensor(X).data_ptr() == X.ctypes.data  # writable memory is shared
    frozen = X.copy()
    frozen.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = as_tensor(frozen)
        block = RowSource(frozen).read(slice(3, 9), CPU)
    copy.zero_()
    block.zero_()
    np.testing.assert_array_equal(frozen, X)
    assert as_tensor(np.broadcast_to(np.float32(3), (4,))).tolist() == [3.0] * 4  # a view of one number


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_tensors_of_a_memory_map_are_copies(tmp_path, mode):
    np.save(tmp_path / "X.npy", X)
    rows = RowSource(np.load(tmp_path / "X.npy", mmap_mode=mode))
    rows.read(slice(0, 5), CPU).zero_()
    rows.take(np.array([7, 8]), CPU).zero_()
    np.testing.assert_array_equal(rows.array, X)


# --- Shards ---


def test_shards_are_indexed_like_an_array():
    one = shards()
    mask = np.arange(300) % 7 == 1
    for which in (slice(None), slice(5, 180), slice(299, None, -2), [299, 0, 171, 171], mask, 170, -1):
        np.testing.assert_array_equal(one[which], X[which])
    np.testing.assert_array_equal(np.asarray(one), X)
    assert np.asarray(one, np.float64).dtype == np.float64
    assert one[20:10].shape == (0, 5)
    with pytest.raises(IndexError):
        one[300]


def test_shards_know_the_file_of_a_row():
    assert [shards().where(row) for row in (0, 9, 10, 170, 171)] == ["a", "a", "b", "c", "d"]
    assert RowSource.of(pieces()).array.where(170) == "block 2"


def test_threads_read_different_shards_at_once():
    parts = [np.full((50, 3), float(i)) for i in range(4)]
    one = Shards([lambda p=p: p for p in parts], [50] * 4, 3, np.float64)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:

            def wrong(i):
                return sum(bool((one[50 * i : 50 * i + 50] != i).any()) for _ in range(1500))

            assert sum(pool.map(wrong, range(4))) == 0
    finally:
        sys.setswitchinterval(before)


# --- Row blocks ---


def test_blocks_of_every_kind(mapped):
    for given in (X, mapped, shards(), pieces(), iter(pieces())):
        np.testing.assert_array_equal(np.concatenate(list(blocks_of(given, 97))), X)
    assert [len(block) for block in blocks_of(X, 128)] == [128, 128, 44]
    assert [len(block) for block in blocks_of([X[:3], X[:0], X[:2]])] == [3, 2]  # empty blocks are skipped


def test_row_blocks_must_have_one_width():
    for read in (RowSource.of, lambda blocks: list(blocks_of(blocks))):
        for blocks in ([X[:5], X[5:, :3]], iter([X[:5], X[5:, :3]])):
            with pytest.raises(InputError, match="row blocks must have the same number of columns"):
                read(blocks)
        with pytest.raises(InputError, match="no row blocks"):
            read(iter([]))


def test_what_is_read_in_blocks(mapped):
    for given in (mapped, shards(), "X.npy", pieces(), iter(pieces())):
        assert is_streamed(given)
    for given in (X, X.tolist(), torch.from_numpy(X), [[1, 2], [3, 4]]):
        assert not is_streamed(given)
    assert not is_blocks([])


def test_check_finite_counts_from_the_start_of_x():
    check_finite(X, 0, X)
    check_finite(np.arange(3), 0, X)
    bad = X[:4].copy()
    bad[2, 0] = np.nan
    with pytest.raises(InputError, match="row 1,002"):
        check_finite(bad, 1000, X)


# --- Memory maps and scratch files ---


@pytest.mark.slow
def test_reading_a_map_does_not_keep_it_in_memory(tmp_path):
    n, d = 40_000, 128  # 20 MB
    whole = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (n, d))
    whole[:] = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    whole.flush()
    code = (
        "import sys, numpy as np, torch; from dish import machine; from dish.io.rows import RowSource\n"
        "X = np.load(sys.argv[1], mmap_mode='r'); rows = RowSource(X); peak = machine.PeakMemory()\n"
        "for i in range(0, len(X), 512): rows.read(slice(i, min(len(X), i + 512)), torch.device('cpu')).sum()\n"
        "print(peak.bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "X.npy")], capture_output=True, text=True)
    assert int(done.stdout) < 10e6, done.stderr


def test_release_keeps_what_was_written_to_a_private_map(tmp_path):
    np.save(tmp_path / "X.npy", np.zeros((1000, 4), np.float32))
    private = np.load(tmp_path / "X.npy", mmap_mode="c")
    private[:] = 1
    io_rows.release(private)
    assert (private == 1).all()


def test_release_keeps_what_was_written_to_a_shared_map():
    file = io_rows.scratch(1000, 4, np.float32)
    file[:] = 1
    io_rows.release(file[10:900])
    assert (file == 1).all()


def test_allocated_files_have_their_full_size(tmp_path):
    io_rows.allocate_npy(tmp_path / "c.npy", (1000, 3))
    assert np.load(tmp_path / "c.npy").shape == (1000, 3)
    assert (tmp_path / "c.npy").stat().st_blocks * 512 >= 3000


def test_local_rows_are_the_indices_of_one_process():
    class Second:
        def offset_and_total(self, n):
            return 10, 30

    mine, places = io_rows.local_rows(10, np.array([3, 10, 14, 19, 20, 25]), Second())
    assert mine.tolist() == [0, 4, 9]
    assert places == slice(1, 4)
