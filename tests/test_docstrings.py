"""The examples in the docstrings run, and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import entmeans


@pytest.mark.parametrize(
    "name", [module.name for module in pkgutil.iter_modules(entmeans.__path__)]
)
def test_examples_of_the_module_hold(name):
    results = doctest.testmod(importlib.import_module(f"entmeans.{name}"))
    assert results.failed == 0
    assert results.attempted > 0 or name in ("cli", "inputs", "mappings", "operators", "step")
