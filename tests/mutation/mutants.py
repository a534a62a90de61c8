"""Mutants of C++ sources, all in one build: finds operators and literals with libclang and wraps each into a switch.

A comparison gets its boundary moved and its sense turned, && and || are exchanged, + and - are exchanged, `!` is dropped, an integer
becomes one more, a bool the other. switch.h says how one of them is switched on.
"""
import dataclasses
import json
import pathlib
import re
import shlex

from clang import cindex

COMPARISONS = {"<": ("less", "<="), "<=": ("less_equal", "<"), ">": ("greater", ">="), ">=": ("greater_equal", ">"),
               "==": ("equal", "!="), "!=": ("not_equal", "==")}
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": ("plus", "-"), "-": ("minus", "+")}
LOGIC = {"&&": "||", "||": "&&"}
# Run by the compiler only; or initial values of members, which are there to be overwritten.
SKIPPED_KINDS = {cindex.CursorKind.STATIC_ASSERT, cindex.CursorKind.ENUM_DECL, cindex.CursorKind.CASE_STMT,
                 cindex.CursorKind.FIELD_DECL}


@dataclasses.dataclass
class Mutant:
    number: int
    path: str
    line: int
    what: str  # "< to <="
    text: str  # the source line


def compile_arguments(build, source):
    """Of the source, or of what it is compiled as a part of."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        where = pathlib.Path(entry["directory"])
        compiled = (where / entry["file"]).resolve()
        parts = re.findall(r"^#include<(.*)>$", compiled.read_text(), re.M) if compiled.match("*-unity*.cpp") else []
        if any(pathlib.Path(path).resolve() == source.resolve() for path in [compiled, *parts]):
            words = shlex.split(entry["command"])
            keep = [word for word in words if word.startswith(("-I", "-D", "-std"))]
            return [("-I" + str((where / word[2:]).resolve())) if word.startswith("-I") else word for word in keep]
    raise LookupError(f"{source} is not compiled in {build}")


class Rewriter:
    """Collects edits of one file. An edit is (offset, length, text); insertions at one place keep their order."""

    def __init__(self, top, path, numbers):
        self.path = path
        self.source = (top / path).read_bytes()
        self.numbers = numbers  # an iterator, shared by all files
        self.edits = []
        self.mutants = []
        self.seen = set()

    def new(self, offset, what):
        line = self.source.count(b"\n", 0, offset) + 1
        text = self.source.split(b"\n")[line - 1].decode().strip()
        mutant = Mutant(next(self.numbers), self.path, line, what, text)
        self.mutants.append(mutant)
        return mutant.number

    def around(self, begin, end, before, after):
        # An outer one is met first: its opening stands left of the inner one's, its closing right of it.
        self.edits.append((begin, 0, before, len(self.edits)))
        self.edits.append((end, 0, after, -len(self.edits)))

    def replace(self, begin, end, text):
        self.edits.append((begin, end - begin, text, len(self.edits)))

    def result(self):
        out, at = [], 0
        for begin, length, text, _order in sorted(self.edits, key=lambda edit: (edit[0], edit[3])):
            out.append(self.source[at:begin])
            out.append(text.encode())
            at = begin + length
        out.append(self.source[at:])
        return b"".join(out)


def extent(cursor):
    return cursor.extent.start.offset, cursor.extent.end.offset


def is_in(cursor, path):
    return cursor.location.file is not None and cursor.location.file.name == path


def operator_between(rewriter, left, right):
    """The operator's text and place between two operands, if nothing but it and white space is there."""
    begin, end = extent(left)[1], extent(right)[0]
    between = rewriter.source[begin:end]
    stripped = between.strip()
    at = begin + between.index(stripped) if stripped else begin
    return stripped.decode(errors="replace"), at


def visit_binary(rewriter, cursor, left, right):
    begin, end = extent(cursor)
    if (begin, end) in rewriter.seen or extent(left)[0] != begin or extent(right)[1] != end:
        return
    operator, at = operator_between(rewriter, left, right)
    comma = (at, at + len(operator))
    if operator in COMPARISONS:
        name, edge = COMPARISONS[operator]
        ids = [] if operator in ("==", "!=") else [rewriter.new(at, f"{operator} to {edge}")]
        ids.append(rewriter.new(at, f"{operator} to {OPPOSITE[operator]}"))
    elif operator in ARITHMETIC and left.type.get_canonical().kind != cindex.TypeKind.POINTER:
        name, other = ARITHMETIC[operator]
        ids = [rewriter.new(at, f"{operator} to {other}")]
    elif operator in LOGIC:
        number = rewriter.new(at, f"{operator} to {LOGIC[operator]}")
        on = f" != ::mutation::on({number}))"
        rewriter.seen.add((begin, end))
        rewriter.around(begin, end, "((", on)  # De Morgan: neither side is written twice
        rewriter.around(*extent(left), "(bool(", ")" + on)
        rewriter.replace(*comma, operator)
        rewriter.around(*extent(right), "(bool(", ")" + on + ")")
        return
    else:
        return
    rewriter.seen.add((begin, end))
    rewriter.around(begin, end, f"::mutation::{name}({', '.join(map(str, ids))}, ", ")")
    rewriter.replace(*comma, ",")


def visit(rewriter, cursor, path):
    kind = cursor.kind
    if kind in SKIPPED_KINDS:
        for child in list(cursor.get_children())[1:] if kind == cindex.CursorKind.CASE_STMT else []:
            visit(rewriter, child, path)
        return
    if kind in (cindex.CursorKind.VAR_DECL, cindex.CursorKind.DECL_STMT):  # of several, only the first has the word
        words = [token.spelling for token in cursor.get_tokens()][:4]
        if "constexpr" in words:
            return
    if kind in (cindex.CursorKind.BINARY_OPERATOR, cindex.CursorKind.CALL_EXPR) and is_in(cursor, path):
        children = list(cursor.get_children())
        if kind == cindex.CursorKind.CALL_EXPR and cursor.spelling.startswith("operator") and len(children) == 3:
            # The callee stands between its operands.
            operands = sorted((child for child in children if not child.spelling.startswith("operator")
                               or child.kind == cindex.CursorKind.CALL_EXPR), key=lambda one: extent(one)[0])
            children = operands if len(operands) == 2 else []
        elif kind == cindex.CursorKind.CALL_EXPR:
            children = []
        if len(children) == 2:
            visit_binary(rewriter, cursor, *children)
    elif kind == cindex.CursorKind.UNARY_OPERATOR and is_in(cursor, path):
        begin, end = extent(cursor)
        # `a != b` of a class is for the compiler `!(a == b)`, and begins at its operator.
        is_not = rewriter.source[begin:begin + 1] == b"!" and rewriter.source[begin:begin + 2] != b"!="
        if is_not and (begin, end) not in rewriter.seen:
            rewriter.seen.add((begin, end))
            rewriter.around(begin, end, "(", f" != ::mutation::on({rewriter.new(begin, '! dropped')}))")
    elif kind in (cindex.CursorKind.INTEGER_LITERAL, cindex.CursorKind.CXX_BOOL_LITERAL_EXPR) and is_in(cursor, path):
        begin, end = extent(cursor)
        text = rewriter.source[begin:end].decode(errors="replace")
        if (begin, end) not in rewriter.seen and (text[:1].isdigit() or text in ("true", "false")):
            rewriter.seen.add((begin, end))
            what = f"{text} to {'false' if text == 'true' else 'true' if text == 'false' else text + ' + 1'}"
            rewriter.around(begin, end, f"::mutation::constant({rewriter.new(begin, what)}, ", ")")
    for child in cursor.get_children():
        if child.location.file is None or is_in(child, path):
            visit(rewriter, child, path)


def mutate(top, build, path, through, numbers):
    """Mutants of the file `path` as the translation unit `through` sees it. Returns (new text, mutants)."""
    index = cindex.Index.create()
    unit = index.parse(str(top / through), args=compile_arguments(build, top / through))
    errors = [str(one) for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Error]
    if errors:
        raise ValueError(f"{through} does not parse: {errors[0]}")
    rewriter = Rewriter(top, path, numbers)
    absolute = str(top / path)
    for cursor in unit.cursor.get_children():
        if is_in(cursor, absolute):
            visit(rewriter, cursor, absolute)
    return rewriter.result(), rewriter.mutants
