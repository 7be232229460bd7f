"""Mixtures of named sources, of which a test says only what it is about."""

from fastloader.mixing._mixture import Mixture


def mixture_of(names, **rules):
    """Return a mixture of sources by the rules that are given, all others as a loader has them."""
    defaults = {
        "strategy": "round_robin",
        "weights": None,
        "pattern": None,
        "burst": 1,
        "stop": "auto",
        "epoch_length": None,
    }
    return Mixture.of(names, **{**defaults, **rules})
