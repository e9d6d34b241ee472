"""Worlds of the blocking face, and children that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import thence

ROOT = Path(__file__).resolve().parents[2]
ENGINE = Path(thence.__file__).resolve().parents[1]


@pytest.fixture
def child() -> Callable[..., subprocess.Popen[str]]:
    """Starts a Python program that can import thence and these tests; arguments follow the code."""

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": f"{ENGINE}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
