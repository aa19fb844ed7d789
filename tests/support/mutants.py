"""Small changes of the code, one at a time, each of which some test must notice: `onefold test --mutants`.

    python -m tests.support.mutants [--sample N] [--seed N] [--processes N] [FILE...]

A mutant lives in a copy of the checkout. The fast tier's tests run against it, those first that import its module most
directly, until one of them fails. What only people read is no mutant: texts, annotations, log lines, bounds of time.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("processor/core", "processor/runtime", "spark_sink/landing", "proof")
# What makes up inputs may as well make up others.
GENERATORS = ("hostile.py", "shaping.py", "trade_feed.py", "sheet_snapshots.py")
# Calls that nothing but a person or a fault point notices; what is assigned to such a name is a bound, or a type.
TOLD = re.compile(r"log|_log|step|_step|progress|_progress|sleep|debug|info|warning|error|alive|collect")
BOUND = re.compile(r"_?[A-Z]\w*")
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Add,
}  # fmt: skip
# So many files of tests run first, the nearest; then more. What one of those kills is tried again: it may have been the machine.
NEAR, REACH = 6, 40
TEST_S, MUTANT_S = 300, 1800


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes [start, end) of a file, as they are and as they become."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before}  ->  {self.after}"


def mutants(path: str) -> Iterator[Mutant]:
    """All of one file."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = " ".join(source[start:end].decode().split())
        yield Mutant(path, node.lineno, start, end, before, after)


def _changes(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Nodes of a tree, and the text that stands there instead."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if not node.name.startswith(("generate", "__repr__", "__str__")):
            for child in (*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from _changes(child)
        return
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_told(node):
        return
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None and not any(BOUND.fullmatch(ast.unparse(target)) for target in targets):
            yield from _changes(node.value)
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield from ((node, text) for text in _instead(node))
    for child in ast.iter_child_nodes(node):
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
    """By the last word of what is called, or the first where that is a logger."""
    words = ast.unparse(node.func).split(".") if isinstance(node, ast.Call) else [""]
    return bool(TOLD.fullmatch(words[0] if words[0] == "log" else words[-1]))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def users() -> dict[str, set[str]]:
    """By file of the checkout the files that import it, or ask for a fixture of it by name."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, encoding="utf-8"
    )
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in listed.split() if (ROOT / path).is_file()}
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in texts}
    fixture = re.compile(r"^@pytest\.fixture.*\n(?:@.*\n)*def (\w+)", re.MULTILINE)
    fixtures = {name: path for path, text in texts.items() for name in fixture.findall(text)}
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        words = re.findall(r"\b\w+(?=: )", text) if path.startswith("tests/") else []
        used = {fixtures[name] for name in words if name in fixtures}
        for module, names in re.findall(r"^ *from ([\w.]+) import (\([^)]*\)|.*)", text, re.MULTILINE):
            for name in ("", *re.split(r"\W+", names)):
                used.add(modules.get(f"{module}.{name}".removeprefix("onefold.").rstrip("."), path))
        for one in used - {path}:
            found.setdefault(one, set()).add(path)
    return found


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """As a plugin of the runs: one example that fails is enough, the same one each time."""
    fast = settings.get_profile("fast")
    settings.register_profile("mutants", fast, phases=(Phase.explicit, Phase.generate), derandomize=True, database=None)
    settings.load_profile("mutants")


class Runner:
    """Runs the tests against mutants, each process in a copy of the checkout."""

    def __init__(self, processes: int, folder: Path) -> None:
        self._users = users()
        self._killers: dict[str, Counter[str]] = {}
        self._times = count(int(time.time()))
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(processes):
            self._copies.put(_copy(folder / str(number)))
        collected = self._pytest(folder / "0", "--collect-only", "-qq")
        # From here on, a run that cannot start is the mutant's doing.
        assert collected.returncode == 0, collected.stdout + collected.stderr
        self._tests = re.findall(r"^(tests/\S+\.py)(?=: \d+$|::)", collected.stdout, re.MULTILINE)

    def judge(self, mutant: Mutant) -> str:
        """The test that killed it; "" when none did."""
        copy = self._copies.get()
        place = copy / mutant.path
        source = place.read_bytes()
        self._write(place, source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        began = time.monotonic()
        try:
            files = self._ranked(mutant.path)
            killer = self._run(copy, files[:NEAR])
            if not killer and (killer := self._run(copy, files[NEAR:REACH])):
                killer = self._run(copy, [killer])
        finally:
            self._write(place, source)
            self._copies.put(copy)
        if killer:
            self._killers.setdefault(mutant.path, Counter())[killer.partition("::")[0]] += 1
        took = f"{time.monotonic() - began:4.0f} s"
        say(f"{'killed  ' if killer else 'SURVIVED'} {took}  {mutant}  {killer}")
        return killer

    def check(self, killers: set[str]) -> str:
        """One of these tests that fails without a mutant, too: it proves nothing."""
        return self._run(self._copies.get(), sorted(killer for killer in killers if "::" in killer))

    def _write(self, place: Path, source: bytes) -> None:
        """Python tells an old compiled file by the seconds of its source's time; two changes in one would pass for one."""
        place.write_bytes(source)
        os.utime(place, (next(self._times),) * 2)

    def _ranked(self, path: str) -> list[str]:
        """The tests that can reach a module, the nearest first; before them those that have killed a mutant of it."""
        near, waiting = {path: 0}, deque([path])
        while waiting:
            for user in self._users.get(at := waiting.popleft(), set()) - near.keys():
                near[user] = near[at] + 1
                waiting.append(user)
        word, killers = Path(path).stem, self._killers.get(path, Counter[str]())
        return sorted(near.keys() & self._tests, key=lambda file: (-killers[file], word not in file, near[file], file))

    def _run(self, copy: Path, tests: list[str]) -> str:
        if not tests:
            return ""
        try:
            done = self._pytest(copy, "-qx", "--tb=no", f"--timeout={TEST_S}", *tests)
        except subprocess.TimeoutExpired:
            return "hangs"
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return "" if done.returncode == 0 else named[1] if named else f"pytest ended with {done.returncode}"

    def _pytest(self, copy: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        options = ["--fast", "-p", "no:cacheprovider", "-p", "tests.support.mutants", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=copy,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=MUTANT_S,
        )


def _copy(to: Path) -> Path:
    shutil.copytree(ROOT, to, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
    # Some tests ask git what belongs to the checkout.
    subprocess.run("git init -q && git add -A", cwd=to, shell=True, check=True)
    return to


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Samples mutants, tells of each, and of the share that was killed."""
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
    with tempfile.TemporaryDirectory(prefix="mutants") as folder, ThreadPoolExecutor(asked.processes) as pool:
        runner = Runner(asked.processes, Path(folder))
        killers = list(pool.map(runner.judge, sample))
        red = runner.check(set(killers))
    if red:
        say(f"{red} fails without a mutant, too: mend it first, these numbers are wrong")
        return 2
    killed = sum(map(bool, killers))
    say(f"\n{killed} of {len(sample)} killed: {killed / max(1, len(sample)):.0%}. Survivors:")
    say("\n".join(f"  {mutant}" for mutant, killer in zip(sample, killers, strict=True) if not killer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
