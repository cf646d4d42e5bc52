"""The Python in the README and in the pages of docs runs, in the order in which it stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert blocks
    assert all("assert" in block for block in blocks)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)
