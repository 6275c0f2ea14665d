"""Packed codes, distances, words, and the forms of other engines against plain definitions."""

import base64

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dish import codes
from dish.errors import InputError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("r", [1, 7, 8, 12, 64, 65, 200])
def test_unpack_inverts_pack(r):
    H = np.where(RNG.random((9, r)) < 0.5, -1, 1)
    packed = codes.pack(H)
    assert packed.shape == (9, -(-r // 8))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, np.packbits(H > 0, axis=1))
    np.testing.assert_array_equal(codes.unpack(packed, r), H)


def test_zero_packs_to_bit_one():
    assert codes.pack(np.zeros((1, 8)))[0, 0] == 255


@pytest.mark.parametrize("r", [3, 16, 64, 70, 130])
def test_hamming_equals_counting(r, kernels):
    A, B = RNG.random((5, r)) < 0.5, RNG.random((6, r)) < 0.5
    expected = (A[:, None] != B[None]).sum(2)
    np.testing.assert_array_equal(codes.hamming(np.packbits(A, axis=1), np.packbits(B, axis=1)), expected)


@pytest.mark.parametrize("r", [1, 8, 13, 32, 33, 64, 70, 200])
def test_words_hold_the_packed_codes(r):
    packed = codes.pack(RNG.standard_normal((9, r)))
    words = codes.to_words(packed, r)
    assert (words.dtype, words.shape[1]) == codes.word_layout(r)
    assert words.nbytes <= 2 * packed.nbytes
    np.testing.assert_array_equal(codes.from_words(words, r), packed)
    np.testing.assert_array_equal(codes.distances(words, words), codes.hamming(packed, packed))


def test_words_reject_bits_beyond_the_code():
    with pytest.raises(ValueError, match="queries have bits set beyond the first 5"):
        codes.to_words(np.full((1, 1), 0b00000100, np.uint8), 5, "queries")


def test_bad_codes_are_refused():
    good = np.zeros((3, 8), np.uint8)
    with pytest.raises(ValueError, match="float64"):
        codes.unpack(np.zeros((3, 8)), 64)
    with pytest.raises(ValueError, match="have 8"):
        codes.unpack(np.zeros((3, 2), np.uint8), 64)
    with pytest.raises(ValueError, match="bytes per row"):
        codes.hamming(good, good[:, :4])


@pytest.mark.parametrize(("r", "keep"), [(12, 12), (12, 5), (64, 32), (20, 1), (24, 17)])
def test_a_prefix_equals_the_code_of_the_first_columns(r, keep):
    F = np.random.default_rng(0).standard_normal((9, r))
    np.testing.assert_array_equal(codes.prefix(codes.pack(F), r, keep), codes.pack(F[:, :keep]))


@pytest.mark.parametrize("keep", [0, 13])
def test_prefix_lengths_out_of_range_are_refused(keep):
    with pytest.raises(ValueError, match=f"n_bits must be between 1 and the 12 bits of the codes, got {keep}"):
        codes.prefix(np.zeros((2, 2), np.uint8), 12, keep)


# --- forms of other engines ---


def packed_codes(r, n, seed):
    return np.packbits(np.random.default_rng(seed).integers(0, 2, (n, r)), axis=1)


def bits_of(data, form):
    """The bits of each code, by the definition of the form, with the padding; without the library's functions."""
    if form == "bits":
        return list(data)
    if form == "hex":
        return [f"{int(one, 16):0{4 * len(one)}b}" for one in data]
    if form == "base64":
        return ["".join(f"{x:08b}" for x in base64.b64decode(one)) for one in data]
    if form in ("ubinary", "int8"):
        return ["".join(f"{int(x) % 256:08b}" for x in one) for one in data]
    if form == "st_binary":
        return ["".join(f"{int(x) + 128:08b}" for x in one) for one in data]
    if form == "lsb":
        return ["".join(f"{int(x):08b}"[::-1] for x in one) for one in data]
    if form == "words64":
        return ["".join(f"{int(x):064b}" for x in one) for one in data]
    if form == "pm1":
        return ["".join("1" if x == 1 else "0" for x in one) for one in data]
    if form == "bson":
        return ["".join(f"{x:08b}" for x in one[2:]) for one in data]
    return ["".join(f"{x:08b}" for x in one) for one in data["code"].to_pylist()]


@pytest.mark.parametrize("form", codes.FORMS)
@settings(max_examples=40, deadline=None)
@given(r=st.integers(1, 300), n=st.integers(0, 4), seed=st.integers(0, 99))
def test_every_form_round_trips(form, r, n, seed):
    B = packed_codes(r, n, seed)
    data = codes.export(B, r, to=form)
    found = codes.parse(data, r, form)
    np.testing.assert_array_equal(found, B, strict=True)
    assert not np.shares_memory(found, B)
    wanted = ["".join(map(str, row[:r])) for row in np.unpackbits(B, axis=1)]
    for have, want in zip(bits_of(data, form), wanted, strict=True):
        assert have == want.ljust(len(have), "0")  # padded with zeros


TYPES = {
    "ubinary": "uint8",
    "int8": "int8",
    "st_binary": "int8",
    "lsb": "uint8",
    "words64": "uint64",
    "pm1": "float32",
}


@pytest.mark.parametrize("form", codes.FORMS)
@pytest.mark.parametrize("r", [5, 60, 64])
def test_other_widths_types_and_padding_are_refused(form, r):
    data = codes.export(packed_codes(r, 3, 0), r, to=form)
    with pytest.raises(InputError, match=r"length|shape|n_bits is|type"):
        codes.parse(data, r + 64, form)
    if r % 8 and form not in ("bits", "pm1"):  # which have no padding: they have another length
        ones = codes.export(np.full((1, codes.n_bytes(r)), 255, np.uint8), 8 * codes.n_bytes(r), to=form)
        ones = [bytes([16, -r % 8]) + ones[0][2:]] if form == "bson" else ones
        ones = ones.replace_schema_metadata(None) if form == "arrow" else ones
        with pytest.raises(InputError, match=f"data have bits set beyond the first {r}"):
            codes.parse(ones, r, form)
    if form in TYPES:
        assert data.dtype == TYPES[form]
        for wrong in (data.astype(np.int64), data[0], data.tolist() if form == "pm1" else data.astype(float)):
            with pytest.raises(InputError, match=f"data of the form '{form}' must be {TYPES[form]} of shape"):
                codes.parse(wrong, r, form)
    elif form != "arrow":
        for wrong in (data[0], 7, [7]):
            with pytest.raises(InputError, match=f"'{form}' must be a list of (str|bytes) of length"):
                codes.parse(wrong, r, form)


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        ("bits", ["0101", "01x1"], "may not contain 'x', as row 1 does"),
        ("hex", ["f0 "[:2], "0x"], "may not contain 'x', as row 1 does"),
        ("hex", [" 0"], "may not contain ' '"),
        ("base64", ["8A==", "8B=="], "must encode 1 bytes per code, but row 1 is '8B=='"),  # set unused bits
        ("base64", ["8*=="], "row 0 is '8"),
        ("base64", ["éé=="], "row 0 is 'éé=='"),
        ("base64", ["8AAA"], "row 0 is '8AAA'"),
        ("pm1", np.array([[1, -1, 0, 1]], np.float32), "−1 or 1"),
        ("pm1", np.array([[1, -1, np.nan, 1]], np.float32), "−1 or 1"),
        ("words64", np.array([[15 << 60 | 1]], np.uint64), "beyond the first 4"),
        ("bson", [b"\x10\x03\xf0"], "begin with 1004 .PACKED_BIT with 4 unused bits.*but row 0 begins with 1003"),
        ("bson", [b"\x03\x00\xf0"], "begins with 0300"),
        ("arrow", [b"\xf0"], "pyarrow table with a column 'code', got list"),
        ("arrow", pa.table({"x": [1]}), "column 'code', got Table"),
        ("arrow", pa.table([pa.array([b"\xf0"], pa.binary(1))] * 2, names=["code", "code"]), "with a column 'code'"),
        ("arrow", pa.table({"code": pa.array([b"\xf0"], pa.binary(1))}, metadata={"dish.n_bits": b"\xff"}), "say"),
        ("arrow", pa.table({"code": [b"\xf0"]}), r"fixed_size_binary\[1\], without nulls; got binary"),
        ("arrow", pa.table({"code": pa.array([None], pa.binary(1))}), "without nulls"),
        ("octal", ["17"], "form must be one of 'bits'"),
    ],
)
def test_wrong_data_are_refused(form, data, message):
    with pytest.raises(InputError, match=message):
        codes.parse(data, 4, form)


def test_export_refuses_what_it_cannot_export():
    with pytest.raises(InputError, match="to must be one of 'bits', 'hex'"):
        codes.export(packed_codes(8, 1, 0), 8, to="octal")
    with pytest.raises(InputError, match="codes have bits set beyond the first 5"):
        codes.export(np.full((1, 1), 255, np.uint8), 5, to="hex")
    with pytest.raises(InputError, match="only with to='arrow', got to='hex'"):
        codes.export(packed_codes(8, 1, 0), 8, to="hex", model="0" * 16)
    with pytest.raises(InputError, match="n_bits must be a whole number of at least 1, got 0"):
        codes.parse([], 0, "hex")


def test_arrow_keeps_the_model_and_reads_slices_and_chunks(tmp_path):
    B = packed_codes(20, 9, 3)
    table = codes.export(B, 20, to="arrow", model="0123456789abcdef")
    assert table.schema.metadata == {b"dish.n_bits": b"20", b"dish.model": b"0123456789abcdef"}
    assert codes.export(B, 20, to="arrow").schema.metadata == {b"dish.n_bits": b"20"}
    pa.parquet.write_table(table, tmp_path / "codes.parquet")
    read = pa.parquet.read_table(tmp_path / "codes.parquet")
    assert read.schema.metadata[b"dish.model"] == b"0123456789abcdef"
    chunks = pa.concat_tables([read.slice(2, 3), read.slice(7)])
    np.testing.assert_array_equal(codes.parse(chunks, 20, "arrow"), B[[2, 3, 4, 7, 8]])
    np.testing.assert_array_equal(codes.parse(chunks.to_batches()[0], 20, "arrow"), B[2:5])
    for empty in (read.slice(0, 0), chunks.slice(9), read.schema.empty_table()):
        assert codes.parse(empty, 20, "arrow").shape == (0, 3)


def test_faiss_packs_bits_in_the_order_of_lsb():
    faiss = pytest.importorskip("faiss")
    H = np.where(RNG.random((5, 16)) < 0.5, -1, 1).astype(np.float32)
    packed = np.zeros((5, 2), np.uint8)
    faiss.real_to_binary(H.size, faiss.swig_ptr(H), faiss.swig_ptr(packed))
    np.testing.assert_array_equal(codes.export(codes.pack(H), 16, to="lsb"), packed)


@pytest.mark.engines
@pytest.mark.parametrize("r", [3, 16, 61])
def test_bson_equals_what_pymongo_writes(r):
    from bson.binary import Binary, BinaryVectorDtype

    B = packed_codes(r, 4, 1)
    theirs = [Binary.from_vector(b.tolist(), BinaryVectorDtype.PACKED_BIT, padding=-r % 8) for b in B]
    assert codes.export(B, r, to="bson") == [bytes(one) for one in theirs]
    np.testing.assert_array_equal(codes.parse(theirs, r, "bson"), B)
    with pytest.raises(InputError, match="subtype 9"):
        codes.parse([Binary(bytes(theirs[0]), 0)], r, "bson")


@pytest.mark.engines
def test_st_binary_equals_what_sentence_transformers_writes():
    from sentence_transformers.util.quantization import quantize_embeddings

    F = RNG.standard_normal((6, 64)).astype(np.float32)
    for form, precision in (("st_binary", "binary"), ("ubinary", "ubinary")):
        np.testing.assert_array_equal(
            codes.export(codes.pack(F), 64, to=form), quantize_embeddings(F, precision), strict=True
        )
