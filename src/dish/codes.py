"""Binary codes: ±1 matrices ↔ packed bytes, Hamming distance, codes as machine words, and in the forms of engines.

A code of r bits takes ``ceil(r / 8)`` bytes in the order of ``np.packbits``: bit j is ``128 >> (j % 8)`` of byte
``j // 8``, and the unused low bits of the last byte are zero. Bit 1 stands for +1, bit 0 for −1.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import numba_lazy, threads
from dish.checks import check_integer, check_option
from dish.errors import InputError
from dish.install import pip_install
from dish.lazy import numba
from dish.numba_lazy import intrinsic, njit

Bytes = NDArray[np.uint8]


@intrinsic
def popcount(typingctx: Any, x: Any) -> Any:
    """The number of set bits of a uint64, in numba kernels: one machine instruction where the CPU has it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return numba.uint64(numba.uint64), codegen


def n_bytes(n_bits: int) -> int:
    """The number of bytes of a packed code of ``n_bits`` bits."""
    return (n_bits + 7) // 8


def pack(H: ArrayLike) -> Bytes:
    """Real or ±1 values (n, r) → packed codes (n, ceil(r/8)); a value ≥ 0 is bit 1."""
    return np.packbits(np.asarray(H) >= 0, axis=1)


def unpack(codes: ArrayLike, n_bits: int) -> NDArray[np.int8]:
    """Packed codes (n, ceil(r/8)) → ±1 matrix (n, r), int8."""
    codes = check_codes(codes, n_bits)
    bits = np.unpackbits(codes, axis=1, count=n_bits)  # (n, r) of 0/1
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def prefix(codes: ArrayLike, n_bits: int, keep: int) -> Bytes:
    """The first ``keep`` bits of packed codes of ``n_bits`` bits, packed."""
    if not 1 <= keep <= n_bits:
        raise InputError(f"n_bits must be between 1 and the {n_bits} bits of the codes, got {keep}")
    shorter = check_codes(codes, n_bits)[:, : n_bytes(keep)].copy()
    shorter[:, -1] &= 0xFF << (-keep % 8) & 0xFF  # unused bits are zero
    return shorter


def check_codes(codes: ArrayLike, n_bits: int | None = None, name: str = "codes") -> Bytes:
    """Return ``codes`` as a contiguous uint8 matrix, or raise InputError."""
    array = np.asarray(codes)
    if array.ndim != 2 or array.dtype != np.uint8:
        raise InputError(
            f"{name} must be packed codes, a uint8 array of shape (n, ceil(n_bits / 8)); "
            f"got {array.dtype} of shape {array.shape}"
        )
    if n_bits is not None and array.shape[1] != n_bytes(n_bits):
        raise InputError(
            f"{name} has {array.shape[1]} bytes per row, but codes of {n_bits} bits have {n_bytes(n_bits)}"
        )
    return np.ascontiguousarray(array)


def check_unused_bits(codes: Bytes, n_bits: int, name: str = "codes") -> Bytes:
    """Return packed codes whose unused bits are zero, or raise InputError."""
    unused = -n_bits % 8
    if unused and (codes[:, -1] & ((1 << unused) - 1)).any():
        raise InputError(f"{name} have bits set beyond the first {n_bits}")
    return codes


def as_words(codes: Bytes) -> NDArray[np.uint64]:
    """Packed codes (n, bytes) → (n, ceil(bytes/8)) uint64, zero-padded: distances are unchanged."""
    n, width = codes.shape
    padded = np.zeros((n, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)


def word_layout(n_bits: int) -> tuple[type[np.unsignedinteger[Any]], int]:
    """Return the word type and the number of words that hold one code, in at most twice its bytes."""
    width = n_bytes(n_bits)
    for word, size in ((np.uint8, 1), (np.uint16, 2), (np.uint32, 4)):
        if width <= size:
            return word, 1
    return np.uint64, -(-width // 8)


def to_words(codes: ArrayLike, n_bits: int, name: str = "codes") -> NDArray[Any]:
    """Packed codes (n, bytes) → words (n, w) of the type that ``word_layout`` gives, padded with zeros."""
    given = check_unused_bits(check_codes(codes, n_bits, name), n_bits, name)
    word, n_words = word_layout(n_bits)
    words = np.zeros((len(given), n_words), word)
    words.view(np.uint8)[:, : given.shape[1]] = given
    return words


def from_words(words: NDArray[Any], n_bits: int) -> Bytes:
    """Words (n, w) → packed codes (n, bytes); the inverse of ``to_words``."""
    return np.ascontiguousarray(words.view(np.uint8)[:, : n_bytes(n_bits)])


def distances(A: NDArray[Any], B: NDArray[Any]) -> NDArray[np.int64]:
    """Hamming distances (p, q) between codes as words, by NumPy. For few pairs: nothing is compiled."""
    D = np.zeros((len(A), len(B)), np.int64)
    for a, b in zip(A.T, B.T, strict=True):  # word by word
        D += np.bitwise_count(a[:, None] ^ b)
    return D


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """Hamming distances (p, q) between packed codes ``a`` (p rows) and ``b`` (q rows)."""
    A, B = _same_width(a, b)
    words = as_words(A), as_words(B)
    if not numba_lazy.pays(_hamming, len(A) * len(B)):
        return distances(*words).astype(np.int32)
    return np.concatenate(threads.over_rows(_hamming, words[:1], words[1]))


def _same_width(a: ArrayLike, b: ArrayLike) -> tuple[Bytes, Bytes]:
    A, B = check_codes(a, name="query codes"), check_codes(b, name="database codes")
    if A.shape[1] != B.shape[1]:
        raise InputError(f"query codes have {A.shape[1]} bytes per row, database codes {B.shape[1]}")
    return A, B


@njit(cache=True)
def byte_table(u: Any, words: int) -> Any:
    """The table T with T[j, x] = Σ_t ±u[8j + t], where the sign is bit t of the byte x.

    H_i u is then the sum of one entry of T per byte of H_i. T has 8 · ``words`` rows; those beyond u are zero.
    """
    table = np.zeros((8 * words, 256))
    for k in range(len(u)):
        mask = 128 >> (k & 7)
        for x in range(256):
            table[k >> 3, x] += u[k] if x & mask else -u[k]
    return table


@njit(nogil=True, cache=True)
def _hamming(A: Any, B: Any) -> Any:
    D = np.empty((len(A), len(B)), np.int32)
    for i in range(len(A)):
        for j in range(len(B)):
            d = np.uint64(0)
            for w in range(A.shape[1]):
                d += popcount(A[i, w] ^ B[j, w])
            D[i, j] = d
    return D


# --- forms that other engines expect ---


def export(codes: ArrayLike, n_bits: int, to: str, *, model: str | None = None) -> Any:
    """Return packed codes in the form that another engine expects; ``parse`` is the inverse.

    Bits that a form has beyond ``n_bits`` are zero.

    =========== ====================== ===================================================================
    to          returns                for
    =========== ====================== ===================================================================
    "bits"      list of str            "0110…", n_bits characters: pgvector's bit(n), DuckDB's BIT
    "hex"       list of str            two digits per byte: Elasticsearch
    "base64"    list of str            JSON
    "ubinary"   uint8 (n, bytes)       the codes themselves: faiss, usearch, LanceDB, Milvus
    "int8"      int8 (n, bytes)        bytes as signed numbers: OpenSearch, Vespa
    "st_binary" int8 (n, bytes)        byte − 128: "binary" of sentence-transformers
    "lsb"       uint8 (n, bytes)       bit 0 is the lowest of byte 0: packers of faiss and sqlite-vec
    "words64"   uint64 (n, n_bits/64)  bit 0 is the highest of word 0: DuckDB's UBIGINT, ClickHouse
    "pm1"       float32 (n, n_bits)    ±1: Qdrant, Weaviate (Hamming distance = (n_bits − dot product) / 2)
    "bson"      list of bytes          binary vectors of MongoDB: payloads of subtype 9, PACKED_BIT
    "arrow"     pyarrow.Table          column "code", fixed-size binary; n_bits and ``model`` in the metadata
    =========== ====================== ===================================================================

    Parameters
    ----------
    codes : uint8 (n, ceil(n_bits / 8))
        Packed codes.
    n_bits : int
        Code length.
    to : str
        One of the forms above.
    model : str or None, default=None
        ``fingerprint_`` of the hasher that made the codes, stored in the metadata of "arrow".

    Examples
    --------
    >>> import numpy as np
    >>> from dish import codes
    >>> B = np.array([[0b10000001, 0b11000000]], np.uint8)
    >>> codes.export(B, 10, to="bits"), codes.export(B, 10, to="hex")
    (['1000000111'], ['81c0'])
    >>> codes.parse(["81c0"], 10, "hex").tolist()
    [[129, 192]]
    """
    check_integer("n_bits", n_bits, low=1)
    check_option("to", to, FORMS)
    given = check_unused_bits(check_codes(codes, n_bits), n_bits)
    if to == "arrow":
        return _to_arrow(given, n_bits, model)
    if model is not None:
        raise InputError(f"model is stored only with to='arrow', got to={to!r}")
    return _FORMS[to][0](given, n_bits)


def parse(data: Any, n_bits: int, form: str) -> Bytes:
    """Return the packed codes (n, ceil(n_bits / 8)) of data in one of the forms of ``export``.

    Raises InputError if the data have another width or type, characters or values that do not belong to the form, or
    set bits beyond ``n_bits``.
    """
    check_integer("n_bits", n_bits, low=1)
    check_option("form", form, FORMS)
    read = _from_arrow if form == "arrow" else _FORMS[form][1]
    return check_unused_bits(np.array(read(data, n_bits), order="C"), n_bits, "data")


def _matrix(data: Any, dtype: Any, width: int, form: str) -> NDArray[Any]:
    """Return ``data`` as a matrix, or raise InputError."""
    array = np.asarray(data)
    if array.dtype != dtype or array.ndim != 2 or array.shape[1] != width:
        raise InputError(
            f"data of the form {form!r} must be {np.dtype(dtype)} of shape (n, {width}), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array


def _list(data: Any, kind: type[str] | type[bytes], length: int, form: str) -> list[Any]:
    """Return ``data`` as a list of str or bytes, or raise InputError."""
    wanted = f"data of the form {form!r} must be a list of {kind.__name__} of length {length}"
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InputError(f"{wanted}, got {type(data).__name__}")
    given = list(data)
    for i, one in enumerate(given):
        if not isinstance(one, kind) or len(one) != length:
            what = f"length {len(one)}" if isinstance(one, kind) else f"type {type(one).__name__}"
            raise InputError(f"{wanted}, but row {i} has {what}")
    return given


def _joined(data: Any, length: int, characters: str, form: str) -> bytes:
    """Return texts of equal length as one, or raise InputError if they have other ``characters``."""
    whole = "".join(_list(data, str, length, form))
    wrong = re.search(f"[^{characters}]", whole)
    if wrong:
        raise InputError(
            f"data of the form {form!r} may not contain {wrong[0]!r}, as row {wrong.start() // length} does"
        )
    return whole.encode()


def _sliced(whole: str, length: int) -> list[str]:
    return [whole[i : i + length] for i in range(0, len(whole), length)]


def _to_bits(codes: Bytes, n_bits: int) -> list[str]:
    return _sliced((np.unpackbits(codes, axis=1, count=n_bits) + ord("0")).tobytes().decode(), n_bits)


def _from_bits(data: Any, n_bits: int) -> Bytes:
    digits = np.frombuffer(_joined(data, n_bits, "01", "bits"), np.uint8).reshape(-1, n_bits)
    return np.packbits(digits == ord("1"), axis=1)


def _to_hex(codes: Bytes, n_bits: int) -> list[str]:
    return _sliced(codes.tobytes().hex(), 2 * n_bytes(n_bits))


def _from_hex(data: Any, n_bits: int) -> Bytes:
    whole = _joined(data, 2 * n_bytes(n_bits), "0-9a-fA-F", "hex")
    return np.frombuffer(binascii.unhexlify(whole), np.uint8).reshape(-1, n_bytes(n_bits))


def _to_base64(codes: Bytes, n_bits: int) -> list[str]:
    return [binascii.b2a_base64(code, newline=False).decode() for code in codes]


def _from_base64(data: Any, n_bits: int) -> Bytes:
    width = n_bytes(n_bits)
    texts = _list(data, str, -(-width // 3) * 4, "base64")
    codes = np.empty((len(texts), width), np.uint8)
    for i, text in enumerate(texts):
        try:
            code = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:  # also characters that are not ASCII
            code = b""
        if len(code) != width or binascii.b2a_base64(code, newline=False).decode() != text:  # set unused bits
            raise InputError(f"data of the form 'base64' must encode {width} bytes per code, but row {i} is {text!r}")
        codes[i] = np.frombuffer(code, np.uint8)
    return codes


def _to_lsb(codes: Bytes, n_bits: int) -> Bytes:
    return np.packbits(np.unpackbits(codes, axis=1), axis=1, bitorder="little")


def _from_lsb(data: Any, n_bits: int) -> Bytes:
    return _to_lsb(_matrix(data, np.uint8, n_bytes(n_bits), "lsb"), n_bits)  # its own inverse


def _to_words64(codes: Bytes, n_bits: int) -> NDArray[np.uint64]:
    return as_words(codes).view(">u8").astype(np.uint64)


def _from_words64(data: Any, n_bits: int) -> Bytes:
    codes = _matrix(data, np.uint64, -(-n_bits // 64), "words64").astype(">u8").view(np.uint8)
    if codes[:, n_bytes(n_bits) :].any():
        raise InputError(f"data have bits set beyond the first {n_bits}")
    return codes[:, : n_bytes(n_bits)]


def _from_pm1(data: Any, n_bits: int) -> Bytes:
    H = _matrix(data, np.float32, n_bits, "pm1")
    if not (np.abs(H) == 1).all():
        raise InputError("data of the form 'pm1' must be −1 or 1 everywhere")
    return pack(H)


def _bson_header(n_bits: int) -> bytes:
    return bytes([0x10, -n_bits % 8])  # PACKED_BIT, and the number of unused bits


def _to_bson(codes: Bytes, n_bits: int) -> list[bytes]:
    return [_bson_header(n_bits) + code.tobytes() for code in codes]


def _from_bson(data: Any, n_bits: int) -> Bytes:
    width, header = n_bytes(n_bits), _bson_header(n_bits)
    given = _list(data, bytes, 2 + width, "bson")
    for i, one in enumerate(given):
        if one[:2] != header or getattr(one, "subtype", 9) != 9:  # bson.Binary is bytes with a subtype
            raise InputError(
                f"data of the form 'bson' must begin with {header.hex()} (PACKED_BIT with {header[1]} unused bits) "
                f"and have subtype 9, but row {i} begins with {one[:2].hex()}"
            )
    return np.frombuffer(b"".join(given), np.uint8).reshape(-1, 2 + width)[:, 2:]


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError(f"the form 'arrow' needs pyarrow: {pip_install('tables')}") from None
    return pyarrow


def _to_arrow(codes: Bytes, n_bits: int, model: str | None) -> Any:
    pa = _pyarrow()
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(codes.shape[1]), len(codes), [None, pa.py_buffer(np.array(codes))]
    )
    metadata = {ARROW_BITS: str(n_bits)} | ({} if model is None else {ARROW_MODEL: model})
    return pa.table({"code": column}).replace_schema_metadata(metadata)


def _from_arrow(data: Any, n_bits: int) -> Bytes:
    pa = _pyarrow()
    width, wanted = n_bytes(n_bits), "data of the form 'arrow' must be a pyarrow table with a column 'code'"
    if not isinstance(data, pa.Table | pa.RecordBatch) or data.column_names.count("code") != 1:
        raise InputError(f"{wanted}, got {type(data).__name__}")
    column = pa.table({"code": data["code"]})["code"].combine_chunks()
    if column.type != pa.binary(width) or column.null_count:
        raise InputError(f"{wanted} of type {pa.binary(width)}, without nulls; got {column.type}")
    stored = (data.schema.metadata or {}).get(ARROW_BITS.encode(), str(n_bits).encode()).decode(errors="replace")
    if stored != str(n_bits):
        raise InputError(f"n_bits is {n_bits}, but the metadata of the table say {stored}")
    start = column.offset * width
    return np.frombuffer(column.buffers()[1], np.uint8)[start : start + len(column) * width].reshape(-1, width)


ARROW_BITS, ARROW_MODEL = "dish.n_bits", "dish.model"  # keys of the schema metadata
_FORMS: dict[str, tuple[Callable[[Bytes, int], Any], Callable[[Any, int], Bytes]]] = {
    "bits": (_to_bits, _from_bits),
    "hex": (_to_hex, _from_hex),
    "base64": (_to_base64, _from_base64),
    "ubinary": (lambda codes, r: codes.copy(), lambda data, r: _matrix(data, np.uint8, n_bytes(r), "ubinary")),
    "int8": (
        lambda codes, r: codes.copy().view(np.int8),
        lambda data, r: _matrix(data, np.int8, n_bytes(r), "int8").view(np.uint8),
    ),
    "st_binary": (
        lambda codes, r: (codes ^ np.uint8(128)).view(np.int8),  # byte − 128
        lambda data, r: _matrix(data, np.int8, n_bytes(r), "st_binary").view(np.uint8) ^ np.uint8(128),
    ),
    "lsb": (_to_lsb, _from_lsb),
    "words64": (_to_words64, _from_words64),
    "pm1": (lambda codes, r: unpack(codes, r).astype(np.float32), _from_pm1),
    "bson": (_to_bson, _from_bson),
}
FORMS = (*_FORMS, "arrow")
