import numpy as np
import pytest

from crosstrain_reference import Optimizer, clip_by_global_norm, global_norm

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def run(optimizer, w, gradients, rates, dtype=np.float64):
    """Return the values of a one-element parameter after every step."""
    params = {"w": np.array([w], dtype)}
    state = optimizer.init_state(params)
    values = []
    for step, (g, lr) in enumerate(zip(gradients, rates), start=1):
        params, state = optimizer.update(params, {"w": np.array([g], dtype)}, state, lr, step)
        values.append(float(params["w"][0]))
    return values


def test_sgd():
    assert run(Optimizer("sgd"), 1.0, [2.0, 4.0], [0.25, 0.25]) == [0.5, -0.5]
    assert Optimizer("sgd").init_state({"w": np.ones(2)}) == {}


def test_momentum_keeps_the_learning_rate_inside():
    """When lr drops from 1 to 1/8 the old velocity keeps its size; outside, it would shrink by 8 at once."""
    values = run(Optimizer("sgd", momentum=0.5), 0.0, [1.0, 1.0, 1.0], [1.0, 1.0, 0.125])
    assert values == [-1.0, -2.5, -2.5 - (0.5 * 1.5 + 0.125)]
    outside = -2.5 - 0.125 * (0.5 * 1.5 + 1.0)
    assert values[2] != outside


def test_nesterov_has_two_equal_forms():
    gradients, rates = [1.0, -2.0, 0.5, 3.0], [0.5, 0.5, 0.25, 0.25]
    values = run(Optimizer("sgd", momentum=0.5, nesterov=True), 0.0, gradients, rates)
    w, old, expected = 0.0, 0.0, []
    for g, lr in zip(gradients, rates):
        new = 0.5 * old + lr * g
        w -= 1.5 * new - 0.5 * old
        expected.append(w)
        old = new
    assert values == expected


def test_adam_epsilon_is_added_after_bias_correction():
    """g = eps at step 1: half a step.  With epsilon added before, the step would be 1 / (1 + 31.6)."""
    (value,) = run(Optimizer("adam", **ADAM), 0.0, [1e-8], [1.0])
    assert abs(value + 0.5) < 1e-12
    hat = np.sqrt(1 - 0.999) / (1 - 0.9) * (0.1 * 1e-8) / (np.sqrt(0.001) * 1e-8 + 1e-8)
    assert abs(hat - 1 / (1 + 1 / np.sqrt(0.001))) < 1e-12


def test_adam_three_steps():
    gradients, m, v, w, expected = [0.3, -0.1, 0.7], 0.0, 0.0, 1.0, []
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        expected.append(w)
    assert np.allclose(
        run(Optimizer("adam", **ADAM), 1.0, gradients, [0.01] * 3), expected, rtol=1e-14, atol=0
    )


def test_rmsprop_epsilon_is_outside_the_root():
    (value,) = run(Optimizer("rmsprop", rho=0.75, eps=1.0), 0.0, [0.1], [1.0])
    assert abs(value + 0.1 / (0.05 + 1.0)) < 1e-15
    assert abs(value + 0.1 / np.sqrt(0.0025 + 1.0)) > 4e-3


def test_adagrad():
    optimizer = Optimizer("adagrad", eps=0.5, initial_accumulator=7.0)
    assert optimizer.init_state({"w": np.zeros(1, np.float32)})["w.accumulator"].tolist() == [7.0]
    assert run(optimizer, 0.0, [3.0, 3.0], [9.0, 9.0])[0] == -27.0 / 4.5
    assert run(optimizer, 0.0, [3.0, 3.0], [9.0, 9.0])[1] == -27.0 / 4.5 - 27.0 / 5.5


def update(optimizer, w, g, lr=1.0):
    params = {name: np.array(value, np.float64) for name, value in w.items()}
    grads = {name: np.array(value, np.float64) for name, value in g.items()}
    return optimizer.update(params, grads, optimizer.init_state(params), lr, 1)[0]


def test_weight_decay_applies_once_and_to_named_parameters_only():
    """The gradient grows by lambda w, not 2 lambda w."""
    optimizer = Optimizer("sgd", weight_decay=0.25, decayed=["a"])
    new = update(optimizer, {"a": [4.0], "b": [4.0]}, {"a": [1.0], "b": [1.0]}, 0.5)
    assert (new["a"][0], new["b"][0]) == (4.0 - 0.5 * (1.0 + 0.25 * 4.0), 3.5)


def test_decoupled_decay_leaves_the_gradient_alone():
    optimizer = Optimizer(
        "adam", beta1=0.0, beta2=0.0, eps=0.0, weight_decay=0.25, decoupled=True, decayed=["a"]
    )
    new = update(optimizer, {"a": [4.0], "b": [4.0]}, {"a": [8.0], "b": [8.0]}, 0.5)
    assert (new["a"][0], new["b"][0]) == (4.0 * (1 - 0.5 * 0.25) - 0.5, 3.5)


def test_clipping_takes_the_norm_over_all_parameters():
    grads = {"a": np.array([3.0]), "b": np.array([0.0, 4.0])}
    assert global_norm(grads) == 5.0
    clipped, norm = clip_by_global_norm(grads, 1.0)
    assert norm == 5.0
    assert np.allclose(clipped["a"], 0.6, rtol=1e-15) and np.allclose(clipped["b"], [0, 0.8], rtol=1e-15)
    assert clip_by_global_norm(grads, 6.0)[0]["a"][0] == 3.0


def test_clipping_comes_before_decay():
    optimizer = Optimizer("sgd", clip_norm=1.0, weight_decay=0.5, decayed={"a", "b"})
    new = update(optimizer, {"a": [10.0], "b": [0.0]}, {"a": [3.0], "b": [4.0]})
    assert abs(new["a"][0] - (10.0 - 0.6 - 5.0)) < 1e-14
    assert abs(new["b"][0] + 0.8) < 1e-15


RULES = [
    ("sgd", {}, ()),
    ("sgd", {"momentum": 0.9}, ("velocity",)),
    ("sgd", {"momentum": 0.9, "nesterov": True}, ("velocity",)),
    ("rmsprop", {"rho": 0.9, "eps": 1e-8}, ("mean_square",)),
    ("adagrad", {"eps": 1e-8, "initial_accumulator": 0.1}, ("accumulator",)),
    ("adam", ADAM, ("m", "v")),
]


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule, constants, suffixes", RULES)
def test_dtype_names_and_untouched_inputs(rng, rule, constants, suffixes, dtype, decoupled):
    wide = {name: value if value is True else np.float64(value) for name, value in constants.items()}
    optimizer = Optimizer(
        rule,
        weight_decay=np.float64(0.1),
        decoupled=decoupled,
        decayed=["c.weight"],
        clip_norm=np.float64(0.5),
        **wide,
    )
    params = {"c.weight": rng.randn(3, 2).astype(dtype), "c.bias": rng.randn(3).astype(dtype)}
    grads = {name: rng.randn(*value.shape).astype(dtype) for name, value in params.items()}
    state = optimizer.init_state(params)
    assert set(state) == {f"{name}.{suffix}" for name in params for suffix in suffixes}
    groups = (params, grads, state)
    before = [{name: value.copy() for name, value in group.items()} for group in groups]
    new_params, new_state = optimizer.update(params, grads, state, np.float64(0.1), 1)
    for group, copy in zip(groups, before):
        assert all(np.array_equal(group[name], copy[name]) for name in copy)
    assert list(new_params) == list(params) and set(new_state) == set(state)
    assert all(value.dtype == dtype for value in list(new_params.values()) + list(new_state.values()))
    assert all(np.any(new_params[name] != params[name]) for name in params)


@pytest.mark.parametrize(
    "rule, constants, message",
    [
        ("lars", {}, "unknown rule 'lars'"),
        ("adam", {"beta1": 0.9, "beta2": 0.999}, r"missing constants \['eps'\]"),
        ("sgd", {"dampening": 0.9}, r"unknown constants \['dampening'\]"),
        ("sgd", {"momentum": 1.0}, "momentum is 1.0, expected 0 <= value < 1"),
        ("sgd", {"nesterov": True}, "nesterov needs momentum"),
        ("sgd", {"weight_decay": -1.0}, "weight_decay is -1.0"),
        ("sgd", {"clip_norm": 0.0}, "clip_norm is 0.0"),
        ("rmsprop", {"rho": 0.9, "eps": float("nan")}, "eps is nan"),
    ],
)
def test_constants_are_checked(rule, constants, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(rule, **constants)


def test_arrays_are_checked():
    optimizer = Optimizer("sgd", momentum=0.5)
    params = {"w": np.ones(2)}
    state = optimizer.init_state(params)
    with pytest.raises(ValueError, match=r"gradients do not match the parameters at \['v'\]"):
        optimizer.update(params, {"w": np.ones(2), "v": np.ones(2)}, state, 0.1, 1)
    with pytest.raises(ValueError, match=r"state do not match the parameters at \['w.velocity'\]"):
        optimizer.update(params, params, {}, 0.1, 1)
    with pytest.raises(ValueError, match=r"gradient of w has shape \(3,\), expected \(2,\)"):
        optimizer.update(params, {"w": np.ones(3)}, state, 0.1, 1)
    with pytest.raises(TypeError, match="gradient is float32"):
        optimizer.update(params, {"w": np.ones(2, np.float32)}, state, 0.1, 1)
    with pytest.raises(ValueError, match="step is 0"):
        optimizer.update(params, params, state, 0.1, 0)
    with pytest.raises(ValueError, match=r"decayed do not match the parameters at \['typo'\]"):
        Optimizer("sgd", weight_decay=0.1, decayed=["typo"]).update(params, params, {}, 0.1, 1)
