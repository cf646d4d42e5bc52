"""The README's code runs, in the order in which it stands there."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_python_blocks_of_the_readme_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) >= 4
    assert all("assert" in block for block in blocks)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)
