"""Worlds of the blocking face, and children that are killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import thence

from ..nursery import Process
from ..nursery import start as start_python

ROOT = Path(__file__).resolve().parents[2]
ENGINE = Path(thence.__file__).resolve().parents[1]


@pytest.fixture
def child() -> Callable[..., Process]:
    """Starts a Python program that can import thence and these tests; arguments follow the code."""

    def start(code: str, *arguments: object) -> Process:
        return start_python(
            ["-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": f"{ENGINE}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start
