"""Small faults of a module, each in one place: what mutations.py tries the tests with."""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

BOTH = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, BitAnd BitOr"
ONE_WAY = "FloorDiv Mult, Mod Mult, Pow Mult"
OPERATORS = {getattr(ast, a): getattr(ast, b) for a, b in (pair.split() for pair in f"{BOTH}, {ONE_WAY}".split(", "))}
OPERATORS |= {getattr(ast, b): getattr(ast, a) for a, b in (pair.split() for pair in BOTH.split(", "))}
NAMES = [("min", "max"), ("ceil", "floor"), ("any", "all"), ("minimum", "maximum"), ("argmin", "argmax")]
CALLS = dict([*NAMES, *(pair[::-1] for pair in NAMES), ("zeros", "ones"), ("norm", "sum"), ("sum", "max")])


class Place(NamedTuple):
    """A node of code, the function or class that it is in, and the lines that run it: its own, its statement's."""

    node: Any
    owner: str
    in_function: bool
    statement: range


class Mutant(NamedTuple):
    """A module with one fault."""

    module: str
    place: Place
    what: str
    tree: ast.Module

    @property
    def lines(self) -> list[range]:
        """The fault's own lines, then those of its statement."""
        node, statement = self.place.node, self.place.statement
        return [statement] if isinstance(node, ast.stmt) else [range(node.lineno, node.end_lineno + 1), statement]


def header(node: ast.stmt) -> range:
    """The lines of a statement without the statements in it."""
    inner = [each.lineno for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node]
    return range(node.lineno, max(min([(node.end_lineno or 0) + 1, *inner]), node.lineno + 1))


def places(tree: Any, owner: str = "", in_function: bool = False, statement: range = range(0)) -> Iterator[Place]:
    """The nodes of code: no annotations, nothing that an error says, no strings."""
    named = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        within = f"{owner}.{tree.name}" if named and field == "body" else owner
        runs = in_function or (field == "body" and isinstance(tree, ast.FunctionDef | ast.Lambda))
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.Assert):
                lines = header(node) if isinstance(node, ast.stmt) else statement
                yield Place(node, within, runs, lines)
                yield from places(node, within, runs, lines)


def changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    """What may be done to a node; each gets its twin in a copied tree."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield lambda twin: twin.ops.__setitem__(0, OPERATORS[type(twin.ops[0])]())
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
        yield lambda twin: setattr(twin, "op", OPERATORS[type(twin.op)]())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda twin: setattr(twin, "value", twin.value + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda twin: setattr(twin, "value", not twin.value)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda twin: setattr(twin, "test", ast.UnaryOp(ast.Not(), twin.test))
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CALLS:
            field = "attr" if isinstance(node.func, ast.Attribute) else "id"
            yield lambda twin: setattr(twin.func, field, CALLS[name])
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield lambda twin: setattr(twin, "dropped", True)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda twin: setattr(twin, "op", ast.UAdd())


class _Drop(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        if getattr(node, "dropped", False):
            return ast.copy_location(ast.Pass(), node)
        return super().generic_visit(node)


def faults(tree: ast.Module, seed: int) -> list[tuple[int, int]]:
    """All that may be done to a module, the place and the number of the change there, in an order that depends on the
    text of each alone."""
    seen, keyed = Counter[str](), []
    for k, place in enumerate(places(tree)):
        for n, _ in enumerate(changes(place.node)):
            text = f"{place.owner} {n} {ast.unparse(getattr(place.node, 'test', place.node))}"
            seen[text] += 1
            keyed.append((hashlib.sha256(f"{seed} {text} {seen[text]}".encode()).digest(), (k, n)))
    return [fault for _, fault in sorted(keyed)]


def mutant(module: str, tree: ast.Module, k: int, n: int) -> Mutant:
    other = copy.deepcopy(tree)
    place = next(each for j, each in enumerate(places(other)) if j == k)
    twin, before = place.node, ast.unparse(place.node)
    list(changes(twin))[n](twin)
    after = "nothing" if getattr(twin, "dropped", False) else ast.unparse(twin)
    short = [text.splitlines()[0][:90] for text in (before, after)]
    return Mutant(module, place, "  ->  ".join(short), ast.fix_missing_locations(_Drop().visit(other)))
