"""The examples in docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import entmeans

# kernels compile what they import, and have no examples of their own
NAMES = [
    module.name.removeprefix("entmeans.")
    for module in pkgutil.walk_packages(entmeans.__path__, "entmeans.")
    if not module.name.startswith("entmeans.kernels.")
]
WITHOUT = {
    *("cli", "inputs", "mappings", "operators", "step"),
    *("estimators", "estimators.arrays", "nn", "nn.processes"),
    *("paper", "paper.run"),
}


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_the_module_hold(name):
    results = doctest.testmod(importlib.import_module(f"entmeans.{name}"))
    assert results.failed == 0
    assert results.attempted > 0 or name in WITHOUT or name.startswith("paper.figures")
