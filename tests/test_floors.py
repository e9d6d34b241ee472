"""The house rules as tests: who may import whom, what no module may contain, how long things may be.

Each rule is a function from one module to its complaints. The last tests feed every rule a bad module and see it
complain, so that a rule that has gone blind is noticed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parent.parent / "engine"

# Top-level modules and folders of the package, lowest floor first. A new one gets its place here.
FLOORS = (
    "errors canonical chat compacted facts steps events identity limits runs diagnosis",
    "state fold gate loopguard judge budget hooking options session_options permissions verification",
    "plan parts state_json codec rows kept_state writes pages reads transcript compaction inflight watching sessions "
    "inbox answers waits log",
    "effects report ledger compacting hooked consent steering rounds gating endings turn results",
    "store host models adapters",
    "agent session session_base session_views async_session testing cli __init__ __main__",
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}

# Who touches the world, and what nobody else may import.
HANDS = frozenset({"store", "host", "models", "adapters", "cli"})
WORLD = frozenset({"sqlite3", "aiosqlite", "threading", "asyncio", "time", "uuid", "random", "secrets", "os"})
UNSAFE = frozenset({"pickle", "marshal", "shelve"})
# Imported at first use, for the start-up time's sake.
LAZY = ("pydantic", "click", "sqlite_utils", "openai", "portalocker")

SQL = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|WITH)\s")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 70

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name below the package (`store.writer`), its text, and all names there are."""

    name: str
    source: str
    is_package: bool = False
    names: frozenset[str] = frozenset()

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    def imports(self) -> Iterator[tuple[int, str]]:
        """Each imported module with its line; ours as `thence.<dotted name>`, relative ones resolved."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = ["thence", *(part for part in self.name.split(".") if part != "__init__")]
                above = node.level - self.is_package if node.level else len(package)
                parts = [*package[: len(package) - above], *(node.module or "").split(".")]
                base = ".".join(part for part in parts if part)
                for alias in node.names:
                    whole = f"{base}.{alias.name}"
                    yield node.lineno, whole if whole.removeprefix("thence.") in self.names else base

    def own_imports(self) -> Iterator[tuple[int, str]]:
        """The imports of our own modules, by their dotted name below the package."""
        for line, name in self.imports():
            if name == "thence":
                yield line, "__init__"
            elif name.startswith("thence."):
                yield line, name.removeprefix("thence.")


def modules() -> list[Module]:
    package = ENGINE / "thence"
    paths: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 1
        paths[".".join(parts[:-1] if is_package else parts)] = path
    names = frozenset(paths)
    return [Module(name, path.read_text("utf-8"), path.name == "__init__.py", names) for name, path in paths.items()]


def floors(module: Module) -> Iterator[str]:
    """Imports of ours go to the same floor or a lower one."""
    for line, name in [(0, module.name), *module.own_imports()]:
        top = name.split(".")[0]
        if top not in FLOOR:
            yield f"{line}: no floor for '{top}': add it to FLOORS in tests/test_floors.py"
        elif module.top in FLOOR and FLOOR[top] > FLOOR[module.top]:
            yield f"{line}: {module.name} (floor {FLOOR[module.top]}) imports {name} (floor {FLOOR[top]})"


def world(module: Module) -> Iterator[str]:
    """Only the hands import what touches the world."""
    for line, name in module.imports():
        top = name.split(".")[0]
        if top in UNSAFE or (top in WORLD and module.top not in HANDS):
            yield f"{line}: imports {top}"


def calls(module: Module) -> Iterator[str]:
    """No eval and no exec; print in the command line only."""
    banned = {"eval", "exec"} if module.top == "cli" else {"eval", "exec", "print"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in banned:
            yield f"{node.lineno}: calls {node.func.id}"


def swallowing(module: Module) -> Iterator[str]:
    """An exception is named where it is caught, and something is done about it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield f"{node.lineno}: bare except"
            if all(isinstance(part, ast.Pass) or is_text(part) for part in node.body):
                yield f"{node.lineno}: swallows an exception"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
            if {"Exception", "BaseException"} & {ast.unparse(argument) for argument in node.args}:
                yield f"{node.lineno}: swallows every exception"


def sql(module: Module) -> Iterator[str]:
    """Statements live in schema/, under a name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
            yield f"{node.lineno}: SQL in Python: {node.value.strip()[:40]!r}"


def sizes(module: Module) -> Iterator[str]:
    """Files and functions that fit into a head; a docstring does not count against its function."""
    lines = len(module.source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines, {MAX_FILE_LINES} at most"
    for node in ast.walk(module.tree):
        if isinstance(node, FunctionNode):
            length = extent(node) - (extent(node.body[0]) if is_text(node.body[0]) else 0)
            if length > MAX_FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {length} lines, {MAX_FUNCTION_LINES} at most"


def docstring(module: Module) -> Iterator[str]:
    """Each module says what it is for."""
    if not ast.get_docstring(module.tree):
        yield "no docstring"


def extent(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_text(node: ast.stmt) -> bool:
    """A docstring, a stray string or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def cycle(own_imports: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for target in sorted(own_imports.get(name, ())):
                if found := visit(target, [*path, name]):
                    return found
            done.add(name)
        return []

    for name in sorted(own_imports):
        if found := visit(name, []):
            return found
    return []


RULES: tuple[Callable[[Module], Iterator[str]], ...] = (floors, world, calls, swallowing, sql, sizes, docstring)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    found = modules()
    assert found, "no module found: has the package moved?"
    complaints = [f"{module.name}:{complaint}" for module in found for complaint in rule(module)]
    assert not complaints, "\n".join([rule.__doc__ or "", *complaints])


def test_imports_run_in_no_circle() -> None:
    assert not cycle({module.name: {name for _, name in module.own_imports()} for module in modules()})


@pytest.mark.skipif(not (ENGINE / "thence/__init__.py").exists(), reason="the package has no face yet")
def test_import_loads_nothing_heavy() -> None:
    code = f"import sys; sys.path.insert(0, {str(ENGINE)!r}); had = set(sys.modules); import thence; "
    code += f"print(*sorted(set({LAZY}) & (set(sys.modules) - had)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def long_function(docstring_lines: int, lines: int) -> str:
    return 'def f():\n    """Text.\n' + "\n" * docstring_lines + '    """\n' + "    x = 1\n" * lines


BAD = (
    (floors, "fold", "from . import session", "fold (floor 1) imports session (floor 5)"),
    (floors, "fold", "from .turn import run", "imports turn"),
    (floors, "fold", "import thence.store.writer", "imports store.writer"),
    (floors, "fold", "from thence import Agent", "imports __init__"),
    (floors, "store.writer", "def f():\n    from ..session import Session", "imports session"),
    (floors, "store", "from ..agent import Agent", "imports agent"),
    (floors, "novelty", "", "no floor for 'novelty': add it to FLOORS"),
    (world, "fold", "import sqlite3", "imports sqlite3"),
    (world, "session", "from os.path import join", "imports os"),
    (world, "turn", "def f():\n    import asyncio.tasks", "imports asyncio"),
    (world, "store.writer", "from pickle import loads", "imports pickle"),
    (calls, "store.writer", "print(1)", "calls print"),
    (calls, "cli", "eval('1')", "calls eval"),
    (swallowing, "fold", "try:\n    f()\nexcept:\n    g()", "bare except"),
    (swallowing, "fold", "try:\n    f()\nexcept OSError:\n    pass", "swallows an exception"),
    (swallowing, "fold", "try:\n    f()\nexcept OSError:\n    '''Never mind.'''", "swallows an exception"),
    (swallowing, "fold", "with contextlib.suppress(Exception):\n    f()", "swallows every exception"),
    (sql, "store.sql", "x = 'SELECT 1'", "SQL in Python"),
    (sql, "store.sql", "x = '''\n  INSERT INTO t'''", "SQL in Python"),
    (sql, "store.sql", "x = f'DELETE FROM {t}'", "SQL in Python"),
    (sizes, "fold", "\n" * 301, "301 lines"),
    (sizes, "fold", long_function(0, 70), "f has 71 lines"),
    (docstring, "fold", "x = 1", "no docstring"),
)
GOOD = (
    (floors, "store.writer", "from . import sql\nfrom ..plan import Plan\nfrom .sql import text"),
    (floors, "store", "from .writer import Writer\nfrom .. import plan"),
    (floors, "__init__", "from .session import Session\nfrom . import errors\nimport json"),
    (world, "host.env", "import time, uuid"),
    (world, "cli", "import os"),
    (calls, "cli.ls", "print(1)"),
    (calls, "fold", "re.compile('x'); self.print(1)"),
    (swallowing, "fold", "try:\n    f()\nexcept OSError:\n    found = None"),
    (swallowing, "fold", "with contextlib.suppress(FileNotFoundError):\n    f()"),
    (sql, "store.sql", "x = f'PRAGMA synchronous={level}'; y = 'BEGIN IMMEDIATE'; z = 'DELETE'; w = 'Select one'"),
    (sizes, "fold", long_function(40, 69)),
    (docstring, "fold", '"""What it is for."""'),
)
NAMES = frozenset(
    {"__init__", "agent", "errors", "fold", "plan", "session", "store", "store.sql", "store.writer", "turn"}
)


@pytest.mark.parametrize(("rule", "name", "source", "words"), BAD)
def test_rule_sees_the_fault(rule: Callable[[Module], Iterator[str]], name: str, source: str, words: str) -> None:
    assert words in "\n".join(rule(Module(name, source, name in {"store", "__init__"}, NAMES)))


@pytest.mark.parametrize(("rule", "name", "source"), GOOD)
def test_rule_lets_good_code_pass(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    assert not list(rule(Module(name, source, name in {"store", "__init__"}, NAMES)))


def test_a_circle_is_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_every_rule_has_a_bad_example() -> None:
    assert {rule for rule, *_ in BAD} == set(RULES)
