"""The seeded faults: what is planted, in which engines, on which network, and what the verdict must name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from crosstrain.compare.certificate.platform_streams import Data
from crosstrain_service import weights
from tests.conformance.cases.builder import Case

from .nets import net

TORCH, TF, TF212 = "torch", "tensorflow@2.21", "tensorflow@2.12"
KERAS, KERAS212 = "keras-tensorflow@3.15", "keras-tensorflow@2.12"
THEANO, LASAGNE, CAFFE = "keras-theano", "lasagne", "caffe"

#: Engines that plants made at their interface are tried in; Theano compiles longer than the others run.
FAST = (TORCH, TF, CAFFE)


@dataclass(frozen=True)
class Fault:
    """One wrong convention. ``names``: the ids that the verdict must give, and no others.

    ``plant``: what the test engine does, "" for a fault of the job. ``job`` makes the case that is sent out
    of the one that is claimed; ``precision`` is what is sent.
    """

    title: str
    network: str
    engines: tuple[str, ...]
    names: frozenset[str]
    row: str
    plant: str = ""
    job: Callable[[Case], Case] | None = None
    precision: str = "float32"

    @property
    def claimed(self) -> Case:
        """What the engine is said to compute."""
        return net(self.network)

    @property
    def sent(self) -> Case:
        """What the engine is asked for."""
        case = self.job(self.claimed) if self.job else self.claimed
        name = f"fault.{self.plant}" if self.plant else "plain"
        return dataclasses.replace(case, name=f"{self.title}.{self.network}",
                                   model=dataclasses.replace(case.model, name=name))  # fmt: skip


def _faults() -> Iterator[Fault]:
    def plant(
        name: str, network: str, engines: tuple[str, ...], row: str, *names: str
    ) -> Fault:
        """A planted fault, named by the first two parts of its name unless ``names`` are given."""
        own = ".".join(name.split(".")[:2])
        return Fault(name, network, engines, frozenset(names or (own,)), row, plant=name)

    def job(name: str, network: str, engines: tuple[str, ...], row: str, make: Callable[[Case], Case]) -> Fault:
        return Fault(name + ".job", network, engines, frozenset({name}), row, job=make)

    def native(engine: str, network: str, row: str, *names: str) -> Fault:
        return Fault("native", network, (engine,), frozenset(names), row, plant="native")

    yield plant("input.scale_255", "plain", (*FAST, KERAS), "input")
    yield plant("input.channel_order", "plain", (*FAST, LASAGNE), "input")
    yield plant("input.spatial_transposed", "plain", FAST, "input")
    yield plant("input.rounded_bfloat16", "plain", (*FAST, KERAS), "precision")
    yield plant("input.rounded_tf32", "plain", FAST, "precision")
    yield plant("input.labels_off_by_one", "labels_low", (*FAST, KERAS), "loss")
    yield plant("input.labels_off_by_one.down", "labels_high", FAST, "loss")
    yield plant("input.labels_off_by_one.around", "plain", (TORCH, TF), "loss")
    yield job("input.scale_255", "bytes", (TORCH, TF, CAFFE), "input", _divided_by_one)
    yield job("input.channel_order", "plain", (TORCH, TF), "input", _channels_reversed)
    yield job("input.labels_off_by_one", "labels_low", (TORCH, TF), "loss", _labels_up)
    yield job("input.other_rows", "plain", (TORCH, TF, CAFFE), "input", _in_order)
    yield dataclasses.replace(job("input.other_rows", "plain", (TORCH, KERAS), "input", _other_seed),
                              title="input.other_rows.seed")  # fmt: skip
    yield job("weights.other_initial", "plain", (TORCH, CAFFE), "initial", _other_tensors)
    for engine in (TORCH, LASAGNE):
        yield Fault("input.other_dtype.job", "plain", (engine,), frozenset({"input.other_dtype"}), "precision",
                    precision="float64")  # fmt: skip

    yield plant("input.other_rows.every_epoch", "plain", (TORCH, CAFFE), "input")

    yield plant("weights.other_initial", "plain", FAST, "initial")
    yield plant("weights.kernel_transposed", "plain", (*FAST, KERAS), "convolution")
    yield plant("convolution.kernel_flipped", "plain", (*FAST, KERAS, LASAGNE, THEANO), "convolution")
    yield plant("convolution.padding_shifted", "stride2", (*FAST, KERAS), "same")
    yield plant("convolution.padding_shifted.symmetric", "stride2", FAST, "same")
    for kind in ("tf32", "bfloat16"):
        yield plant(f"precision.{kind}", "plain", (TORCH,), "precision")
    yield plant("precision.float16", "small_values", (TORCH,), "precision")

    yield plant("pool.ceil_for_floor", "odd_pool", FAST, "pool_size")
    yield plant("pool.origin_shifted", "plain", (*FAST, KERAS), "pool_size")
    yield plant("pool.average_for_max", "plain", FAST, "pool_size")
    yield plant("pool.max_for_average", "average", FAST, "pool_size")
    yield plant("pool.divisor_counts_padding", "average_excluding", FAST, "divisor")
    yield plant("pool.divisor_excludes_padding", "average_including", FAST, "divisor")
    yield native(CAFFE, "average_excluding", "divisor", "pool.divisor_counts_padding")
    for kind in ("split", "all", "last"):
        yield plant(f"pool.ties_{kind}", "ties", (TORCH,), "ties")
    yield native(LASAGNE, "ties", "ties", "pool.ties_all")
    yield plant("relu.half_at_zero", "zeros", (TORCH, TF, TF212), "relu")
    yield plant("relu.one_at_zero", "zeros", (TORCH, TF, LASAGNE), "relu")
    yield plant("relu.missing", "plain", FAST, "relu")
    yield native(LASAGNE, "plain", "relu", "pool.ties_all", "relu.half_at_zero")
    yield native(THEANO, "plain", "relu", "pool.ties_all", "relu.half_at_zero")

    yield plant("dense.rows_permuted_hwc", "plain", (*FAST, KERAS, LASAGNE), "flatten")
    yield plant("dense.transposed", "square_dense", FAST, "dense")
    yield plant("dense.rectified", "plain", (*FAST, LASAGNE), "dense")
    yield plant("dropout.rate_inverted", "dropout", (*FAST, KERAS), "dropout")
    yield plant("dropout.not_rescaled", "dropout", FAST, "dropout")
    yield plant("dropout.off", "dropout", FAST, "dropout")
    yield plant("dropout.own_mask", "dropout", FAST, "dropout")
    for engine in (TORCH, TF, KERAS, CAFFE):
        yield native(engine, "dropout", "dropout", "dropout.own_mask")

    yield plant("batch_norm.unbiased_variance", "norm", (TORCH, TF), "norm_training")
    yield plant("batch_norm.other_epsilon", "norm", (*FAST, KERAS), "norm_training")
    yield plant("batch_norm.epsilon_outside_root", "norm_large_epsilon", (TORCH, TF), "norm_training")
    yield plant("batch_norm.inverse_deviation", "norm_evaluated", FAST, "norm_running")
    yield plant("evaluation.batch_statistics", "norm_evaluated", FAST, "norm_running")
    for engine in (TORCH, TF, KERAS, KERAS212, LASAGNE, CAFFE):
        yield native(engine, "norm_evaluated", "norm_running", "batch_norm.running_statistics")
    yield plant("evaluation.dropout_on", "dropout", FAST, "dropout")
    yield plant("lrn.alpha_over_n", "lrn", (*FAST, KERAS), "lrn")
    yield plant("lrn.other_k", "lrn", FAST, "lrn")
    yield plant("lrn.other_window", "lrn", FAST, "lrn")

    yield plant("loss.clipped_probabilities", "extreme", (TORCH, TF), "loss")
    yield native(THEANO, "extreme", "loss", "loss.clipped_probabilities")
    yield plant("loss.saturated_log", "saturated", (TORCH,), "loss")
    yield native(CAFFE, "saturated", "loss", "loss.saturated_log")
    yield plant("loss.summed", "plain", (TORCH, TF), "reduction")
    yield plant("loss.double_softmax", "plain", (TORCH, TF), "loss")
    yield plant("loss.includes_penalty", "decay", (*FAST, KERAS), "decay")
    yield plant("loss.after_update", "plain", (TORCH, CAFFE), "reduction")
    yield plant("loss.mean_of_means", "odd_batch", (TORCH,), "parallel")

    yield plant("gradient.summed_over_ranks", "zeros", FAST, "parallel")
    yield plant("gradient.summed_over_ranks.hook", "plain", (TORCH,), "parallel")
    yield plant("gradient.divided_twice", "zeros", FAST, "parallel")
    yield plant("gradient.divided_twice.hook", "plain", (TORCH,), "parallel")

    yield plant("decay.doubled", "decay", (*FAST, KERAS), "decay")
    for engine in (KERAS, KERAS212, LASAGNE):
        yield native(engine, "decay", "decay", "decay.doubled")
    yield plant("decay.halved", "decay", FAST, "decay")
    yield plant("decay.decoupled", "decay_adam", (*FAST, KERAS), "decay")
    yield plant("decay.decoupled", "decay_momentum", (TORCH, TF), "decay")
    yield plant("decay.coupled", "decay_decoupled", FAST, "decay")
    yield plant("decay.biases_included", "decay_momentum", (*FAST, KERAS), "decay")
    for engine in (TORCH, CAFFE):
        yield native(engine, "decay", "decay", "decay.biases_included")
    yield plant("decay.biases_excluded", "decay_everything", FAST, "decay")
    yield plant("decay.missing", "decay_momentum", FAST, "decay")
    yield plant("decay.before_clip", "clip_decay", (TORCH, TF), "clip")
    yield native(TF, "clip_decay", "clip", "decay.before_clip")
    yield native(KERAS, "clip_decay", "clip", "decay.before_clip", "decay.doubled")
    yield plant("clip.per_tensor", "clip", (TORCH, TF), "clip")
    yield dataclasses.replace(plant("clip.per_tensor", "clip", (KERAS,), "clip"), plant="clip.per_tensor.keras")
    yield plant("clip.missing", "clip", (*FAST, KERAS), "clip")

    yield plant("momentum.dampening", "momentum", (TORCH, TF), "momentum")
    yield native(TORCH, "momentum_drop", "momentum", "momentum.rate_outside")
    yield plant("momentum.missing", "momentum", (TORCH, TF), "momentum")
    yield plant("momentum.nesterov", "momentum", (*FAST, KERAS), "nesterov")
    yield plant("momentum.no_nesterov", "nesterov", (*FAST, KERAS), "nesterov")
    yield plant("momentum.lookahead", "nesterov", (TORCH,), "nesterov")

    yield plant("rmsprop.epsilon_inside", "rmsprop", (TORCH, TF), "rmsprop")
    for engine in (TF212, KERAS, KERAS212, LASAGNE):
        yield native(engine, "rmsprop", "rmsprop", "rmsprop.epsilon_inside")
    yield plant("adagrad.epsilon_inside", "adagrad", (TORCH, TF), "adagrad")
    for engine in (KERAS, LASAGNE):
        yield native(engine, "adagrad", "adagrad", "adagrad.epsilon_inside")
    yield plant("adagrad.initial_accumulator", "adagrad", (*FAST, KERAS), "adagrad")
    yield plant("adam.epsilon_hat", "adam", (TORCH, TF), "adam")
    for engine in (TF212, KERAS, THEANO, CAFFE):
        yield native(engine, "adam", "adam", "adam.epsilon_hat")
    yield plant("adam.beta1_zero", "adam", (*FAST, KERAS), "adam")
    yield Fault("adam.beta1_zero.native", "adam", (CAFFE,), frozenset({"adam.beta1_zero", "adam.epsilon_hat"}),
                "adam", plant="adam.beta1_zero.native")  # fmt: skip
    yield plant("adam.no_bias_correction", "adam", (TORCH, TF), "adam")
    yield plant("adam.amsgrad", "adam", (TORCH,), "adam")
    yield plant("optimizer.other_constant.rho", "rmsprop", (*FAST, KERAS), "rmsprop")
    yield plant("optimizer.other_constant.rho", "adadelta", (TORCH, CAFFE), "adadelta")
    yield plant("optimizer.other_constant.beta2", "adam", FAST, "adam")
    yield plant("optimizer.other_constant.epsilon", "adam", (TORCH, TF), "adam")
    yield plant("optimizer.other_rule", "sgd", FAST, "momentum")
    yield plant("rate.previous_step", "plain_rates", (*FAST, KERAS), "schedule")
    yield plant("rate.scaled", "decay", FAST, "schedule")


def _divided_by_one(case: Case) -> Case:
    return dataclasses.replace(case, data=case.data._replace(divisor=1.0))


def _channels_reversed(case: Case) -> Case:
    pixels = np.ascontiguousarray(case.data.pixels[:, ::-1])
    return dataclasses.replace(case, data=case.data._replace(pixels=pixels))


def _labels_up(case: Case) -> Case:
    return dataclasses.replace(case, data=Data(case.data.pixels, case.data.labels + 1, case.data.divisor))


def _in_order(case: Case) -> Case:
    return dataclasses.replace(case, training=dataclasses.replace(case.training, keep_order=True))


def _other_seed(case: Case) -> Case:
    return dataclasses.replace(case, training=dataclasses.replace(case.training, seed=case.training.seed + 1))


def _other_tensors(case: Case) -> Case:
    return dataclasses.replace(case, initial=weights.initial_parameters(case.model, 1234))


#: Every fault.
FAULTS = tuple(_faults())

#: Rows of the semantics table that a fault stands for.
ROWS = {
    "input": "Input batch: scale, order, layout", "convolution": "Convolution", "same": '"same" padding',
    "pool_size": "Pool output size, stride", "ties": "Max-pool gradient at ties", "divisor": "Average-pool divisor",
    "relu": "ReLU gradient at exactly 0", "flatten": "Flatten", "dense": "Dense", "dropout": "Dropout",
    "norm_training": "Batch norm, training output", "norm_running": "Batch norm, running stats", "lrn": "LRN",
    "loss": "Softmax cross-entropy", "reduction": "Loss reduction", "decay": "L2 / weight decay",
    "clip": "Gradient clipping by norm", "momentum": "SGD + momentum", "nesterov": "Nesterov",
    "rmsprop": "RMSProp", "adagrad": "Adagrad", "adam": "Adam", "adadelta": "AdaDelta", "schedule": "LR schedule",
    "initial": "Initial values", "parallel": "Data parallel", "precision": "Float type and maths mode",
}  # fmt: skip
