"""The examples in the docstrings run, and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import entmeans.estimators

PATHS = {"": entmeans.__path__, "estimators.": entmeans.estimators.__path__}
NAMES = [p + module.name for p, path in PATHS.items() for module in pkgutil.iter_modules(path)]
WITHOUT = {"cli", "inputs", "mappings", "operators", "step", "estimators", "estimators.arrays"}


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_the_module_hold(name):
    results = doctest.testmod(importlib.import_module(f"entmeans.{name}"))
    assert results.failed == 0
    assert results.attempted > 0 or name in WITHOUT
