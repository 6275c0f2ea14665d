import numpy as np
import pytest

from dish import codes

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
