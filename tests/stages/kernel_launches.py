"""Checks launches of Triton kernels without Triton: whether their arguments match the parameters."""

from __future__ import annotations

import ast
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_OPTIONS = {"num_warps", "maxnreg", "enable_fp_fusion"}


@dataclass(frozen=True)
class _Kernel:
    parameters: list[str]
    constants: set[str]
    not_specialized: set[str]


def _kernels(tree: ast.Module) -> dict[str, _Kernel]:
    """The functions with `@triton.jit` or `@triton.jit(…)`, by name."""
    out = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if ast.unparse(call.func if call else decorator) == "triton.jit":
                names = [ast.literal_eval(k.value) for k in call.keywords] if call else []
                constants = {a.arg for a in node.args.args if a.annotation}
                out[node.name] = _Kernel([a.arg for a in node.args.args], constants, set().union(*names))
    return out


def _count(argument: ast.expr, sizes: dict[str, int]) -> int:
    return sizes[ast.unparse(argument.value)] if isinstance(argument, ast.Starred) else 1


def _bound(call: ast.Call, kernel: _Kernel, sizes: dict[str, int]) -> list[str]:
    """Names of the parameters that a launch binds, in the order of its arguments."""
    positional = sum(_count(argument, sizes) for argument in call.args)
    assert positional <= len(kernel.parameters), ast.unparse(call)
    keywords = [k.arg for k in call.keywords if k.arg and k.arg not in _OPTIONS]
    return kernel.parameters[:positional] + keywords


def check_launches(
    kernels: str, launchers: list[str], sizes: dict[str, int], more: Set[str] = frozenset()
) -> int:
    """Asserts that launches and calls of a module's kernels bind every parameter exactly once.

    Args:
        kernels: Path of the module with the kernels.
        launchers: Paths of the modules that launch them.
        sizes: How many arguments a starred expression stands for, by its source.
        more: Parameters that `**` arguments bind.

    Returns:
        The number of launches.
    """
    tree = ast.parse((ROOT / kernels).read_text(encoding="utf-8"))
    found, launched = _kernels(tree), set()
    for name, kernel in found.items():
        assert kernel.not_specialized <= set(kernel.parameters) - kernel.constants, name
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in found:
            bound = _bound(call, found[call.func.id], sizes)
            assert bound == found[call.func.id].parameters, ast.unparse(call)
    launches = 0
    for path in launchers:
        for call in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Subscript):
                continue
            name = ast.unparse(call.func.value).rpartition(".")[2]
            if name not in found:
                continue
            launches, kernel = launches + 1, found[name]
            bound = _bound(call, kernel, sizes)
            if any(k.arg is None for k in call.keywords):
                bound += [p for p in kernel.parameters if p in more and p not in bound]
            assert sorted(bound) == sorted(kernel.parameters), (path, ast.unparse(call))
            launched.add(name)
    unused = {name for name in found if not name.startswith("_")} - launched
    assert not unused, f"never launched: {unused}"
    return launches
