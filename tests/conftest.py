"""What every test starts from."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# A suite that a shell started in the background ignores Ctrl-C, and so would every process that it tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: tests never judge absolute times. In CI the examples are the same at every run.
settings.register_profile(
    "thence",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("thence")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the database and the keys of whoever runs the tests out of them."""
    for name in list(os.environ):
        if name.startswith("THENCE_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
