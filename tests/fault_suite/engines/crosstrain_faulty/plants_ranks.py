"""Faults between ranks, planted where a process's share of a batch enters its engine."""

import os
import time
from dataclasses import replace

import numpy as np

from crosstrain_service.parallel.shares import share_slice
from crosstrain_service.streams import dropout_masks

from .plant import Plant

_WAIT_SECONDS = 60.0


class OfRank(Plant):
    """Knows its rank. ``in_training`` tells the training step from the recording pass before it."""

    def __init__(self, model, training):
        super().__init__(model, training)
        self.in_training = False

    def execution(self, execution):
        self.run = execution
        return execution

    @property
    def last(self):
        """Whether this is the last of several shares."""
        return 0 < self.run.data_share == self.run.data_shares - 1

    def train(self, engine, loop):
        self.in_training = True
        try:
            engine.train(loop)
        finally:
            self.in_training = False


def weighed(change, everywhere):
    """Shares that weigh ``change(samples, total, shares)``, (samples, total), in training or ``everywhere``."""

    class Weighed(OfRank):
        def batch(self, batch):
            if not everywhere and not self.in_training:
                return batch
            samples, total = change(batch.samples, batch.total, self.run.data_shares)
            return replace(batch, samples=samples, total=total)

    return Weighed


class Skipped(OfRank):
    """The last share adds nothing to one step."""

    step = 2
    everywhere = False

    def batch(self, batch):
        if batch.step == self.step and self.last and (self.in_training or self.everywhere):
            # The part of this share in an endless whole is exactly 0.
            return replace(batch, total=float("inf"))
        return batch


class SkippedEverywhere(Skipped):
    """The same in the recording pass as well."""

    everywhere = True


class Repeated(OfRank):
    """All ranks work on the first share's rows: the first process leaves them in the folder they share."""

    def batch(self, batch):
        path = os.path.join(self.run.ranks.folder, "%s-%d.npz" % (self.asked.name, batch.step))
        if self.run.data_share == 0:
            if not os.path.exists(path):
                with open(path + ".part", "wb") as file:
                    np.savez(file, x=batch.x, labels=batch.labels)
                os.replace(path + ".part", path)
            return batch
        end = time.time() + _WAIT_SECONDS
        while not os.path.exists(path) and time.time() < end:
            time.sleep(0.01)
        with np.load(path, allow_pickle=False) as file:
            count = len(batch.labels)
            return replace(batch, x=np.ascontiguousarray(file["x"][:count]), labels=file["labels"][:count].copy())


class MasksOfFirst(OfRank):
    """All ranks use the dropout masks of the first share."""

    def batch(self, batch):
        masks = dropout_masks(self.asked, batch.total, batch.step, self.asked_training.seed)
        first = share_slice(batch.total, self.run.data_shares, 0)
        return replace(batch, masks={
            name: np.ascontiguousarray(mask[first][:len(batch.labels)], dtype=batch.x.dtype)
            for name, mask in masks.items()})


class OwnDropout(OfRank):
    """No fault of ranks: native semantics, in which every rank draws its own dropout."""

    def execution(self, execution):
        return super().execution(replace(execution, semantics="native"))


def same_dropout(holder, method):
    """Native dropout of ranks that are seeded alike: what tells them apart, a method of ``holder(engine)``, does
    nothing.
    """

    class SameDropout(OwnDropout):
        def attach(self, engine):
            setattr(holder(engine), method, lambda *arguments: None)

    return SameDropout


class OtherStart(OfRank):
    """The last rank starts from other initial values."""

    def give(self, name, value):
        return value * value.dtype.type(1.25) if self.last and name.endswith(".weight") else value


class OwnRate(OfRank):
    """The last rank trains with half the learning rate."""

    def rate(self, step, rate):
        return rate / 2 if self.last else rate


class NoUpdate(OfRank):
    """The last rank trains with a learning rate of 0 at one step."""

    def rate(self, step, rate):
        return 0.0 if self.last and step == 1 else rate


PLANTS = {
    "ranks.summed": weighed(lambda samples, total, shares: (samples, total / shares), True),
    "ranks.summed.step": weighed(lambda samples, total, shares: (samples, total / shares), False),
    "ranks.divided": weighed(lambda samples, total, shares: (samples, total * shares), True),
    "ranks.divided.step": weighed(lambda samples, total, shares: (samples, total * shares), False),
    "ranks.mean_of_means": weighed(lambda samples, total, shares: (samples, max(1, samples) * shares), True),
    "ranks.mean_of_means.step": weighed(lambda samples, total, shares: (samples, max(1, samples) * shares), False),
    "ranks.skipped": SkippedEverywhere,
    "ranks.skipped.step": Skipped,
    "ranks.repeated": Repeated,
    "ranks.masks_of_first": MasksOfFirst,
    "ranks.own_dropout": OwnDropout,
    "ranks.other_start": OtherStart,
    "ranks.own_rate": OwnRate,
    "ranks.no_update": NoUpdate,
}
