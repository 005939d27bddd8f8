"""The ways in which a model is drawn that differ in how it runs, and a model that has a mode."""

from torch import nn

WAYS = [
    {},
    {"training": True},
    {"training": None},
    {"grad": True},
    {"fake": True},
    {"partial": True},
    {"profile": 1},
]


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
