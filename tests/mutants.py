#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plants small faults (mutants) in the library and reports which suites notice them.

Usage: tests/mutants.py [--list] [--only N,N-N...] [--suite NAME]... [--first] [--jobs N] [--count N] [--seed N]
                        [--build FOLDER]
       tests/mutants.py --summary

Copies the tree to FOLDER/source (default: build/mutants), writes every mutant into that copy, where GPUMEM_MUTANT=N
chooses one at run time, and builds it once. Mutants that do not compile are dropped. Then each suite runs with each
mutant. A suite that fails, crashes or hangs has killed it. The slow suites run only for what the others leave alive.
With --first the cheapest suite runs first and a mutant is done with once one suite has killed it: that finds survivors
in a fraction of the time, but says nothing about the other suites.

The mutants are a fixed sample, chosen by --seed and by the text of the code, so that a change elsewhere does not choose
others. tests/mutants.txt names those that are always in, and those that nobody can notice, with the reason.
Results are kept in FOLDER and shown together, so that --only and --suite refine them.
"""

import argparse
import bisect
import collections
import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTES = Path(__file__).with_suffix(".txt")
# How many mutants of each layer, if --count is not given.
LAYERS = {"capi/src": 40, "impl/core": 65, "impl/backends/host": 50, "impl/backends/cuda": 50, "impl/platform": 15}

CUDA_VERSIONS = ["11.2", "11.8", "12.2", "12.8", "13.0"]
Suite = collections.namedtuple("Suite", "name tests slow")
SUITES = [
    Suite("unit", ["unit", *("unit-cuda-" + version for version in CUDA_VERSIONS)], False),
    Suite("conformance-host", ["conformance-host"], False),
    Suite("conformance-cuda", ["conformance-fake-cuda"], False),
    Suite("vectors", ["vectors-host", "vectors-fake-cuda", "agreement"], False),
    Suite("sequences", ["sequences-host-1", "sequences-host-3", "sequences-cuda-1", "sequences-cuda-3"], False),
    Suite("faults", ["faults-whole", "faults", "faults-first-use"], True),
    Suite("processes", ["processes-host", "processes-fake-cuda"], True),
]
# A tenth of what tests/run plays.
SEQUENCES = {"sequences-host-1": 500, "sequences-host-3": 300, "sequences-cuda-1": 150, "sequences-cuda-3": 50}

HEADER = """// Which fault is on. Written by tests/mutants.py.
#pragma once
#include <cstdlib>
namespace gpumem::mutants {
inline const int chosen = [] {
  const char* const text = std::getenv("GPUMEM_MUTANT");
  return text != nullptr ? std::atoi(text) : 0;
}();
}  // namespace gpumem::mutants
#define GPUMEM_IS(number) (::gpumem::mutants::chosen == (number))
"""

# ---- reading C++ ----

Token = collections.namedtuple("Token", "kind text begin end")
TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\[\[.*?\]\]|^[ \t]*\#(?:[^\n\\]|\\.)*)
      |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
      |(?P<number>\.?\d(?:[\w.']|[eEpP][+-])*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<operator><=>|->\*|<<=|>>=|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
PAIRS = {")": "(", "]": "[", "}": "{"}
PRECEDENCE = {"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7}
PRECEDENCE |= {"<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10}
ENDS = {"?", ":", ";", ",", "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "return", "co_return"}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
NOT_STATEMENTS = set(
    "alignas auto break case catch class const constexpr constinit continue default delete do else enum explicit "
    "extern for friend goto if inline namespace new operator private protected public return signed static "
    "static_assert struct switch template thread_local throw try typedef typename union unsigned using virtual void "
    "volatile while bool char int long short size_t uint64_t uint32_t int32_t int64_t uint8_t va_list".split()
)
UNSWAPPED = set("make_error log snprintf vsnprintf copy_text swap min max strcmp add multiply".split())
SIBLINGS = [
    "GPUMEM_LOCATION_DEVICE GPUMEM_LOCATION_HOST",
    "GPUMEM_ANSWER_YES GPUMEM_ANSWER_NO",
    "GPUMEM_ANSWER_EMULATED GPUMEM_ANSWER_YES",
    "GPUMEM_ANSWER_FROM_TRIAL GPUMEM_ANSWER_FROM_ATTRIBUTE",
    "GPUMEM_ANSWER_FROM_ATTRIBUTE GPUMEM_ANSWER_FROM_CONTRACT",
    "GPUMEM_ACCESS_READWRITE GPUMEM_ACCESS_READ",
    "GPUMEM_ACCESS_READ GPUMEM_ACCESS_NONE",
    "GPUMEM_ACCESS_NONE GPUMEM_ACCESS_READ",
    "GPUMEM_ACCESS_UNKNOWN GPUMEM_ACCESS_NONE",
    "GPUMEM_MEMORY_PORTABLE GPUMEM_MEMORY_MAPPED",
    "GPUMEM_MEMORY_MAPPED GPUMEM_MEMORY_PORTABLE",
    "GPUMEM_MEMORY_WRITE_COMBINED GPUMEM_MEMORY_PORTABLE",
    "GPUMEM_MEMORY_READ_ONLY GPUMEM_MEMORY_IOMEMORY",
    "GPUMEM_WAIT_GEQ GPUMEM_WAIT_EQ",
    "GPUMEM_WAIT_EQ GPUMEM_WAIT_GEQ",
    "GPUMEM_WAIT_AND GPUMEM_WAIT_NOR",
    "GPUMEM_NOT_READY GPUMEM_SUCCESS",
    "GPUMEM_SUCCESS GPUMEM_NOT_READY",
    "GPUMEM_NATIVE_ERRNO GPUMEM_NATIVE_CUDA",
    "GPUMEM_NATIVE_CUDA GPUMEM_NATIVE_ERRNO",
    "GPUMEM_TIMEOUT_INFINITE 0",
    "UINT64_MAX 0",
    "kDestroyed kClosed",
    "kClosed kDestroyed",
    "kWrites kReads",
    "kReads kWrites",
    "kWrite kRead",
    "kLeaving kLive",
    "kHost kDevice",
    "kDevice kHost",
    "CU_EVENT_DISABLE_TIMING CU_EVENT_DEFAULT",
    "CU_STREAM_NON_BLOCKING CU_STREAM_DEFAULT",
]
SIBLING = dict(pair.split() for pair in SIBLINGS)
NEXT_STATUS = {
    "INVALID_ARGUMENT": "INVALID_STATE",
    "INVALID_STATE": "INVALID_ARGUMENT",
    "STALE_HANDLE": "NOT_FOUND",
    "NOT_FOUND": "INVALID_ARGUMENT",
    "DEVICE_LOST": "INVALID_STATE",
    "UNSUPPORTED": "INVALID_ARGUMENT",
}

OBJECTS = re.compile(
    r"(decode|instance|(?<!\*)device|(?<!\*)stream|kind|kinds::\w+|shared_|record|request|lock|held|options|handle|"
    r"question|span|address|error|native_|backend|rectangle|region|pointer|map|next|run|line)(\(\))?_?$"
)

# `pieces` are (begin, end, text with one {} for the number) of the file, and never overlap.
Mutant = collections.namedtuple("Mutant", "path line last operator before after key version pieces")


def squeeze(text):
    return re.sub(r"\s+", " ", re.sub(r"//[^\n]*", "", text)).strip()


class Source:
    """A file as tokens, and the faults that can be planted in it."""

    def __init__(self, path, text):
        self.path, self.text = path, text
        self.version = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.tokens = []
        for match in TOKEN.finditer(text):
            if match.lastgroup != "skip":
                self.tokens.append(Token(match.lastgroup, match.group(), match.start(), match.end()))
        self.lines = [0] + [match.end() for match in re.finditer("\n", text)]
        self.partner = {}
        self.inside = []  # Of each token: the index of the innermost open bracket, or -1.
        open_ones = []
        for index, token in enumerate(self.tokens):
            if token.text in PAIRS and open_ones:
                first = open_ones.pop()
                self.partner[first], self.partner[index] = index, first
            self.inside.append(open_ones[-1] if open_ones else -1)
            if token.text in PAIRS.values() and token.kind == "operator":
                open_ones.append(index)
        self.blocks = {i for i, token in enumerate(self.tokens) if token.text == "{" and self.is_block(i)}
        self.found = []
        self.seen = collections.Counter()

    def word(self, index):
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def line_of(self, place):
        return bisect.bisect_right(self.lines, place)

    def between(self, first, last):
        return self.text[self.tokens[first].begin : self.tokens[last].end]

    def head(self, index):
        """The tokens of the statement that leads to this one."""
        words = []
        at = index - 1
        while at >= 0 and self.word(at) not in (";", "{"):
            if self.word(at) in PAIRS and at in self.partner:
                words.append(self.word(at))
                at = self.partner[at]
            words.append(self.word(at))
            at -= 1
        return words[::-1]

    def is_block(self, index):
        """Whether a brace begins statements, and not a class, a namespace or an initialiser."""
        before = self.word(index - 1)
        if before in (")", "]", "else", "do", "try", "const", "noexcept", "override", "mutable", ";", "{"):
            return True
        words = self.head(index)
        if "->" in words and ")" in words[: words.index("->")]:
            return True
        return before in (":", "}") and not {"class", "struct", "namespace", "="} & set(words)

    def in_code(self, index):
        at = self.inside[index]
        while at >= 0:
            if at in self.blocks and self.word(at - 1) != "{":
                return True
            at = self.inside[at]
        return False

    def callee(self, index):
        """The name before the innermost open parenthesis around a token."""
        at = self.inside[index]
        if at < 0 or self.word(at) != "(":
            return ""
        return self.word(at - 1)

    def in_text(self, index):
        """Whether a token stands behind a text among the arguments of a call, and so only makes up a message."""
        at = index
        while at >= 0 and at not in self.blocks:
            outer = self.inside[at]
            if outer >= 0 and self.word(outer) == "(":
                if any(self.tokens[i].kind == "string" and self.inside[i] == outer for i in range(outer, at)):
                    return True
            at = outer
        return False

    def is_binary(self, index):
        token = self.tokens[index]
        spaced = self.text[token.begin - 1].isspace() and self.text[token.end : token.end + 1].isspace()
        return token.kind == "operator" and token.text in PRECEDENCE and spaced

    def operand(self, index, step):
        """The last token of the left or right operand of a binary operator."""
        own = PRECEDENCE[self.word(index)]
        at = index + step
        last = None
        while 0 <= at < len(self.tokens):
            text = self.word(at)
            opening = text in PAIRS if step < 0 else text in PAIRS.values()
            closing = text in PAIRS.values() if step < 0 else text in PAIRS
            if closing or text in ENDS:
                break
            if self.is_binary(at) and (PRECEDENCE[text] < own if step < 0 else PRECEDENCE[text] <= own):
                break
            if opening:
                if text == "}" and self.partner.get(at) in self.blocks:
                    break
                at = self.partner.get(at, at)
            last = at
            at += step
        return last

    def add(self, operator, first, last, pieces, after):
        """A mutant that changes the tokens from `first` to `last`."""
        begin, end = self.tokens[first].begin, self.tokens[last].end
        before = squeeze(self.text[begin:end])
        if "#" in before:
            return
        text = before if len(before) <= 100 else f"{before[:90]}... {hashlib.sha256(before.encode()).hexdigest()[:8]}"
        name = f"{self.path} | {operator} | {text}"
        self.seen[name] += 1
        key = name if self.seen[name] == 1 else f"{name} | {self.seen[name]}"
        lines = self.line_of(begin), self.line_of(end - 1)
        self.found.append(Mutant(self.path, *lines, operator, before, after, key, self.version, pieces))

    def replace(self, operator, first, last, text, after):
        self.add(operator, first, last, [(self.tokens[first].begin, self.tokens[last].end, text)], after)

    def mutants(self):
        for index, token in enumerate(self.tokens):
            if not self.in_code(index):
                continue
            if token.text == "if" and self.word(index + 1) == "(":
                self.conditions(index + 1)
            if self.is_binary(index) and not self.in_text(index):
                self.binary(index)
            if token.text in ("true", "false") and not self.in_text(index):
                no, other = ("!", "false") if token.text == "true" else ("", "true")
                self.replace("swapped bool", index, index, f"({no}GPUMEM_IS({{}}))", other)
            if token.kind == "name" and token.text.startswith("GPUMEM_ERROR_"):
                self.status(index)
            if token.kind == "name" and token.text in SIBLING and not self.in_text(index):
                first = index
                while self.word(first - 1) == "::":
                    first -= 2
                other = self.text[self.tokens[first].begin : token.begin] + SIBLING[token.text]
                text = f"(GPUMEM_IS({{}}) ? {other} : {self.between(first, index)})"
                self.replace("wrong constant", first, index, text, SIBLING[token.text])
            number = token.kind == "number" and re.fullmatch(r"(0x[\da-fA-F']+|[\d']+)[uUlL]*", token.text)
            limit = token.kind == "name" and re.fullmatch(r"k[A-Z]\w*(Max|Size|Min|Piece|Bytes)", token.text)
            plain = number or (limit and self.word(index + 1) != "<")
            if plain and not self.in_text(index) and self.callee(index) != "static_assert":
                self.replace("off by one", index, index, f"({token.text} + GPUMEM_IS({{}}))", token.text + " + 1")
            if token.text == "(" and index in self.partner:
                self.swap(index)
        for brace in sorted(self.blocks):
            if self.in_code(brace) or self.word(brace - 1) != "{":
                self.statements(brace)
        return self.found

    def conditions(self, opening):
        closing = self.partner.get(opening)
        if closing is None:
            return
        first = opening + 1
        for at in range(opening + 1, closing):
            if self.word(at) == ";" and self.inside[at] == opening:
                first = at + 1
        if first > closing - 1 or self.word(first) in ("auto", "const"):
            return
        last = closing - 1
        condition = self.between(first, last)
        begin, end = self.tokens[first].begin, self.tokens[last].end
        self.add("never true", first, last, [(begin, begin, "!GPUMEM_IS({}) && ("), (end, end, ")")],
                 "false")
        self.add("negated", first, last,
                 [(begin, begin, "GPUMEM_IS({}) != static_cast<bool>("), (end, end, ")")],
                 f"!({squeeze(condition)})")

    def binary(self, index):
        text = self.word(index)
        left, right = self.operand(index, -1), self.operand(index, 1)
        if left is None or right is None:
            return
        one, two = self.between(left, index - 1), self.between(index + 1, right)

        def change(operator, other):
            self.replace(operator, left, right,
                         f"(GPUMEM_IS({{}}) ? {one} {other} {two} : {one} {text} {two})".replace("{}", "\0")
                         .replace("{", "{{").replace("}", "}}").replace("\0", "{}"),
                         f"{squeeze(one)} {other} {squeeze(two)}")

        if text in ("==", "!=") and self.word(left - 2) == "if" and self.partner.get(left - 1) == right + 1:
            return  # The whole condition, which is negated already.
        if text in MOVED:
            change("moved boundary" if text not in ("==", "!=") else "negated", MOVED[text])
        elif text in ("&&", "||"):
            change("and for or", "||" if text == "&&" else "&&")
        elif text in ("+", "-") and '"' not in one + two:
            change("wrong sign", "-" if text == "+" else "+")

    def status(self, index):
        token = self.tokens[index]
        if token.text in ("GPUMEM_ERROR_", "GPUMEM_ERROR_INIT") or self.word(index - 1) == "case":
            return
        other = "GPUMEM_ERROR_" + NEXT_STATUS.get(token.text[13:], "UNSUPPORTED")
        self.replace("wrong status", index, index, f"(GPUMEM_IS({{}}) ? {other} : {token.text})", other)

    def swap(self, opening):
        """The first two arguments of a call."""
        closing = self.partner[opening]
        before = self.tokens[opening - 1] if opening else None
        if before is None or before.kind != "name" or before.text in NOT_STATEMENTS | UNSWAPPED:
            return
        commas = [at for at in range(opening, closing) if self.word(at) == "," and self.inside[at] == opening]
        if not commas:
            return
        ends = [*commas[1:2], closing]
        (first, last), (third, fourth) = (opening + 1, commas[0] - 1), (commas[0] + 1, ends[0] - 1)
        one, two = self.between(first, last), self.between(third, fourth)
        if re.search(r'["{\[&]|\bmove\b|GPUMEM_|memory_order|__func__|k[A-Z]', one + two) or one == two:
            return
        # Most pairs are of different types, which does not compile.
        if one.startswith("*") != two.startswith("*") or OBJECTS.search(one) or OBJECTS.search(two):
            return
        self.add("swapped arguments", opening - 1, fourth,
                 [(self.tokens[first].begin, self.tokens[last].end, f"(GPUMEM_IS({{}}) ? ({two}) : ({one}))"),
                  (self.tokens[third].begin, self.tokens[fourth].end, f"(GPUMEM_IS({{0}}) ? ({one}) : ({two}))")],
                 f"{before.text}({squeeze(two)}, {squeeze(one)}")

    def statements(self, brace):
        """Statements of a block that are expressions can be left out."""
        closing = self.partner.get(brace)
        if closing is None:
            return
        at = brace + 1
        while at < closing:
            text = self.word(at)
            if text in ("if", "for", "while", "switch", "catch") or (text == "constexpr" and self.word(at - 1) == "if"):
                at += 1
                while self.word(at) not in ("(", ";"):
                    at += 1
                at = self.partner.get(at, at) + 1
                continue
            if text in ("else", "do", "try", ";"):
                at += 1
                continue
            if text == "{":
                at = self.partner.get(at, at) + 1
                continue
            if text in ("case", "default"):
                while self.word(at) != ":" and at < closing:
                    at += 1
                at += 1
                continue
            last = at
            while last < closing and self.word(last) != ";":
                last = (self.partner.get(last, last) if self.word(last) in ("(", "[", "{") else last) + 1
            if last < closing and self.is_expression(at, last):
                begin, end = self.tokens[at].begin, self.tokens[last].end
                self.add("left out", at, last, [(begin, begin, "{{ if (!GPUMEM_IS({})) "), (end, end, " }}")], "")
            at = last + 1

    def is_expression(self, first, last):
        head = self.word(first)
        if head == "va_end":
            return False
        if head in NOT_STATEMENTS or self.tokens[first].kind not in ("name", "operator") or head == "~":
            return False
        # Two names in a row, or with a star between them, declare something.
        for at in range(first, last):
            text, token = self.word(at), self.tokens[at]
            if text in ("(", "[", "{"):
                break
            if text in ("=", "+=", "-=", "|=", "&=", "^=", "*=", "++", "--", "->", "."):
                break
            following = self.tokens[at + 1]
            if following.kind == "name" and (token.kind == "name" or (text in (">", "&", "*") and at > first)):
                return False
        words = {self.word(at) for at in range(first, last)}
        return bool(words & {"(", "=", "+=", "-=", "|=", "&=", "^=", "*=", "++", "--"})


# ---- choosing ----


def read_notes():
    """The mutants that are always in, and why nobody can notice some."""
    always, equivalent = [], {}
    for number, line in enumerate(NOTES.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        verb, _, rest = line.partition(": ")
        key, _, reason = rest.partition(" -- ")
        if verb == "always":
            always.append(rest.strip())
        elif verb == "equivalent" and reason:
            equivalent[key.strip()] = reason.strip()
        else:
            sys.exit(f"{NOTES.name}:{number}: neither `always: KEY` nor `equivalent: KEY -- REASON`")
    return always, equivalent


def sources_of(layer):
    for path in sorted((ROOT / layer).rglob("*")):
        if path.suffix in (".cpp", ".h"):
            yield Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def overlaps(one, two):
    return one.path == two.path and any(
        a[0] <= b[1] and b[0] <= a[1] for a in one.pieces for b in two.pieces
    ) or one.path == two.path and span(one)[0] < span(two)[1] and span(two)[0] < span(one)[1]


def span(mutant):
    return mutant.pieces[0][0], mutant.pieces[-1][1]


def choose(count, seed):
    """A sample with a part of each layer and file that fits its length, in the order of the files."""
    always, equivalent = read_notes()
    wanted = dict(LAYERS)
    if count:
        total = sum(LAYERS.values())
        wanted = {layer: max(1, number * count // total) for layer, number in LAYERS.items()}
    chosen, known = [], set()
    for layer, number in wanted.items():
        sources = [(source.mutants(), len(source.lines)) for source in sources_of(layer)]
        lines = sum(length for found, length in sources if found)
        for found, length in sources:
            known |= {mutant.key for mutant in found}
            picked = [mutant for mutant in found if mutant.key in always]
            left = max(1, round(number * length / lines))
            turn = sorted(found, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
            # No operator is the only one of a file, however many places it fits.
            used = collections.Counter()
            while left and turn:
                least = min(turn, key=lambda mutant: used[mutant.operator])
                turn.remove(least)
                used[least.operator] += 1
                if not any(overlaps(least, other) for other in picked):
                    picked.append(least)
                    left -= 1
            chosen += sorted(picked, key=span)
    for key in [*always, *equivalent]:
        if key not in known:
            print(f"note: {NOTES.name} names a mutant that the code no longer has: {key}", file=sys.stderr)
    return list(enumerate(chosen, 1))


# ---- building ----


def write(path, text):
    """Keeps the time of a file that does not change, so that little is built again."""
    data = text if isinstance(text, bytes) else text.encode()
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def copy_tree(folder):
    list_files = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(list_files, cwd=ROOT, check=True, capture_output=True)
    wanted = {"impl/base/mutants.h"}
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            wanted.add(name)
            if not name.startswith(tuple(LAYERS)):
                write(folder / name, (ROOT / name).read_bytes())
                shutil.copymode(ROOT / name, folder / name)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
    return wanted


def plant(folder, names, mutants):
    write(folder / "impl/base/mutants.h", HEADER)
    by_path = collections.defaultdict(list)
    for number, mutant in mutants:
        for begin, end, text in mutant.pieces:
            by_path[mutant.path].append((begin, end, text.format(number)))
    for name in names:
        if not name.startswith(tuple(LAYERS)):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        if name in by_path:
            for begin, end, new in sorted(by_path[name], reverse=True):
                old = text[begin:end]
                # Lines keep their numbers, by which errors of the compiler are told apart.
                text = text[:begin] + new.replace("\n", " ") + "\n" * old.count("\n") + text[end:]
            assert text.startswith("// SPDX"), name
            text = '#include "base/mutants.h"' + text[text.index("\n") :]
        write(folder / name, text)


def build(folder, mutants, log):
    """Builds until what is left compiles; returns that and the tests by name."""
    source, output = folder / "source", folder / "output"
    names = copy_tree(source)
    list_of_broken = folder / "broken.json"
    known = json.loads(list_of_broken.read_text()) if list_of_broken.exists() else []
    mutants = [(number, mutant) for number, mutant in mutants if identity(mutant) not in known]
    environment = dict(os.environ)
    environment.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")
    cache = "ccache " if shutil.which("ccache") else ""
    environment |= {"CC": cache + "gcc", "CXX": cache + "g++"}
    plant(source, names, mutants)
    if not (output / "build.ninja").exists():
        options = "-Dtests=true -Dcli=false -Dwarning_level=0 -Ddebug=false -Doptimization=1 -Dcpp_args=-w".split()
        subprocess.run(["meson", "setup", output, source, *options], check=True, env=environment, stdout=log)
    introspect = ["meson", "introspect", output, "--tests", "--targets"]
    introspected = subprocess.run(introspect, check=True, capture_output=True)
    facts = json.loads(introspected.stdout)
    tests = {test["name"]: test for test in facts["tests"]}
    targets = {target["id"]: target for target in facts["targets"]}
    needed = set()
    for suite in SUITES:
        for name in suite.tests:
            needed |= {targets[id]["filename"][0] for id in tests[name]["depends"]}
    library = next(target["filename"][0] for target in facts["targets"] if target["name"] == "gpumem")
    for wanted in [[library], sorted({library, *needed})]:
        wanted = [os.path.relpath(name, output) for name in wanted]
        while True:
            command = ["ninja", "-C", output, "-j", str(JOBS), "-k", "0", *wanted]
            result = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
            log.write(result.stdout)
            if result.returncode == 0:
                break
            broken = find_broken(result.stdout, source, output, mutants)
            if not broken:
                sys.exit(f"the build fails, and no mutant is the reason: see {log.name}")
            for number, mutant in mutants:
                if number in broken:
                    log.write(f"dropped {number}: {mutant.key}\n")
                    known.append(identity(mutant))
            list_of_broken.write_text(json.dumps(known, indent=1))
            print(f"{len(broken)} mutants do not compile", file=sys.stderr)
            mutants = [(number, mutant) for number, mutant in mutants if number not in broken]
            plant(source, names, mutants)
    return mutants, tests


def find_broken(text, source, output, mutants):
    """The mutants in the lines that the compiler complains about; failing that, in the files."""
    places = collections.defaultdict(set)
    for name, line, what in re.findall(r"^(\S+?):(\d+):\d+: (.*)$", text, re.MULTILINE):
        path = Path(os.path.normpath(output / name))
        if path.is_relative_to(source):
            places[path.relative_to(source).as_posix()].add((int(line), "error" in what))
    for only_errors in (True, False):
        broken = {
            number
            for number, mutant in mutants
            for line, error in places.get(mutant.path, ())
            if (error or not only_errors) and mutant.line <= line <= mutant.last
        }
        if broken:
            return broken
    return {number for number, mutant in mutants if places.get(mutant.path)}


# ---- running ----

JOBS = 1


def command_of(test):
    command = list(test["cmd"])
    if test["name"] in SEQUENCES:
        command[command.index("--count") + 1] = str(SEQUENCES[test["name"]])
        if "--exports" in command:
            place = command.index("--exports")
            del command[place : place + 2]
    return command


def kill_all(process):
    """Kills a process and its children, those that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def states(session):
    """The states of all threads of a session's processes: R runs or waits for a processor, D waits in the kernel for what
    goes on without them (a barrier of all threads, a disk), and others sleep."""
    found = ""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                threads = [(task / "stat").read_text() for task in folder.glob("task/*")]
                found += "".join(text.rpartition(")")[2][1] for text in threads)
        except (OSError, IndexError):
            continue  # It has ended.
    return found


class Watch(threading.Thread):
    """Kills a session that sleeps for too long. Time for which it waits for a processor counts for nothing."""

    STEP = 0.5

    def __init__(self, process, limit):
        super().__init__(daemon=True)
        self.process, self.limit, self.slept, self.hung, self.over = process, limit, 0.0, False, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(self.STEP):
            if set("RD") & set(states(self.process.pid)):
                continue
            self.slept += self.STEP
            if self.slept > self.limit:
                self.hung = True
                kill_all(self.process)
                return

    def end(self):
        self.over.set()
        self.join()


def run_test(test, number, output, cpu_limit, sleep_limit):
    """Seconds of CPU, seconds asleep, and why it failed, or None."""
    cpu = round(cpu_limit)
    limits = ["prlimit", f"--cpu={cpu}:{cpu + 5}", "--core=0"]  # SIGXCPU before SIGKILL, which looks like a crash
    environment = dict(os.environ) | test["env"] | {"GTEST_FAIL_FAST": "1", "GPUMEM_MUTANT": str(number)}
    process = subprocess.Popen(
        [*limits, *command_of(test)],
        cwd=output,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    watch = Watch(process, sleep_limit)
    text = process.stdout.read().decode(errors="replace")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # until it is reaped, nobody else has its number
    watch.end()
    kill_all(process)  # what a crash leaves behind
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    reason = None
    if watch.hung or process.returncode == -signal.SIGXCPU:
        reason = "hangs"
    elif process.returncode != 0:
        failed = re.findall(r"^\[  FAILED  \] ([\w./]+)|^not ok \d+ -? ?(.{1,50})", text, re.MULTILINE)
        reason = next((one or two for one, two in failed), "")
        if not reason:
            running = re.findall(r"^\[ RUN      \] (\S+)", text, re.MULTILINE)
            reason = f"crash ({process.returncode})" + (f" in {running[-1]}" if running else "")
    return usage.ru_utime + usage.ru_stime, watch.slept, reason


def identity(mutant):
    """The key, and the version of its file: a change there makes results of its mutants void."""
    return f"{mutant.key} @ {mutant.version}"


class Results:
    """By mutant and suite: CPU seconds, and why the suite failed or None."""

    def __init__(self, folder):
        self.file = folder / "results.json"
        self.lock = threading.Lock()
        self.data = json.loads(self.file.read_text()) if self.file.exists() else {"times": {}, "mutants": {}}

    def keep(self, mutant, suite, seconds, reason):
        with self.lock:
            self.data["mutants"].setdefault(identity(mutant), {})[suite] = [round(seconds, 2), reason]
            self.save()

    def save(self):
        self.file.write_text(json.dumps(self.data, indent=1))

    def of(self, mutant):
        return self.data["mutants"].get(identity(mutant), {})


def measure(suites, tests, output, results):
    """Runs each suite that has changed without a mutant, all at once: each must pass, and shows what it takes when busy."""
    times = results.data["times"]
    stale = {}
    for name in (name for suite in suites for name in suite.tests):
        programs = [path for path in [tests[name]["cmd"][0], *output.glob("**/*.so.*")] if Path(path).is_file()]
        built = max(os.stat(path).st_mtime for path in programs)
        if name not in times or times[name][2] != built:
            stale[name] = built
    copies = max(1, JOBS // max(1, len(stale)))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        jobs = {
            name: [pool.submit(run_test, tests[name], 0, output, 3600, 1800) for _ in range(copies)] for name in stale
        }
    for name, built in stale.items():
        runs = [job.result() for job in jobs[name]]
        for _, _, reason in runs:
            if reason is not None:
                sys.exit(f"{name} fails without a mutant: {reason}")
        cpu, slept = (max(run[i] for run in runs) for i in (0, 1))
        times[name] = [round(cpu, 2), round(slept, 2), built]
        print(f"{name}: {cpu:.1f} s of CPU without a mutant", file=sys.stderr)
    results.save()
    return times


def can_reach(test, mutant):
    """A test of one backend does not run the code of the other one."""
    other = {"host": "cuda", "cuda": "host"}.get(mutant.path.split("/")[2])
    return other not in test.split("-")


def try_mutant(number, mutant, suites, tests, times, output, results, first):
    already = any(reason is not None for _, reason in results.of(mutant).values())
    for suite in suites:
        killed = any(reason is not None for _, reason in results.of(mutant).values())
        if (suite.slow or first) and killed:
            continue
        spent, why = 0.0, None
        reached = [name for name in suite.tests if can_reach(name, mutant)]
        if not reached:
            continue
        for name in reached:
            limits = 10 + 4 * times[name][0], 15 + 2 * times[name][1]
            cpu, _, why = run_test(tests[name], number, output, *limits)
            spent += cpu
            if why not in (None, "hangs"):  # A busy machine can make a test fail, but hardly twice.
                _, _, why = run_test(tests[name], number, output, *limits)
            if why is not None:
                why = f"{name}: {why}" if len(suite.tests) > 1 else why
                break
        results.keep(mutant, suite.name, spent, why)
    killers = [name for name, (_, why) in results.of(mutant).items() if why is not None]
    if suites and not (first and already):
        verdict = ", ".join(killers) or "lives"
        print(f"{number} {mutant.path}:{mutant.line} {mutant.operator}: {verdict}", file=sys.stderr)


# ---- reporting ----


def short(text, length=60):
    return text if len(text) <= length else text[: length - 3] + "..."


def describe(mutant):
    if mutant.after:
        return f"{mutant.operator}: {short(mutant.before)}  =>  {short(mutant.after)}"
    return f"{mutant.operator}: {short(mutant.before)}"


def report(mutants, results):
    _, equivalent = read_notes()
    killed_by = collections.Counter()
    alone = collections.Counter()
    ran = collections.Counter()
    layers = collections.defaultdict(lambda: [0, 0, 0, 0])
    survivors = []
    for number, mutant in mutants:
        result = results.of(mutant)
        killers = [name for name, (_, why) in result.items() if why is not None]
        seconds = sum(spent for spent, _ in result.values())
        verdict = ", ".join(killers)
        if not result:
            verdict = "not run"
        elif not killers:
            verdict = "equivalent: " + equivalent[mutant.key] if mutant.key in equivalent else "SURVIVES"
        print(f"{number:4} {mutant.path}:{mutant.line} {describe(mutant)}\n       {verdict} ({seconds:.1f} s)")
        if not result:
            continue
        for suite in result:
            ran[suite] += 1
        killed_by.update(killers)
        if len(killers) == 1:
            alone[killers[0]] += 1
        counts = layers[next(layer for layer in LAYERS if mutant.path.startswith(layer))]
        counts[0] += 1
        counts[1 if killers else 2 if mutant.key in equivalent else 3] += 1
        if not killers and mutant.key not in equivalent:
            survivors.append(number)
    print("\n| Suite | Mutants run | Killed | Share | Only this suite | CPU seconds of one run |")
    print("|---|---|---|---|---|---|")
    for suite in SUITES:
        if ran[suite.name]:
            share = 100 * killed_by[suite.name] / ran[suite.name]
            cost = sum(results.data["times"].get(name, [0])[0] for name in suite.tests)
            print(f"| {suite.name} | {ran[suite.name]} | {killed_by[suite.name]} | {share:.0f} % | {alone[suite.name]} "
                  f"| {cost:.0f} |")
    print("\n| Layer | Mutants | Killed | Equivalent | Survive |\n|---|---|---|---|---|")
    for layer, counts in [*layers.items(), ("all", [sum(column) for column in zip(*layers.values())])]:
        print(f"| {layer} | " + " | ".join(map(str, counts)) + " |")
    if survivors:
        print("\nSurvivors: " + ",".join(map(str, survivors)))
    return survivors


def numbers(text):
    result = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        result |= set(range(int(first), int(last or first) + 1))
    return result


def main():
    global JOBS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants and build nothing")
    parser.add_argument("--find", metavar="TEXT", help="print every fault that could be planted whose key has TEXT")
    parser.add_argument("--summary", action="store_true", help="print the results there are, and run nothing")
    parser.add_argument("--only", type=numbers, help="only these mutants, such as 3,17,40-50")
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES], help="only these suites")
    parser.add_argument("--first", action="store_true", help="stop at the first suite that kills, the cheapest first")
    parser.add_argument("--again", action="store_true", help="also run what has a result already")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time (default: 1)")
    parser.add_argument("--count", type=int, help="about how many mutants (default: %d)" % sum(LAYERS.values()))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=Path, default=ROOT / "build/mutants")
    arguments = parser.parse_args()
    JOBS = arguments.jobs
    if arguments.find:
        for layer in LAYERS:
            for source in sources_of(layer):
                for mutant in source.mutants():
                    if arguments.find in mutant.key:
                        print(f"{mutant.path}:{mutant.line} {mutant.key}")
        return 0
    mutants = choose(arguments.count, arguments.seed)
    if arguments.list:
        for number, mutant in mutants:
            print(f"{number:4} {mutant.path}:{mutant.line} {describe(mutant)}\n       {mutant.key}")
        return 0
    folder = arguments.build.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder)
    kept = folder / "mutants.json"
    if arguments.summary:
        built = set(json.loads(kept.read_text()))
        return 1 if report([(n, m) for n, m in mutants if identity(m) in built], results) else 0
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        mutants, tests = build(folder, mutants, log)
    kept.write_text(json.dumps([identity(mutant) for _, mutant in mutants]))
    print(f"{len(mutants)} mutants are built", file=sys.stderr)
    suites = [suite for suite in SUITES if not arguments.suite or suite.name in arguments.suite]
    times = measure(suites, tests, folder / "output", results)
    if arguments.first:
        suites.sort(key=lambda suite: (suite.slow, sum(times[name][0] for name in suite.tests)))
    chosen = [(n, m) for n, m in mutants if arguments.only is None or n in arguments.only]
    # With --first each suite sees all that is alive before the next one begins.
    for turn in [[suite] for suite in suites] if arguments.first else [suites]:
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            jobs = []
            for number, mutant in chosen:
                # What has no result yet.
                missing = [s for s in turn if arguments.again or s.name not in results.of(mutant)]
                jobs.append(pool.submit(try_mutant, number, mutant, missing, tests, times, folder / "output", results,
                                        arguments.first))
            for job in jobs:
                job.result()
    return 1 if report(mutants, results) else 0


if __name__ == "__main__":
    sys.exit(main())
