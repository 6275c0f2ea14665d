"""Notes about the model of codes, and codes of different models."""

import logging

import numpy as np
import pytest

import dish
from dish import DISH, HammingIndex
from dish.errors import ModelMismatchError
from dish.io.batch_jobs import encode_file
from dish.io.code_provenance import model_of, note_model, note_of
from dish.parallel import ALONE
from helpers.cli import run

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def codes_file(tmp_path):
    np.save(tmp_path / "codes.npy", np.random.default_rng(0).integers(0, 256, (50, 8), dtype=np.uint8))
    return tmp_path / "codes.npy"


def test_encode_file_notes_the_model(tmp_path, digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=16, n_anchors=30).fit(X[:200], y[:200])
    hasher.save(tmp_path / "m.dish")
    encode_file(hasher, X, tmp_path / "codes.npy", ALONE)
    assert model_of(tmp_path / "codes.npy") == dish.load(tmp_path / "m.dish").fingerprint_


def test_encode_file_notes_the_number_of_bits(tmp_path, digits, capsys, monkeypatch):
    X, y, _, _ = digits
    encode_file(DISH(n_bits=13, n_anchors=30).fit(X[:200], y[:200]), X, tmp_path / "codes.npy", ALONE)
    assert note_of(tmp_path / "codes.npy").n_bits(2) == 13
    assert note_of(tmp_path / "codes.npy").n_bits(3) == 24  # the note is about narrower codes
    assert note_of(tmp_path / "other.npy").n_bits(2) == 16
    code, _, _ = run(capsys, monkeypatch, "index", tmp_path / "codes.npy", "-o", tmp_path / "ix.dish")
    assert code == 0
    assert HammingIndex.load(tmp_path / "ix.dish").n_bits == 13


def test_a_note_about_other_codes_is_ignored(codes_file, caplog):
    note_model(codes_file, ONE)
    assert model_of(codes_file) == ONE
    codes = np.load(codes_file)
    codes[-1, -1] ^= 1
    np.save(codes_file, codes)
    with caplog.at_level(logging.INFO):
        assert model_of(codes_file) is None
    assert "about other codes" in caplog.text


def test_missing_and_damaged_notes_are_ignored(codes_file, caplog):
    with caplog.at_level(logging.INFO):
        assert model_of(codes_file) is None
    assert "is unknown" in caplog.text
    note_model(codes_file, ONE)
    for text in ("", "[]", "{}", '{"model": 3, "codes": 4}', "null"):
        codes_file.with_name("codes.npy.model.json").write_text(text)
        assert model_of(codes_file) is None
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        note_model(codes_file, "DISH")


def test_an_index_refuses_codes_of_another_model(tmp_path, caplog):
    ix = HammingIndex(64, model=ONE)
    ix.save(tmp_path / "ix.dish")
    loaded = HammingIndex.load(tmp_path / "ix.dish")
    assert loaded.model == ONE
    loaded.check_model(ONE)
    said = rf"the index holds .* {ONE}, but the model of q\.npy has the fingerprint {OTHER}\..*again"
    with pytest.raises(ModelMismatchError, match=said):
        loaded.check_model(OTHER, "the model of q.npy")
    with caplog.at_level(logging.INFO):
        loaded.check_model(None)
        HammingIndex(64).check_model(OTHER)
    assert caplog.text.count("not checked") == 2
    with pytest.raises(ValueError, match=r"model must be .* got 'DISH'"):
        HammingIndex(64, model="DISH")
