"""Faults between ranks, planted in Caffe."""

from .plants_ranks import same_dropout

PLANTS = {
    "ranks.same_dropout": same_dropout(lambda engine: engine, "_draw_apart"),
}
