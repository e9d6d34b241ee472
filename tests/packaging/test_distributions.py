"""The sdist and the wheel: what is in them, that the wheel works alone, and that nothing in them can go stale."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# A wheel cannot be built without these; installing the project, which CI does first, fails then too.
pytestmark = pytest.mark.skipif(
    not all((ROOT / name).exists() for name in ("README.md", "engine/thence/__init__.py", "schema/tables.sql")),
    reason="the project cannot be built without README.md, the package and the schema",
)

LOOK = """
import json, pathlib
import thence
package = pathlib.Path(thence.__file__).parent
print(json.dumps([str(package), sorted(path.relative_to(package).as_posix() for path in package.rglob("*.sql"))]))
"""


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, target: str, into: Path) -> Path:
    """Build one distribution of a source tree with the backend's own command and return the file."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into), cwd=source)
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources(folder: str) -> set[str]:
    """The files below a folder of the checkout that belong in a distribution."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(ROOT / folder).as_posix() for path in paths}


def test_wheel_holds_the_package_and_the_schema_and_nothing_else(wheel: Path) -> None:
    code = {f"thence/{name}" for name in sources("engine/thence")}
    schema = {f"thence/schema/{name}" for name in sources("schema")}
    assert {"thence/py.typed", "thence/schema/tables.sql"} <= code | schema
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == code | schema
    assert any(name.endswith("licenses/LICENSE") for name in names_in(wheel))


def test_sdist_holds_no_leftovers_and_gives_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    parts = {part for name in names for part in Path(name).parts}
    assert not parts & {"__pycache__", ".hypothesis", ".benchmarks", ".venv", ".git", ".pytest_cache"}
    (source,) = tmp_path.iterdir()
    (tmp_path / "wheel").mkdir()
    assert names_in(build(source, "wheel", tmp_path / "wheel")) == names_in(wheel)


def test_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    run(*pip, str(wheel), cwd=tmp_path)
    place, statements = json.loads(
        run(sys.executable, "-c", LOOK, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)})
    )
    assert Path(place).resolve() == (target / "thence").resolve()
    assert "schema/tables.sql" in statements


def test_editable_wheel_copies_nothing(tmp_path: Path) -> None:
    editable = build(ROOT, "wheel:editable", tmp_path / "editable")
    inside = {name for name in names_in(editable) if ".dist-info/" not in name}
    assert len(inside) == 1, f"copies go stale: {inside}"
    with zipfile.ZipFile(editable) as archive:
        pointed_at = archive.read(inside.pop()).decode().strip()
    assert Path(pointed_at).resolve() == ROOT / "engine"


def test_installed_metadata_is_that_of_this_checkout() -> None:
    try:
        installed = importlib.metadata.distribution("thence")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("thence is not installed here, only on the path")
    project = json.loads(run(sys.executable, "-m", "hatchling", "metadata", cwd=ROOT))
    assert installed.version == project["version"]
    place, statements = json.loads(run(sys.executable, "-c", LOOK, cwd=ROOT / "tests"))
    assert Path(place).resolve() == ROOT / "engine/thence"
    copies = [name for name in statements if name.startswith("schema/")]
    assert not copies, "a copy of the schema lies beside the package and hides the checkout's"
