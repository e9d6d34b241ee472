#!/usr/bin/env python3
"""Write docs/DURABILITY.md from the tests' own list of promises (tests/resume/durability.py).

python3 tools/durability.py            write the page
python3 tools/durability.py --check    exit code 1 when the page is not what the list says
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "DURABILITY.md"
LIST = ROOT / "tests" / "resume" / "durability.py"


def render() -> str:
    """The page that the list makes."""
    spec = importlib.util.spec_from_file_location("durability_list", LIST)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(LIST)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    text: str = module.render()
    return text


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says and return the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = render()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if arguments:
        print(f"{PAGE.name} is not what the tests say: run python3 tools/durability.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
