"""Imports go downward only, and heavy packages stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import entmeans

PACKAGE = Path(entmeans.__file__).parent
# A module may import those before it.
ORDER = (
    *(
        "inputs",
        "mappings",
        "schedules",
        "step",
        "operators",
        "kernels",
        "functional",
        "limit",
        "seeding",
        "fixed_point",
        "fit",
    ),
    *("nn", "estimators", "tables", "io", "plots", "paper", "cli"),
)
CORE = ORDER[: ORDER.index("nn")]
SOURCES = sorted(PACKAGE.rglob("*.py"))


def part(path):
    """The module or subpackage directly inside the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Absolute names of all imports in a file, and whether each is at module level."""
    package = ("entmeans", *path.relative_to(PACKAGE).parts[:-1])
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        top = node in tree.body
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            if module == ("entmeans",):
                yield from ((f"entmeans.{alias.name}", top) for alias in node.names)
            else:
                yield ".".join(module), top


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_those_below_it(path):
    if part(path) in ("__init__", "__main__"):
        return
    assert part(path) in ORDER, f"give {part(path)} its place in ORDER"
    used = {name.split(".")[1] for name, _ in imports(path) if name.startswith("entmeans.")}
    above = ORDER[ORDER.index(part(path)) + 1 :]
    assert not used & set(above)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_scikit_learn_is_imported_at_module_level_by_the_estimators_only(path):
    levels = {top for name, top in imports(path) if name.split(".")[0] == "sklearn"}
    if part(path) == "estimators":
        return
    assert True not in levels
    if part(path) in (*CORE, "__init__"):
        assert not levels


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_numba_is_imported_by_the_kernels_only(path):
    used = {name.split(".")[0] for name, _ in imports(path)} & {"numba", "llvmlite"}
    assert not used or part(path) == "kernels"


def test_importing_entmeans_imports_no_heavy_package():
    heavy = {"sklearn", "scipy", "pandas", "polars", "pyarrow", "matplotlib", "numba", "triton"}
    code = "import sys, torch; old = {*sys.modules}; import entmeans; print(*{*sys.modules} - old)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & {name.split(".")[0] for name in out.stdout.split()}


def test_every_public_name_exists_and_is_listed():
    for name in entmeans.__all__:
        assert getattr(entmeans, name) is not None
        assert name in dir(entmeans)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        entmeans.nothing  # noqa: B018
