"""The layout is kept by tests: imports run left to right, pure modules stay pure, importing has no effect."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("convert", "quantize", "runtime")
PURE = {
    "convert": {
        "spec",
        "checks",
        "causality",
        "dialects",
        "heads",
        "matrices",
        "names",
        "plan",
        "rearrange",
    },
    "quantize": {"qtypes", "policy", "metrics", "search", "frontier", "found"},
    "runtime": {"record", "gate"},
}
JOINS = {"quantize.replayed"}
"""Modules that join a package with one to its right; only a command's function imports them (docs/decisions.md)."""
WORLD = {
    "os",
    "pathlib",
    "io",
    "subprocess",
    "socket",
    "tempfile",
    "shutil",
    "click",
    "torch",
    "tqdm",
    "mmap",
}
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).glob("*.py"))]


def imports(path: Path) -> set[str]:
    """The modules a file imports, relative ones resolved to `package.module`."""
    package = path.parent.name
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 1:
                found |= (
                    {f"{package}.{module}"}
                    if module
                    else {f"{package}.{a.name}" for a in node.names}
                )
            elif node.level == 2:
                found |= {module} if module else {a.name for a in node.names}
            elif module.startswith("dflash_gguf."):
                found.add(module.removeprefix("dflash_gguf."))
            else:
                found.add(module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_a_package_imports_only_from_its_left(path: Path) -> None:
    """convert knows nothing of quantize, quantize nothing of runtime, but for the one module that joins them."""
    right = PACKAGES[PACKAGES.index(path.parent.name) + 1 :]
    joins = f"{path.parent.name}.{path.stem}" in JOINS

    found = {name for name in imports(path) if name.split(".")[0] in right}

    assert joins == bool(found), found


def test_no_command_loads_what_joins_two_packages() -> None:
    """Quantising without a search does not import the runtime."""
    code = (
        "import sys, dflash_gguf.quantize.cli; print([m for m in sys.modules if '.runtime' in m])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if p.stem in PURE[p.parent.name]],
    ids=lambda p: f"{p.parent.name}.{p.stem}",
)
def test_a_pure_module_opens_nothing_and_prints_nothing(path: Path) -> None:
    """A pure module imports nothing that touches the world and calls neither open nor print."""
    tree = ast.parse(path.read_text())
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }

    assert set() == {name.split(".")[0] for name in imports(path)} & WORLD
    assert set() == called & {"open", "print", "input", "exec", "eval"}


def test_importing_everything_prints_nothing_and_needs_no_torch() -> None:
    """Every module but the oracle imports without torch and without output."""
    names = [
        f"dflash_gguf.{p.parent.name}.{p.stem}"
        for p in MODULES
        if p.stem != "__init__" and not p.stem.startswith("oracle")
    ]
    code = f"import sys; sys.modules['torch'] = None; import importlib; [importlib.import_module(n) for n in {names}]"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
