"""Mutation tests: small changes of the code, one at a time, each of which some test must detect: `onefold test --mutants`.

    python -m tests.support.mutants [--sample N] [--seed N] [--processes N] [FILE...]

The sampled mutants are compiled beside the original code, and a number selects one. Pytest collects the fast tier once.
Each test file runs once without a mutant, and each test records the mutants that it reaches. Then a forked process for each
mutant runs the tests that reach it until one fails.

Not mutated: text for people, annotations, log calls, time limits, guards against a programmer's mistakes, and input
generators. A child process of a test runs the code without mutants.
"""

import argparse
import ast
import builtins
import faulthandler
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import random
import re
import resource
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("processor/core", "processor/runtime", "spark_sink/landing", "src/onefold/verify")
# Generators may generate different inputs: these files, and code below this line in other files.
GENERATORS, GENERATOR = ("hostile.py", "shaping.py", "trade_feed.py"), b"# --- input"
# Keywords of `@dataclass` without effect on results: they forbid assignments, and save memory.
GUARDS = ("frozen", "slots")
# Calls with an effect only for people and fault points; assignments to names of limits or types.
TOLD = re.compile(r"log|_log|step|_step|progress|_progress|sleep|debug|info|warning|error|alive|collect")
BOUND = re.compile(r"_?[A-Z]\w*")
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Add,
}  # fmt: skip
# A test that takes longer than this and ten times its usual seconds hangs. The memory limit protects the machine.
HANGS, HANGS_S, MEMORY = "hangs or dies", 60, 8 << 30
IMPORT = "a file of tests cannot be collected"


T = TypeVar("T")


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the number within the file, the original text, and the new text."""

    path: str
    index: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before}  ->  {self.after}"


def mutants(path: str) -> Iterator[Mutant]:
    """All mutants of one file."""
    source = (ROOT / path).read_bytes()
    starts, lines = [0], source.splitlines(keepends=True)
    for line in lines:
        starts.append(starts[-1] + len(line))
    generator = next((number for number, line in enumerate(lines, 1) if line.rstrip() == GENERATOR), len(lines) + 1)
    for index, (node, after) in enumerate(_changes(ast.parse(source))):
        if node.lineno > generator:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        yield Mutant(path, index, node.lineno, " ".join(source[start:end].decode().split()), after)


def _changes(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Nodes of a tree, each with the replacing text."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if not node.name.startswith(("generate", "__repr__", "__str__")):
            for child in (*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from _changes(child)
        return
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_told(node):
        return
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        if node.value is not None and not any(BOUND.fullmatch(ast.unparse(name)) for name in names):
            yield from _changes(node.value)
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield from ((node, text) for text in _instead(node))
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.keyword) and child.arg in GUARDS and _is_dataclass(node)):
            yield from _changes(child)


def _instead(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield _wrapped(ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators))
        case ast.BoolOp(op, values):
            yield _wrapped(ast.BoolOp(SWAPS[type(op)](), values))
        case ast.BinOp(left, op, right) if type(op) in SWAPS and not _is_text(left) and not _is_text(right):
            yield _wrapped(ast.BinOp(left, SWAPS[type(op)](), right))
        case ast.UnaryOp(ast.Not(), operand):
            yield _wrapped(operand)
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() as value):
            yield str(value + 1)
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant | ast.JoinedStr):
            yield "return None"
        case ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Expr(ast.Call() as call) if not _is_told(call):
            yield "pass"
        case ast.Continue():
            yield "break"


def _wrapped(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_told(node: ast.AST) -> bool:
    """Whether a call only informs people, by the last word of the called name, or by the first if that is a logger."""
    words = ast.unparse(node.func).split(".") if isinstance(node, ast.Call) else [""]
    return bool(TOLD.fullmatch(words[0] if words[0] == "log" else words[-1]))


def _is_dataclass(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "dataclass"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


class _Both(ast.NodeTransformer):
    """Compiles mutants into a module: `__mutant__` records a reached mutant, and returns whether it is selected."""

    def __init__(self, path: str, chosen: dict[int, tuple[int, str]]) -> None:
        self._path, self._chosen = path, chosen

    def visit(self, node: ast.AST) -> Any:
        """Add the replacement beside a node, and a call at the begin of a function that records the reached module."""
        number, after = self._chosen.get(id(node), (0, ""))
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at = 1 if ast.get_docstring(node, clean=False) is not None else 0
            node.body.insert(at, ast.copy_location(ast.parse(f"__mutant__({self._path!r})").body[0], node.body[0]))
        if not number:
            return node
        chosen = ast.parse(f"__mutant__({number})", mode="eval").body
        if isinstance(node, ast.stmt):
            instead = ast.parse(f"def f():\n for _ in _:\n  {after}").body[0].body[0].body  # type: ignore[attr-defined]  # the tree's shape is known
            return ast.copy_location(ast.If(chosen, instead, [node]), node)
        assert isinstance(node, ast.expr)
        return ast.copy_location(ast.IfExp(chosen, ast.parse(after, mode="eval").body, node), node)


def with_mutants(path: str, sample: Sequence[Mutant]) -> ast.Module:
    """Compile a file with its mutants of the sample. Mutants are numbered from 1."""
    tree = ast.parse((ROOT / path).read_bytes())
    changes = list(_changes(tree))
    chosen = {
        id(changes[one.index][0]): (number, changes[one.index][1])
        for number, one in enumerate(sample, 1)
        if one.path == path
    }
    _Both(path, chosen).visit(tree)
    return ast.fix_missing_locations(tree)


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that compiles the sampled modules with mutants."""

    def __init__(self, sample: Sequence[Mutant]) -> None:
        self._sample, self._files = sample, {one.path for one in sample}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Find a module as Python does, with a special loader."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        file = str(Path(spec.origin).resolve()).removeprefix(f"{ROOT}/") if spec and spec.origin else ""
        if spec is None or file not in self._files:
            return None
        spec.loader = _Loader(name, str(spec.origin))
        spec.loader.tree = with_mutants(file, self._sample)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:
        """Compile the tree, never read a cached file."""
        return compile(self.tree, self.path, "exec", dont_inherit=True)


@dataclass
class Seen:
    """Mutants, by number, and modules, by path, that one test reaches without an active mutant."""

    passed: bool = True
    seconds: float = 0
    reached: set[int | str] = field(default_factory=set)


@dataclass
class Result:
    """Results of a sample: by test, by mutant, and the mutants that run at import."""

    sample: Sequence[Mutant]
    seen: dict[str, Seen] = field(default_factory=dict)
    killers: dict[int, str] = field(default_factory=dict)
    at_import: set[int] = field(default_factory=set)
    doubtful: list[str] = field(default_factory=list)

    def reaching(self, number: int) -> list[str]:
        """Tests that reach a mutant, or its module if the import runs the mutant; the fastest file first."""
        what = self.sample[number - 1].path if number in self.at_import else number
        reached = [name for name, seen in self.seen.items() if seen.passed and what in seen.reached]
        seconds: defaultdict[str, float] = defaultdict(float)
        for name in reached:
            seconds[_file(name)] += self.seen[name].seconds
        return sorted(reached, key=lambda name: (seconds[_file(name)], _file(name)))

    def add(self, number: int, killer: str) -> None:
        """Record and report the test that killed a mutant, if any."""
        self.killers[number] = killer
        tests = len(self.reaching(number))
        verdict = "killed  " if killer else "SURVIVED" if tests else "UNSEEN  "
        say(f"{verdict}  {self.sample[number - 1]}  {killer or f'{tests} tests reach it'}")


def _file(test: str) -> str:
    return test.partition("::")[0]


class Runs:
    """Pytest plugin: runs the collected tests without a mutant, then against each mutant; or against `active` alone."""

    def __init__(self, sample: Sequence[Mutant], processes: int, active: int = 0, tests: dict[str, Seen] | None = None):
        self.result = Result(sample, tests or {})
        self._processes, self._active = processes, active
        self._now, self._of_file, self._shared = Seen(), Seen(), 0
        self._red = ""
        self._items: dict[str, pytest.Item] = {}
        self._last: pytest.Item | None = None
        builtins.__mutant__ = self._is_active  # type: ignore[attr-defined]  # a new attribute
        sys.meta_path.insert(0, _Finder(sample))

    def _is_active(self, number: int | str) -> bool:
        (self._of_file if self._shared else self._now).reached.add(number)
        return number == self._active

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Stop at the first failing example of Hypothesis, with the same examples in each run."""
        from hypothesis import Phase, settings  # pytest rewrites this module when its plugin is loaded

        fast = settings.get_profile("fast")
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", fast, phases=phases, derandomize=True, database=None)
        settings.load_profile("mutants")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[Any]") -> Iterator[None]:
        """Count code that a shared fixture reaches for every test of the file."""
        shared = fixturedef.scope != "function"
        self._shared += shared
        try:
            return (yield)
        finally:
            self._shared -= shared

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up set-up, call and teardown of a test."""
        self._now.seconds += report.duration
        if report.failed:
            self._now.passed, self._red = False, report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replaces pytest's own loop."""
        if session.testsfailed:
            raise session.Interrupted("a file cannot be collected")
        self._items = {item.nodeid: item for item in session.items}
        if self._active:
            self.result.killers[self._active] = self._judge(self._active, list(self.result.seen))
            return True
        self.result.at_import = {what for what in self._now.reached if isinstance(what, int)}
        self._now = Seen()
        self._start_postgres(session.items)
        self._look_at_all(session.items)
        inside = [number for number, _ in enumerate(self.result.sample, 1) if number not in self.result.at_import]
        judges = [partial(self._judge, number, self.result.reaching(number)) for number in inside]
        for at, killer in side_by_side(judges, self._processes):
            self.result.add(inside[at], HANGS if killer is None else killer)
        kills = [(number, killer) for number, killer in self.result.killers.items() if killer in self._items]
        repeated = [partial(self._judge, number, [killer]) for number, killer in kills]
        for at, killer in side_by_side(repeated, self._processes):
            if killer == "":
                self.result.doubtful.append(f"{self.result.sample[kills[at][0] - 1]}  {kills[at][1]}")
        return True

    def _start_postgres(self, items: list[pytest.Item]) -> None:
        """Run one test that uses PostgreSQL, so that forked processes share the server."""
        first = next(item for item in items if item.get_closest_marker("postgres"))
        self._last = next(item for item in items if item.path.parent != first.path.parent)
        first.config.hook.pytest_runtest_protocol(item=first, nextitem=self._last)

    def _look_at_all(self, items: list[pytest.Item]) -> None:
        files: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in items:
            files[item.path].append(item)
        looks = [partial(self._look, tests) for tests in sorted(files.values(), key=len, reverse=True)]
        for _, seen in side_by_side(looks, self._processes):
            self.result.seen |= seen or {}
        red = [name for name, seen in self.result.seen.items() if not seen.passed]
        say(f"{len(self.result.seen)} of {len(items)} tests ended without a mutant; red: {', '.join(red) or 'none'}")

    def _look(self, items: list[pytest.Item]) -> dict[str, Seen]:
        found, self._of_file = dict[str, Seen](), Seen()
        for item, following in pairwise([*items, self._last]):
            assert item is not None
            self._now = found[item.nodeid] = Seen()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        for seen in found.values():
            seen.reached |= self._of_file.reached
        return found

    def _judge(self, number: int, tests: Iterable[str]) -> str:
        """Run tests against a mutant; returns the first that fails."""
        self._active = number
        for item, following in pairwise([*(self._items[name] for name in tests), self._last]):
            assert item is not None
            limit_s = HANGS_S + 10 * self.result.seen[item.nodeid].seconds
            faulthandler.dump_traceback_later(limit_s, exit=True)
            self._red = ""
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._red:
                break
        faulthandler.cancel_dump_traceback_later()
        return self._red


def run(sample: Sequence[Mutant], processes: int, active: int = 0, tests: dict[str, Seen] | None = None) -> Result:
    """Run pytest on the fast tier, or on these tests, with the plugin."""
    runs = Runs(sample, processes, active, tests)
    if active and not tests:
        runs.result.killers[active] = ""
        return runs.result
    files = sorted({_file(name) for name in tests or ()})
    options = ["--fast", "-qs", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=0"]
    if active:
        faulthandler.dump_traceback_later(10 * HANGS_S, exit=True)
    code = pytest.main([*options, *files], plugins=[runs])
    if active:
        runs.result.killers.setdefault(
            active, IMPORT if code == pytest.ExitCode.INTERRUPTED else f"pytest ended with {code}"
        )
    return runs.result


def side_by_side(tasks: Sequence[Callable[[], T]], processes: int) -> Iterator[tuple[int, T | None]]:
    """Run each task in a forked process, and yield number and result in order of completion; None if the process died."""
    fork = multiprocessing.get_context("fork")
    waiting, running = deque(enumerate(tasks)), dict["Connection[Any, Any]", int]()
    while waiting or running:
        while waiting and len(running) < processes:
            number, task = waiting.popleft()
            receiver, sender = fork.Pipe(duplex=False)
            fork.Process(target=_forked, args=(task, sender)).start()
            sender.close()
            running[receiver] = number
        for ready in wait(list(running)):
            receiver = cast("Connection[Any, Any]", ready)
            try:
                result = receiver.recv()
            except EOFError:
                result = None
            yield running.pop(receiver), result


def _forked(task: Callable[[], object], sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    try:
        sender.send(task())
    finally:
        # Do not wait for threads left by a mutant, or for pytest's teardown.
        os._exit(0)


@cache
def _out() -> int:
    """A copy of the first process's stdout, because forked processes redirect theirs."""
    return os.dup(1)


def say(text: str) -> None:
    os.write(_out(), f"{text}\n".encode())


def main() -> int:
    """Sample mutants, report each, and the share of killed ones."""
    parser = argparse.ArgumentParser(prog="onefold test --mutants", description="Changes code; a test should fail.")
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of these; {', '.join(ROOMS)} unless said")
    parser.add_argument("--sample", type=int, default=100, help="how many; 100 unless said")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at a time")
    asked = parser.parse_args()
    rooms = [str(path.relative_to(ROOT)) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    every = [mutant for path in asked.files or rooms if not path.endswith(GENERATORS) for mutant in mutants(path)]
    sample = random.Random(asked.seed).sample(every, min(asked.sample, len(every)))
    say(f"{len(sample)} of {len(every)} mutants, seed {asked.seed}")
    # A process imports a module once, so each pytest run is a separate process.
    [(_, result)] = side_by_side([partial(run, sample, asked.processes)], 1)
    if result is None or not result.seen:
        say("the tests cannot be collected: ./onefold test --fast --collect-only")
        return 2
    imported = sorted(result.at_import)
    tests = [{name: result.seen[name] for name in result.reaching(number)} for number in imported]
    runs = [partial(run, sample, 1, number, some) for number, some in zip(imported, tests, strict=True)]
    for at, one in side_by_side(runs, asked.processes):
        result.add(imported[at], HANGS if one is None else one.killers[imported[at]])
    for doubtful in result.doubtful:
        say(f"doubtful, not killed a second time: {doubtful}")
    killed = sum(map(bool, result.killers.values()))
    say(f"\n{killed} of {len(sample)} killed: {killed / max(1, len(sample)):.0%}. Survivors:")
    say("\n".join(f"  {mutant}" for number, mutant in enumerate(sample, 1) if not result.killers.get(number)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
