import numpy as np
import pytest

from dish import codes

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("r", [1, 7, 8, 12, 64, 65, 200])
def test_pack_and_unpack_are_inverse(r):
    H = np.where(RNG.random((9, r)) < 0.5, -1, 1)
    packed = codes.pack(H)
    assert packed.shape == (9, -(-r // 8))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, np.packbits(H > 0, axis=1))
    np.testing.assert_array_equal(codes.unpack(packed, r), H)


def test_zero_is_bit_one():
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


@pytest.mark.parametrize("r", [4, 64])
def test_nearest_is_a_stable_sort(r):
    A = np.packbits(RNG.random((7, r)) < 0.5, axis=1)
    B = np.packbits(RNG.random((50, r)) < 0.5, axis=1)
    D, rows = codes.nearest(A, B, 20)
    expected = np.argsort(codes.hamming(A, B), axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(D, np.take_along_axis(codes.hamming(A, B), expected, 1))


def test_bad_codes_are_named():
    good = np.zeros((3, 8), np.uint8)
    with pytest.raises(ValueError, match="float64"):
        codes.unpack(np.zeros((3, 8)), 64)
    with pytest.raises(ValueError, match="have 8"):
        codes.unpack(np.zeros((3, 2), np.uint8), 64)
    with pytest.raises(ValueError, match="bytes per row"):
        codes.hamming(good, good[:, :4])
    with pytest.raises(ValueError, match="k must be"):
        codes.nearest(good, good, 4)


@pytest.mark.parametrize(("r", "keep"), [(12, 12), (12, 5), (64, 32), (20, 1), (24, 17)])
def test_a_prefix_is_the_code_of_the_first_columns(r, keep):
    F = np.random.default_rng(0).standard_normal((9, r))
    np.testing.assert_array_equal(codes.prefix(codes.pack(F), r, keep), codes.pack(F[:, :keep]))


@pytest.mark.parametrize("keep", [0, 13])
def test_a_prefix_cannot_be_longer_than_its_code(keep):
    with pytest.raises(ValueError, match=f"n_bits must be between 1 and the 12 bits of the codes, got {keep}"):
        codes.prefix(np.zeros((2, 2), np.uint8), 12, keep)
