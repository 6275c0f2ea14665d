"""F(x): NumPy and torch agree, both agree with plain loops, ONNX agrees with torch, and files keep every function."""

import math

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from dish import encoder
from dish.encoder import Classifiers, Encoder, FeatureMap, HashFunction, Linear, Posterior
from dish.errors import InputError, UnsupportedError

CPU = torch.device("cpu")
N, D, M, L, R = 90, 5, 12, 4, 11  # R is not a multiple of 8
GAMMA = 0.15
ROUNDING = {np.float32: 3e-5, np.float64: 1e-13}  # of F, relative to its largest value


def cubic(X, A):
    return ((X - 100) @ (A - 100).T / 10 + 1) ** 3


KERNELS = {"rbf": "rbf", "linear": "linear", "rbf+linear": "rbf+linear", "custom": cubic}


def make_rows(dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((N, D)) + 100).astype(dtype)  # far from the origin: distances need the centre


def make_features(kernel, dtype=np.float64):
    X = make_rows(dtype)
    anchors = X[:0] if kernel == "linear" else X[:M]
    centre = X.mean(0)
    features = FeatureMap(KERNELS[kernel], anchors, GAMMA, centre)
    return FeatureMap(KERNELS[kernel], anchors, GAMMA, centre, features.raw(X).mean(0))


def make_function(name, m, dtype=np.float64):
    rng = np.random.default_rng(1)

    def draw(*shape):
        return rng.standard_normal(shape).astype(dtype)

    if name == "linear":
        return Linear(draw(m, R), draw(R))
    if name == "classifiers":
        K, h = rng.standard_normal((40, m)), np.where(rng.random((40, R)) < 0.5, -1, 1)
        return Classifiers([GaussianNB().fit(K, bit) for bit in h.T])
    link, power = {"softmax": ("softmax", 1), "sigmoid": ("sigmoid", 1), "sigmoid²": ("sigmoid", 2)}[name]
    return Posterior(draw(m, L), draw(L), draw(L, R), draw(R), link, power)


FUNCTIONS = ("linear", "softmax", "sigmoid", "sigmoid²", "classifiers")


# --- error diffusion ---


def loops(p, V, offset, share):
    """F with error diffusion, from the definition."""
    F, z = p @ V + offset, np.zeros((len(p), V.shape[1]))
    for i in range(len(p)):
        for j in range(V.shape[1]):
            e = [sum((np.sign(z[i, k]) - F[i, k]) * V[m, k] for k in range(j)) for m in range(len(V))]
            z[i, j] = F[i, j] - share * sum(p[i, m] * e[m] * V[m, j] for m in range(len(V)))
    return np.where(np.sign(z) == np.sign(F), np.sign(F) * np.maximum(np.abs(F), 1e-3), 1e-3 * np.sign(z))


def some_probabilities(n=50, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(L, 0.5), n), np.where(rng.random((L, 24)) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_error_diffusion_equals_its_formula(convert, share):
    p, V = some_probabilities()
    offset = np.linspace(-0.1, 0.1, 24)
    F = encoder.projected(*map(convert, (p, V, offset)), share)
    assert type(F) is type(convert(p))
    np.testing.assert_allclose(np.asarray(F), loops(p, V, offset, share), atol=1e-9)
    plain = encoder.projected(*map(convert, (p, V, offset)))
    np.testing.assert_allclose(np.asarray(plain), p @ V + offset, atol=1e-12)
    assert 0.02 < ((np.asarray(F) >= 0) != (np.asarray(plain) >= 0)).mean() < 0.5


def test_error_diffusion_keeps_prefixes_and_gives_certain_rows_their_codeword():
    p, V = some_probabilities()
    zero = np.zeros(24)
    whole = encoder.projected(p, V, zero, 0.5)
    np.testing.assert_allclose(encoder.projected(p, V[:, :9], zero[:9], 0.5), whole[:, :9], atol=1e-12)
    np.testing.assert_array_equal(encoder.projected(np.eye(L), V, zero, 0.5), V)


def test_a_posterior_with_error_diffusion_is_kept_by_files_and_older_ones_have_none():
    p, V = some_probabilities()
    function = Posterior(np.eye(L), np.zeros(L), V, np.zeros(24), "softmax", diffused=0.5)
    arrays, values = encoder.to_arrays(function)
    again = encoder.from_arrays(arrays, values)
    np.testing.assert_array_equal(again(np.log(p)), function(np.log(p)))
    np.testing.assert_allclose(function(np.log(p)), loops(p, V, 0, 0.5), atol=1e-9)
    plain = Posterior(np.eye(L), np.zeros(L), V, np.zeros(24), "softmax")
    arrays, values = encoder.to_arrays(plain)
    assert "diffused" not in values
    assert encoder.from_arrays(arrays, values).diffused == 0


def make_encoder(kernel, function, dtype=np.float64):
    features = make_features(kernel, dtype)
    return Encoder(features, make_function(function, features.m, dtype))


def features_by_loops(features, x):
    """k(x) of one row, from the definition."""
    A = features.anchors.astype(np.float64)
    if callable(features.kernel):
        raw = [float(features.kernel(x[None], a[None])[0, 0]) for a in A]
    elif features.kernel == "linear":
        raw = list(x)
    else:
        raw = [math.exp(-features.gamma * sum((xi - ai) ** 2 for xi, ai in zip(x, a, strict=True))) for a in A]
    if features.kernel == "rbf+linear":
        linear = [math.sqrt(features.gamma) * (xi - ci) for xi, ci in zip(x, features.centre, strict=True)]
        length = math.sqrt(sum(v * v for v in linear))
        raw += [v * min(1.0, encoder.LONGEST_LINEAR / length) for v in linear]
    return [value - mean for value, mean in zip(raw, features.mean, strict=True)]


def F_by_loops(made, X):
    """F of all rows, from the definitions, in float64."""
    f, found = made.function, []
    for x in X.astype(np.float64):
        k = features_by_loops(made.features, x)
        if isinstance(f, Linear):
            row = [sum(k[j] * f.W[j, b] for j in range(len(k))) + f.intercept[b] for b in range(R)]
        elif isinstance(f, Classifiers):
            row = [2 * model.predict_proba([k])[0, 1] - 1 for model in f.models]
        else:
            z = [sum(k[j] * f.B[j, c] for j in range(len(k))) + f.b[c] for c in range(L)]
            if f.link == "softmax":
                total = sum(map(math.exp, z))
                p = [math.exp(v) / total for v in z]
            else:
                p = [1 / (1 + math.exp(-v)) for v in z]
            row = [sum(p[c] ** f.power * f.V[c, b] for c in range(L)) + f.offset[b] for b in range(R)]
        found.append(row)
    return np.array(found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_numpy_and_torch_agree_on_every_bit_beyond_rounding_error(kernel, function, dtype):
    made = make_encoder(kernel, function, dtype)
    X = make_rows(dtype, seed=2)
    by_numpy, by_torch = made(X), made.to(CPU)(torch.from_numpy(X)).numpy()
    error = ROUNDING[np.float32 if function == "classifiers" else dtype] * np.abs(by_numpy).max()
    np.testing.assert_allclose(by_torch, by_numpy, atol=error, rtol=0)
    clear = np.abs(by_numpy) > error
    assert clear.mean() > 0.99
    np.testing.assert_array_equal((by_torch >= 0)[clear], (by_numpy >= 0)[clear])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_F_is_that_of_plain_loops(kernel, function, dtype):
    made = make_encoder(kernel, function, dtype)
    X = make_rows(dtype, seed=2)[:20]
    expected = F_by_loops(made, X)
    tolerance = (1e-4 if dtype == np.float32 else 1e-6 if function == "classifiers" else 1e-11) * abs(expected).max()
    np.testing.assert_allclose(made(X), expected, atol=tolerance, rtol=0)
    for each in (made, made.to(CPU)):  # their results are float32
        np.testing.assert_allclose(each.decision_values(X), expected, atol=tolerance, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")  # the exporter warns about itself
@pytest.mark.parametrize("function", ["linear", "softmax", "sigmoid²"])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "rbf+linear"])
def test_onnx_equals_torch(kernel, function, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    made = make_encoder(kernel, function, np.float32).to(CPU)

    class Module(torch.nn.Module):
        def forward(self, x):
            return made(x)

    X, path = make_rows(np.float32, seed=2), tmp_path / "encoder.onnx"
    torch.onnx.export(
        Module(),
        (torch.from_numpy(X[:2]),),
        str(path),
        input_names=["x"],
        output_names=["F"],
        dynamic_axes={"x": {0: "n"}, "F": {0: "n"}},
        dynamo=False,
    )
    (found,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    expected = made(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(found, expected, atol=ROUNDING[np.float32] * np.abs(expected).max(), rtol=0)


def test_blocks_of_rows_give_what_one_block_gives(monkeypatch):
    made, X = make_encoder("rbf+linear", "softmax"), make_rows(seed=2)
    whole, p = made.decision_values(X), made.probabilities(X)
    assert whole.dtype == p.dtype == np.float32
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    monkeypatch.setattr(encoder, "ROWS_IN_CACHE", 7)
    for each in (made, made.to(CPU)):
        np.testing.assert_allclose(each.decision_values(X), whole, atol=1e-6)
        np.testing.assert_allclose(each.probabilities(X), p, atol=1e-6)


def test_no_rows_give_no_values():
    for each in (make_encoder("rbf", "linear"), make_encoder("rbf", "linear").to(CPU)):
        assert each.decision_values(make_rows()[:0]).shape == (0, R)


@pytest.mark.parametrize("kernel", KERNELS)
def test_encoding_does_not_change_its_input(kernel):
    made, X = make_encoder(kernel, "linear"), make_rows(seed=2)
    before, tensor = X.copy(), torch.from_numpy(X.copy())
    made(X)
    made.decision_values(X)
    made.to(CPU)(tensor)
    made.to(CPU).decision_values(X)  # its tensors share the memory of X
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(tensor, before)


@pytest.mark.parametrize("on_torch", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "rbf+linear"])
def test_raw_features_can_be_written_into_given_memory(kernel, on_torch):
    features, X = make_features(kernel), make_rows(seed=2)
    if on_torch:
        features, X = features.to(CPU), torch.from_numpy(X)
        out = torch.empty(N, features.m, dtype=torch.float64)
    else:
        out = np.empty((N, features.m))
    assert features.raw(X, out=out) is out
    np.testing.assert_allclose(np.asarray(out), np.asarray(features.raw(X)), atol=1e-15)


def test_features_in_two_parts_are_those_in_one(monkeypatch):
    """TF32 products on a GPU need both factors in two parts; the CPU can run the same code."""
    features = make_features("rbf", np.float32).to(CPU)
    X = torch.from_numpy(make_rows(np.float32, seed=2))
    plain = features.raw(X)
    monkeypatch.setattr(encoder, "worth_splitting", lambda A: True)
    split, out = features.mapped(torch.clone), torch.empty_like(plain)
    assert split.raw(X, out=out) is out
    assert len(split._centred_anchors) == 3
    for found in (out, split.raw(X)):
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)


def test_the_linear_part_of_an_outlier_is_scaled_down():
    made = make_encoder("rbf+linear", "linear")
    X = make_rows(seed=2)[:2]
    X[1] = 1e6
    for features, rows in ((made.features, X), (made.features.to(CPU), torch.from_numpy(X))):
        linear = np.asarray(features.raw(rows))[:, M:]
        lengths = np.linalg.norm(linear, axis=1)
        assert lengths[0] < encoder.LONGEST_LINEAR
        assert lengths[1] == pytest.approx(encoder.LONGEST_LINEAR)


def test_an_outlier_has_finite_features_that_are_nearly_zero():
    features = make_features("rbf", np.float32)
    X = np.full((1, D), 1e15, np.float32)
    for raw in (features.raw(X), features.to(CPU).raw(torch.from_numpy(X)).numpy()):
        np.testing.assert_array_equal(raw, np.zeros((1, M)))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            lambda X, A: np.zeros(3),
            r"shape \(4, 2\) for 4 rows and 2 anchors, got \(3,\)",
        ),
        (lambda X, A: np.full((len(X), len(A)), np.nan), "kernel returned NaN or infinity"),
    ],
)
def test_bad_values_of_a_custom_kernel_are_refused(kernel, message):
    with pytest.raises(InputError, match=message):
        FeatureMap(kernel, np.zeros((2, D)), 1.0, np.zeros(D)).raw(np.zeros((4, D)))


def test_a_custom_kernel_that_returns_its_input_cannot_change_it():
    features = FeatureMap(lambda X, A: X, np.eye(D), 1.0, np.zeros(D), np.ones(D))
    X = make_rows()
    before = X.copy()
    np.testing.assert_array_equal(features(X), X - 1)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize(("kernel", "m"), [("rbf", M), ("linear", D), ("rbf+linear", M + D), ("custom", M)])
def test_number_of_features(kernel, m):
    features = make_features(kernel)
    assert features.m == m
    assert features(make_rows()).shape == (N, m)


# --- Hash functions ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["linear", "softmax", "sigmoid", "sigmoid²"])
def test_arrays_restore_a_hash_function(name, dtype):
    function = make_function(name, M, dtype)
    arrays, values = encoder.to_arrays(function.to(CPU))
    assert all(isinstance(a, np.ndarray) for a in arrays.values())
    again = encoder.from_arrays(arrays, values)
    assert type(again) is type(function)
    assert again.n_bits == function.n_bits == R
    K = np.random.default_rng(2).standard_normal((6, M)).astype(dtype)
    np.testing.assert_array_equal(again(K), function(K))


def test_from_arrays_leaves_its_arguments_alone():
    arrays, values = encoder.to_arrays(make_function("linear", M))
    before = dict(values)
    encoder.from_arrays(arrays, values)
    assert values == before == {"kind": "Linear"}


def test_unknown_kinds_of_hash_function_are_refused():
    with pytest.raises(KeyError, match="Quadratic"):
        encoder.from_arrays({}, {"kind": "Quadratic"})


def test_classifiers_cannot_be_turned_into_arrays():
    with pytest.raises(UnsupportedError, match="GaussianNB classifiers cannot be saved without pickle"):
        encoder.to_arrays(make_function("classifiers", M))


def test_every_kind_of_hash_function_is_registered():
    assert {Linear, Posterior, Classifiers} <= set(HashFunction.KINDS.values())
    assert all(kind.__name__ == name for name, kind in HashFunction.KINDS.items())


def test_a_linear_function_takes_one_intercept_for_all_bits_or_one_each():
    W = np.random.default_rng(0).standard_normal((3, 2))
    K = np.random.default_rng(1).standard_normal((7, 3))
    np.testing.assert_array_equal(Linear.of(W).intercept, [0, 0])
    np.testing.assert_allclose(Linear.of(W, 0.5)(K), K @ W + 0.5, rtol=1e-6)
    np.testing.assert_allclose(Linear.of(W, [0.5, -1.0])(K), K @ W + [0.5, -1.0], rtol=1e-6)


@pytest.mark.parametrize(("power", "expected"), [(1, [0.5, 0.2]), (2, [0.25, 0.04]), (0.5, [0.5**0.5, 0.2**0.5])])
def test_powers_of_probabilities(power, expected):
    np.testing.assert_allclose(encoder.raised(np.array([0.5, 0.2]), power), expected)


def test_decision_values_of_classifiers_without_a_decision_function():
    K = np.random.default_rng(0).standard_normal((30, 3))
    tree = DecisionTreeClassifier(max_depth=2, random_state=0).fit(K, np.where(K[:, 0] > 0, 1, -1))
    f = encoder.decision_values(tree, K)
    np.testing.assert_allclose(f, 2 * tree.predict_proba(K)[:, 1] - 1)
    np.testing.assert_array_equal(np.where(f >= 0, 1, -1), tree.predict(K))


def test_softmax_and_sigmoid_do_not_overflow():
    z = np.array([[1000.0, 0.0, -1000.0]])
    for make in (np.asarray, torch.from_numpy):
        np.testing.assert_allclose(np.asarray(encoder.softmax(make(z))), [[1, 0, 0]], atol=1e-12)
        np.testing.assert_allclose(np.asarray(encoder.sigmoid(make(z))), [[1, 0.5, 0]], atol=1e-12)


# --- Blocks ---


def test_row_blocks_cover_all_rows_once():
    for n in (0, 1, 511, 512, 513, 2000):
        rows = [i for block in encoder.row_blocks(n) for i in range(block.start, block.stop)]
        assert rows == list(range(n))
    assert [b.stop - b.start for b in encoder.row_blocks(10, 4)] == [4, 4, 2]


def test_a_gpu_gets_larger_blocks_than_a_cpu():
    assert encoder.rows_at_a_time(None, 1000) == encoder.rows_at_a_time(CPU, 1000) == encoder.ROWS_IN_CACHE
    assert encoder.rows_at_a_time(torch.device("cuda"), 1000, 64) == (1 << 26) // 1000
