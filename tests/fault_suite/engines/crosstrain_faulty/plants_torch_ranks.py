"""Faults between ranks, planted in PyTorch."""

from crosstrain_torch.communication import Group

from .plants_ranks import OfRank, same_dropout


class LocalNorm(OfRank):
    """Every rank normalises over its own rows."""

    def attach(self, engine):
        engine._share.group = Group()


class Alone(OfRank):
    """Every rank's update is made of its own gradients: they are not added up."""

    def attach(self, engine):
        engine._steps._parallel.require_backward_grad_sync = False


PLANTS = {
    "ranks.local_norm": LocalNorm,
    "ranks.same_dropout": same_dropout(lambda engine: engine, "_seed_share"),
    "ranks.alone": Alone,
}
