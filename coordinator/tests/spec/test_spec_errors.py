"""Every error of a job document names line, field, value and what is allowed."""

from __future__ import annotations

import pytest

from crosstrain.spec import SpecError, build_model, parse_document

JOB = """name: demo
model: cnn2
data: {train: train.csv, test: test.csv}
training:
  epochs: 3
  batch_size: 64
  optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}
  seed: 7
engines: [torch, reference]
repeats: 2
runs_of: {reference: 1}
"""


def violations(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(SpecError) as caught:
        parse_document(text)
    assert caught.value.reason in ("INVALID_JOB", "INVALID_MODEL")
    return [(item.line, item.field, item.message) for item in caught.value.violations]


def test_the_job_itself_is_fine() -> None:
    spec = parse_document(JOB)
    assert spec.repeats_of("torch") == 2
    assert spec.repeats_of("reference") == 1


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "message"),
    [
        ("epochs: 3", "epoch: 3", 5, "training.epoch", "unknown field; did you mean epochs?"),
        ("epochs: 3", "epochs: 0", 5, "training.epochs", "must be at least 1, not 0"),
        ("epochs: 3", "epochs: 3.0", 5, "training.epochs", "must be an integer, not 3.0"),
        ("epochs: 3", "epochs: '3'", 5, "training.epochs", "must be an integer, not '3'"),
        ("epochs: 3", "epochs: true", 5, "training.epochs", "must be an integer, not true"),
        ("0.05", "0", 7, "training.optimizer.sgd.learning_rate", "must be greater than 0, not 0"),
        ("0.05", ".nan", 7, "training.optimizer.sgd.learning_rate", "must be a finite number, not nan"),
        ("0.05", ".inf", 7, "training.optimizer.sgd.learning_rate", "must be a finite number, not inf"),
        ("0.9", "1", 7, "training.optimizer.sgd.momentum", "must be less than 1, not 1"),
        ("momentum", "momentun", 7, "training.optimizer.sgd.momentun", "unknown field; did you mean momentum?"),
        ("seed: 7", "seed: -1", 8, "training.seed", "must be at least 0, not -1"),
        ("seed: 7", "seed: 2147483648", 8, "training.seed", "must be at most 2147483647, not 2147483648"),
        ("[torch, reference]", "[]", 9, "engines", "must hold at least 1 values, not 0"),
        ("[torch,", "[Torch,", 9, "engines[0]",
         "must be an engine: name or name@version in lower case, with settings of 'parallel' in brackets "
         "where they differ, as in torch[data=2]; not 'Torch'"),
        ("[torch,", "[torch, torch,", 9, "engines[1]", "'torch' is listed twice; repeats: N runs each N times"),
        ("reference: 1}", "lasagne: 1}", 11, "runs_of.lasagne",
         "'lasagne' is not one of the engines: torch, reference"),
        ("reference: 1}", "reference: 3}", 11, "runs_of.reference", "3 is more than repeats, which is 2"),
        ("train.csv", "3", 3, "data.train", "must be a text, not 3"),
        ("test: test.csv", "labels: hot", 3, "data.labels", "must be 'index', 'map' or 'onehot', not 'hot'"),
        ("test: test.csv", "label: 1.5", 3, "data.label", "must be a text or an integer, not 1.5"),
        ("test: test.csv", "label_values: [1]", 3, "data.label_values", "must hold at least two values, all different"),
        ("name: demo", "name: ../x", 1, "name", "must be 1 to 128 letters, digits, '-', '_' or '.', not '../x'"),
        ("name: demo", "name:", 1, "name", "must be a text, not nothing"),
        ("cnn2", "net.yaml", 2, "model", "the model file 'net.yaml' is read by the command line only; "
         "here the layers must be written out"),
    ],
)  # fmt: skip
def test_one_wrong_value(old: str, new: str, line: int, field: str, message: str) -> None:
    assert old in JOB
    assert violations(JOB.replace(old, new, 1)) == [(line, field, message)]


def test_several_wrong_values_come_in_order_of_lines() -> None:
    found = violations(JOB.replace("epochs: 3", "epochs: 0").replace("name: demo", "name: 1").replace("seed", "sed"))
    assert [(line, field) for line, field, _ in found] == [(1, "name"), (5, "training.epochs"), (8, "training.sed")]


def test_a_missing_field_has_the_line_of_what_lacks_it() -> None:
    found = violations(JOB.replace("{sgd: {learning_rate: 0.05, momentum: 0.9}}", "{sgd: {momentum: 0.9}}"))
    assert found == [(7, "training.optimizer.sgd.learning_rate", "is missing")]
    assert (1, "engines", "is missing") in violations(JOB.replace("engines:", "engine:"))


def test_exactly_one_optimizer() -> None:
    both = JOB.replace("momentum: 0.9}", "momentum: 0.9}, adam: {learning_rate: 1}")
    ((line, field, message),) = violations(both)
    assert (line, field) == (7, "training.optimizer")
    assert "exactly one rule" in message
    assert "adadelta" in message
    assert violations(JOB.replace("  optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}\n", "")) == [
        (4, "training.optimizer", "is missing, for example {sgd: {learning_rate: 0.05}}")
    ]


def test_a_union_reports_the_alternative_that_was_meant() -> None:
    text = JOB.replace("seed: 7", "schedule: {decay: {step: {factor: 2, every_steps: 5}}}")
    assert violations(text) == [(8, "training.schedule.decay.step.factor", "must be at most 1, not 2")]
    text = JOB.replace("seed: 7", "schedule: {decay: linear}")
    assert violations(text) == [
        (8, "training.schedule.decay", "must be 'constant' or a mapping, not 'linear'")
    ]
    text = JOB.replace("seed: 7", "schedule: {decay: {step: {factor: 0.5}}}")
    assert violations(text) == [(8, "training.schedule.decay.step", "give either every_steps or every_epochs")]


def test_layers() -> None:
    text = JOB.replace(
        "model: cnn2",
        "model:\n  layers:\n  - conv: {channels: 1}\n"
        "  - convolution: {channels: 8, kernel: [3, 'x'], padding: {begin: 1}}\n"
        "  - {dense: {units: many}}\n  - softmax\n  - {relu: {}, flatten: {}}",
    )
    found = violations(text)
    assert (4, "model.layers[0].conv", "unknown field; did you mean convolution?") in found
    assert (5, "model.layers[1].convolution.kernel[1]", "must be an integer, not 'x'") in found
    assert (5, "model.layers[1].convolution.padding.end", "is missing") in found
    assert (6, "model.layers[2].dense.units", "must be an integer or 'classes', not 'many'") in found
    by_field = {field: message for _, field, message in found}
    assert "'softmax' is not a layer" in by_field["model.layers[3]"]
    assert "exactly one kind" in by_field["model.layers[4]"]


def test_the_task_decides_about_weights() -> None:
    digest = "a" * 64
    assert violations(JOB + f"weights: [{digest}]\n")[0][1] == "weights"
    evaluate = JOB.replace("name: demo", "name: demo\ntask: evaluate")
    assert violations(evaluate)[0][1] == "weights"
    assert parse_document(evaluate + f"weights: [{digest}]\n").weights == [digest]
    assert violations(evaluate + "weights: [abc]\n")[0][2].startswith("must be a SHA-256 digest")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("", None, "empty"),
        ("# nothing\n", None, "empty"),
        ("- 1\n", 1, "must be a mapping"),
        ("name: [\n", 2, "not valid YAML"),
        ("a: 1\nb:\n  - c\n d: 2\n", 4, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "'a' is given in line 1 already"),
        ("a: {b: 1,\n b: 2}\n", 2, "'b' is given in line 1 already"),
        ("a: &x [1]\nb: *x\n", 1, "anchors and aliases"),
        ("a: 1\nb: *a\n", 2, ""),
        ("base: 1\na:\n  <<: {b: 1}\n", 3, "merges"),
        ("a: !!python/object:os.system x\n", 1, "tags"),
        ("a: !x 1\n", 1, "tags"),
        ("a: 1\n---\nb: 2\n", 3, "more than one document"),
        ("? [a]\n: 1\n", 1, "name of a field must be a text"),
        ("x: " + "[" * 100 + "]" * 100, 1, "nested more than 24 deep"),
        ("x: " + "9" * 5000, 1, "a number of 5000 digits"),
        ("x: [" + "1, " * 30_000 + "1]", 1, "more than 20000 values"),
        ("x: \x00", None, "not valid YAML"),
    ],
)
def test_hostile_text(text: str, line: int | None, part: str) -> None:
    found = violations(text)
    assert found[0][0] == line
    assert part in found[0][2]


def test_a_huge_document_is_refused_before_it_is_read() -> None:
    assert violations("x: " + "y" * (1 << 20))[0][2] == "the document is larger than 1048576 bytes"


def test_billion_laughs_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert "anchors" in violations("\n".join(lines))[0][2]


def test_json_is_accepted_with_lines() -> None:
    text = (
        '{"name": "x",\n\t"model": "cnn2",\n\t"engines": ["torch"],\n'
        '\t"training": {"optimizer": {"sgd": {"learning_rate": 1e-2}}}}'
    )
    spec = parse_document(text)
    assert spec.training.optimizer is not None
    assert spec.training.optimizer.rule.learning_rate == 0.01
    assert violations(text.replace("1e-2", '"fast"')) == [
        (4, "training.optimizer.sgd.learning_rate", "must be a number, not 'fast'")
    ]


def test_the_message_of_the_error_names_line_and_field() -> None:
    with pytest.raises(SpecError) as caught:
        parse_document(JOB.replace("epochs: 3", "epochs: 0"))
    assert caught.value.message == "line 5: training.epochs: must be at least 1, not 0"
    (violation,) = caught.value.violations
    assert violation.text("job.yaml") == "job.yaml:5: training.epochs: must be at least 1, not 0"
    assert violation.description == "line 5: must be at least 1, not 0"


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "explicit"),
    [
        ((3, 224, 224), 7, 2, "padding: {begin: [2, 2], end: [3, 3]}"),  # keras PR 9629
        ((1, 28, 28), 3, 1, "padding: [1, 1]"),
        ((1, 28, 28), 2, 2, "padding: [0, 0]"),
        ((1, 5, 28), "[3, 4]", "[2, 3]", "padding: {begin: [1, 1], end: [1, 2]}"),
        ((2, 9), 4, 1, "padding: {begin: [1], end: [2]}"),
    ],
)
def test_same_padding_is_refused_with_what_to_write(
    shape: tuple[int, ...], kernel: object, stride: object, explicit: str
) -> None:
    layer = f"{{channels: 8, kernel: {kernel}, stride: {stride}, padding: same}}"
    text = JOB.replace(
        "model: cnn2", f"model:\n  layers:\n  - convolution: {layer}\n  - flatten\n  - dense: {{units: classes}}"
    )
    with pytest.raises(SpecError) as caught:
        build_model(parse_document(text), shape, 5)
    (violation,) = caught.value.violations
    assert (violation.line, violation.field) == (4, "model.layers[0].convolution.padding")
    assert violation.message.endswith(explicit)
    assert caught.value.reason == "INVALID_MODEL"
