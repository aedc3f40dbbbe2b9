"""Lists of architectures in the Python source of installed packages.

A feature that "does not support" a GPU is often kept from it by a list that somebody wrote. They
are found in the syntax tree, never by running anything:

- arguments: `get_nvcc_flags_list(supported_major_versions=[9, 10])`,
  `@supported_compute_capability([90, 100])`
- tables: `MAX_SIZES = {9: …, 10: …}`, `{"9.0": …}`, `{90: …}`
- questions: `is_sm90_supported() or is_sm100_supported()`, `is_device_capability_family(100)`
- comparisons: `major in (9, 10)`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from warnings import catch_warnings, simplefilter

from alula.machine.capability import Capability

_WORTH_PARSING = re.compile(
    rb"supported_(?:major|compute_capab|sms?\b|archs?\b)"
    rb"|is_sm\d+[af]?_supported|is_device_capability"
    rb"|(?:capab|major|arch|sm|cc)\w{0,40}(?:\(\)|\[0\]){0,2}\s{1,20}(?:not\s{1,20})?in\s{0,20}[(\[{]"
    rb"|=\s*\{\s*[\"'(]?\d{1,3}\b",
    re.IGNORECASE,
)
"""Parsing takes far longer than this look at the text, which keeps out most files."""
_ABOUT_ARCHITECTURES = re.compile(r"capabilit|major|\bsm\b|sm_?\d|sm_version|arch|\bcc\b", re.I)
_TABLE = re.compile(r"capabilit|max_size|multimem|sm_?version|arch|by_sm", re.IGNORECASE)
_ARGUMENT = re.compile(r"supported_(major_versions|compute_capabilit|sms?|archs?)", re.IGNORECASE)
_QUESTION = re.compile(r"_?is_sm(\d{2,3})[af]?_supported")
_FAMILY = re.compile(r"is_device_capability_family")
_EXACT = re.compile(r"is_device_capability")
_MAJORS = range(7, 16)
_ARCHITECTURES = {70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 107, 110, 120, 121}
_NOT_ITS_OWN = {"data", "test", "tests", "3rdparty", "third_party"}
"""Folders of a package that hold tests, or what others wrote and it only ships."""
_LARGEST_SOURCE = 4 << 20


@dataclass(frozen=True, slots=True)
class AllowList:
    """One list: where it stands, and whom it lets in."""

    package: str
    file: str
    """Relative to the package's folder."""
    line: int
    owner: str
    """The function, class or table that holds it."""
    text: str
    """The list as it is written, shortened."""
    majors: tuple[int, ...] = ()
    architectures: tuple[int, ...] = ()

    def allows(self, gpu: Capability) -> bool:
        """Whether a capability is on the list."""
        return gpu.major in self.majors or gpu.arch in self.architectures

    @property
    def where(self) -> str:
        """As an editor opens it: file:line."""
        return f"{self.file}:{self.line}"


def sources(roots: Iterable[Path], names: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """The Python files of a package's own, and how they are shown."""
    for folder in (root / name for root in roots for name in names):
        for path in sorted(folder.rglob("*.py")):
            shown = path.relative_to(folder.parent)
            if not _NOT_ITS_OWN.intersection(shown.parts):
                yield path, shown.as_posix()


def scan_file(package: str, path: Path, shown: str) -> list[AllowList]:
    """The lists of one file; none where it cannot be read or is not Python."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return []
        source = path.read_bytes()
    except OSError:
        return []
    return scan_source(package, source, shown)


def scan_source(package: str, source: bytes, shown: str) -> list[AllowList]:
    """The lists in one piece of source text."""
    if not _WORTH_PARSING.search(source):
        return []
    finder = _Finder(package, shown)
    # An expression may be nested too deep to be read or to be walked: what was found before counts.
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), catch_warnings():
        simplefilter("ignore")  # what others write is not ours to be warned of
        finder.visit(ast.parse(source))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, package: str, file: str) -> None:
        self.found: list[AllowList] = []
        self._package, self._file = package, file
        self._owners: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._within(node.name, node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._within(node.name, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(node.name, node)

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg and _ARGUMENT.search(keyword.arg):
                self._add(keyword.value, _numbers(keyword.value), f"{keyword.arg}=")
        self._question(node, _name(node.func), node.args)
        if _ARGUMENT.search(_name(node.func)) and node.args:
            self._add(node.args[0], _numbers(node.args[0]), f"{_name(node.func)} ")
        # The name of what is called is no question of its own.
        for child in (*node.args, *node.keywords):
            self.visit(child)
        if not isinstance(node.func, ast.Name):
            self.visit(node.func)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._question(node, node.id, [])

    def visit_Assign(self, node: ast.Assign) -> None:
        self._table(node.targets[0], node.value)
        # An answer that is only given a name is asked where that name is read.
        if not _QUESTION.fullmatch(_name(node.targets[0])):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._table(node.target, node.value)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if isinstance(node.op, ast.Or):
            asked = [_QUESTION.fullmatch(_name(value)) for value in node.values]
            if all(asked):
                self._add(node, [int(match[1]) for match in asked if match], families=True)
                return
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.ops[0], ast.In | ast.NotIn) and _ABOUT_ARCHITECTURES.search(
            ast.unparse(node.left)
        ):
            self._add(node, _numbers(node.comparators[0]))
        self.generic_visit(node)

    def _question(self, node: ast.expr, name: str, arguments: list[ast.expr]) -> None:
        """A question about one architecture that stands alone."""
        if (asked := _QUESTION.fullmatch(name)) and not arguments:
            self._add(node, [int(asked[1])], families=True)
        elif arguments and (_FAMILY.fullmatch(name) or _EXACT.fullmatch(name)):
            number = _number(arguments[0])
            if number is not None:
                self._add(node, [number], families=bool(_FAMILY.fullmatch(name)))

    def _within(self, name: str, node: ast.AST) -> None:
        self._owners.append(name)
        self.generic_visit(node)
        self._owners.pop()

    def _table(self, target: ast.expr, value: ast.expr | None) -> None:
        name = _name(target)
        if isinstance(value, ast.Dict) and _TABLE.search(name):
            keys = [_number(key) for key in value.keys]
            if keys and None not in keys:
                self._add(
                    value, [key for key in keys if key], f"{name} with keys ", keys=value.keys
                )

    def _add(
        self,
        node: ast.expr,
        numbers: list[int],
        label: str = "",
        *,
        families: bool = False,
        keys: Iterable[ast.expr | None] = (),
    ) -> None:
        majors = {number for number in numbers if number in _MAJORS}
        architectures = set(numbers) & _ARCHITECTURES
        if not numbers or len(majors | architectures) != len(set(numbers)):
            return
        if families:
            majors, architectures = {number // 10 for number in numbers}, set()
        shown = ", ".join(ast.unparse(key) for key in keys if key) or ast.unparse(node)
        self.found.append(
            AllowList(
                self._package,
                self._file,
                node.lineno,
                ".".join(self._owners),
                f"{label}{' '.join(shown.split())}"[:120],
                tuple(sorted(majors)),
                tuple(sorted(architectures)),
            )
        )


def _name(node: ast.expr) -> str:
    """The last name of what is called, asked or assigned."""
    match node:
        case ast.Call(func=func):
            return _name(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
    return ""


def _numbers(node: ast.expr) -> list[int]:
    """The architectures of a list; empty where something in it is none."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return []
    numbers = [_number(item) for item in node.elts]
    return [number for number in numbers if number] if None not in numbers else []


def _number(node: ast.expr | None) -> int | None:
    """A major version or an architecture: 9, 90, "9.0", (9, 0)."""
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.Constant(value=str(text)) if re.fullmatch(r"\d{1,2}\.\d", text):
            return int(text.replace(".", ""))
        case ast.Tuple(elts=[ast.Constant(value=int(major)), ast.Constant(value=int(minor))]):
            return 10 * major + minor
    return None


def excluding(lists: Iterable[AllowList], gpu: Capability) -> Iterator[AllowList]:
    """The lists that keep a capability out."""
    return (each for each in lists if not each.allows(gpu))
