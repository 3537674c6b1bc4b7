# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads the public headers into one description: functions, structs, handles, callbacks, numbers and constants, each with
its documentation. Everything that needs to know the interface, generate.py and the tests, asks here.

It relies on the regular style of the headers: declarations end with `;`, a documentation comment stands before what it
describes, or behind it as `/**< ... */`, and a type of numbers names its constants ("one of the GPUMEM_KIND_ values", "a
sum of GPUMEM_MEMORY_ values"). What it does not understand it refuses; tests/abi compiles what it made of the rest.
"""

import re
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import List, Optional

HEADERS = Path(__file__).resolve().parent / "include" / "gpumem"

# The constants of a type whose text names no prefix, or the prefix of another type too.
VALUES_OF = {"gpumem_status": r"GPUMEM_(SUCCESS|NOT_READY|NO_EFFECT|ERROR_\w+)",
             "gpumem_import_flags": r"GPUMEM_IMPORT_UNVERIFIED",
             "gpumem_import_state": r"GPUMEM_IMPORT_(LIVE|WITHDRAWN|PEER_GONE|UNKNOWN)"}
# Constants that C has no type for, but bindings have: name, constants, integer type, text.
UNTYPED = [
    ("gpumem_host_lock_mode", r"GPUMEM_HOST_LOCK_\w+", "int32_t", "Whether the host backend locks pinned pages."),
    ("gpumem_answer", r"GPUMEM_(CAPABILITY|ANSWER)_(NO|YES|EMULATED)", "uint64_t",
     "The answer to a question that is not about a number."),
]
# Constants that have another type than their number shows.
TYPE_OF = {r"GPUMEM_VERSION_(MAJOR|MINOR|PATCH)": "uint32_t"}

INTEGERS = {"int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "uintptr_t"}


@dataclass(frozen=True)
class Type:
    """`const char *` is Type("char", (True,)): for each star, from the left, whether what it points to is const."""
    base: str
    stars: tuple = ()

    def __str__(self):
        """As C writes it."""
        first, *others = self.stars or (False,)
        return ("const " if first else "") + self.base + (" *" if self.stars else "") + "".join(
            "const *" if constant else "*" for constant in others)


@dataclass
class Parameter:
    name: str
    type: Type
    text: str  # As it stands in the header.


@dataclass
class Item:
    header: str
    name: str
    comment: Optional[str]

    @property
    def text(self):
        """The description without commands, as one line."""
        return plain(self.comment)

    @property
    def sentence(self):
        """Its first sentence."""
        return first_sentence(self.text)

    @property
    def notes(self):
        """What it says of each parameter and of each status, by their names."""
        lines = re.sub(r"^[ \t]*\*+ ?", "", self.comment or "", flags=re.MULTILINE)
        found = re.findall(r"^\\(?:param(?:\[[\w,]+\])?|retval) (\w+) (.*?)(?=^\\|\Z)", lines, re.MULTILINE | re.DOTALL)
        return {name: " ".join(text.split()) for name, text in found}

    @property
    def since(self):
        match = re.search(r"\\since\s+(\d+)\.(\d+)", self.comment or "")
        return (int(match[1]), int(match[2])) if match else None


@dataclass
class Function(Item):
    result: Type
    parameters: List[Parameter]


@dataclass
class Callback(Function):
    """A pointer to a function of the caller."""


@dataclass
class Field(Item):
    type: Type
    length: Optional[int]  # Of an array.


@dataclass
class Struct(Item):
    fields: List[Field]

    @property
    def grows(self):
        return bool(self.fields) and self.fields[0].name == "struct_size"


@dataclass
class Handle(Item):
    target: str


@dataclass
class Constant(Item):
    value: int
    type: str  # That of its numbers, such as gpumem_kind, or one of INTEGERS.


@dataclass
class Numbers(Item):
    """A type of numbers, with the constants that it can have."""
    base: str
    flags: bool
    prefix: str  # What the names of its constants begin with.
    declared: bool = True  # Whether C has this type.
    constants: List[Constant] = field(default_factory=list)


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def includes(path):
    return re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', Path(path).read_text(encoding="utf-8"), re.MULTILINE)


def plain(comment):
    text = re.sub(r"^[ \t]*\*+ ?", "", comment or "", flags=re.MULTILINE)
    text = re.split(r"^\s*\\\w+", text, flags=re.MULTILINE)[0]
    return " ".join(text.split())


def first_sentence(text):
    return re.match(r"(.*?[.?!])(?:\s+(?=[A-Z`#0-9])|$)|.*", text)[0].strip()


def in_order(folder=HEADERS):
    """The headers as a compiler meets them, so that what a type needs comes before it. The version comes first: it is what
    a program asks a library of another version."""
    found = []

    def visit(path):
        if path in found or not path.exists():
            return
        for include in includes(path):
            if include.startswith('"'):
                visit(path.parent / include.strip('"'))
        found.append(path)

    folder = Path(folder).resolve()
    for name in ("version.h", "gpumem.h"):
        visit(folder / name)
    for path in sorted(folder.glob("*.h")):
        visit(path)
    return found


class Unreadable(Exception):
    """A header has something that this reader does not understand."""


# A documentation comment, another comment, a preprocessor line with its continuations and comments, or a piece of code.
_TOKEN = re.compile(r'(?P<doc>/\*\*(?![*/]).*?\*/)|(?P<comment>/\*.*?\*/|//[^\n]*)|'
                    r'(?P<line>^[ \t]*#(?:/\*.*?\*/|\\\n|[^\n])*)|(?P<text>"[^"\n]*"|\w+|[^\w\s])|\s+',
                    re.DOTALL | re.MULTILINE)


class Description:
    """What the headers declare, in their order."""

    def __init__(self, headers=None):
        given = [Path(path).resolve() for path in headers or in_order()]
        self.headers = [path for path in in_order(given[0].parent) if path in given]
        self.functions, self.callbacks, self.structs, self.handles = [], [], [], []
        self.numbers, self.constants = [], []
        self.initial_values = []  # The names of structs that have an _INIT macro.
        self._object_macros, self.function_macros = {}, {}
        for path in self.headers:
            self._header = path.name
            try:
                self._read(path.read_text(encoding="utf-8"))
            except (AttributeError, IndexError, ValueError) as problem:
                raise Unreadable(f"{path.name}: a declaration that is not understood ({problem})") from problem
        self._sort_constants()

    # What is asked most.

    def struct(self, name):
        return next((struct for struct in self.structs if struct.name == name), None)

    def require(self, fields):
        """Refuses the name of a field, such as `gpumem_stream_desc.priority`, that no header has, or not any more."""
        known = {f"{struct.name}.{field.name}" for struct in self.structs for field in struct.fields}
        for name in fields:
            if name not in known:
                raise Unreadable(f"{name} is named in a generator, but no header has it")

    def type_of_numbers(self, name):
        return next((numbers for numbers in self.numbers if numbers.name == name), None)

    def resolve(self, name):
        """The integer type behind the name of a type of numbers."""
        numbers = self.type_of_numbers(name)
        return numbers.base if numbers else name

    def is_handle(self, name):
        return any(handle.name == name for handle in self.handles)

    def is_callback(self, name):
        return any(callback.name == name for callback in self.callbacks)

    # Reading.

    def _read(self, text):
        words, comment, last, depth, skipping = [], None, None, 0, []
        for token in _TOKEN.finditer(text):
            kind, value = token.lastgroup, token[0]
            if kind == "line":
                skipping, made = self._preprocess(value.strip(), skipping, comment)
                if made:
                    last, comment = made, None
                continue
            if kind is None or kind == "comment" or any(skipping):
                continue
            if kind == "doc":
                if words:  # In the middle of a declaration: of a field.
                    words.append(value)
                elif value.startswith("/**<"):
                    if last is not None:
                        last.comment = value[4:-2]
                elif r"\file" not in value:
                    comment = value[3:-2]
                continue
            words.append(value)
            depth += (value in "{") - (value in "}")
            ends = value == ";" or (value == "}" and words[0] == "static")  # `static` begins a function with a body.
            if depth == 0 and ends:
                last = self._declare(words, comment)
                words, comment = [], None
        if words:
            raise Unreadable(f"{self._header}: a declaration has no end: {' '.join(words[:12])}")

    def _preprocess(self, line, skipping, comment):
        """Handles one preprocessor line; returns the conditions that are being skipped, and what was defined."""
        behind = re.search(r"/\*\*<(.*?)\*/", line, re.DOTALL)
        line = " ".join(without_comments(line.replace("\\\n", " ")).split())
        word, _, rest = line[1:].strip().partition(" ")
        if word in ("if", "ifdef", "ifndef"):
            return skipping + [word == "ifdef" and rest == "__cplusplus"], None
        if word in ("else", "elif"):
            return skipping[:-1] + [not skipping[-1] or word == "elif"], None
        if word == "endif":
            return skipping[:-1], None
        if word != "define" or any(skipping):
            return skipping, None
        name, parameters, value = re.match(r"(\w+)(\([^)]*\))?\s*(.*)$", rest).groups()
        if parameters:
            self.function_macros[name] = ([word.strip() for word in parameters[1:-1].split(",")], value)
        elif value.startswith("{"):
            if name.endswith("_INIT"):
                self.initial_values.append(name[:-len("_INIT")].lower())
        elif name.startswith("GPUMEM_") and value and not value.startswith(("__", "[[")):
            self._object_macros[name] = value
            constant = Constant(self._header, name, behind[1] if behind else comment, *self._evaluate(name))
            self.constants.append(constant)
            return skipping, constant
        return skipping, None

    def _evaluate(self, name):
        """Value and integer type of a macro."""
        text = self._object_macros[name]
        for _ in range(20):
            before = text
            for macro, (parameters, body) in self.function_macros.items():
                text = re.sub(rf"\b{macro}\(([^()]*)\)", lambda match: _fill(body, parameters, match[1]), text)
            text = re.sub(r"\bGPUMEM_\w+", lambda match: f"({self._object_macros.get(match[0], match[0])})", text)
            if text == before:
                break
        wide = re.search(r"\bUINT64_|\buint64_t\b|\d(?:[uU][lL]+|[lL]+[uU])\b", text)
        unsigned = wide or re.search(r"\bUINT32_|\buint32_t\b|\d[uU]\b", text)
        text = re.sub(r"\(\s*(?:u?int\d+_t|size_t)\s*\)", "", text)  # A cast.
        text = re.sub(r"\bU?INT\d+_C\b", "", text)
        text = re.sub(r"\bUINT(\d+)_MAX\b", lambda match: str((1 << int(match[1])) - 1), text)
        text = re.sub(r"\bINT(\d+)_MAX\b", lambda match: str((1 << int(match[1]) - 1) - 1), text)
        text = re.sub(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
        if not re.fullmatch(r"(?:0[xX][\da-fA-F]+|[\d\s()+\-*|&^~<>])+", text):
            raise Unreadable(f"{self._header}: {name} is no number: {self._object_macros[name]}")
        value = eval(text, {"__builtins__": {}})  # Numbers and operators only, as the line above made sure.
        if wide or value > 0xffffffff:
            return value & 0xffffffffffffffff, "uint64_t"
        if unsigned or value > 0x7fffffff:
            return value & 0xffffffff, "uint32_t"
        return value, "int32_t"

    def _declare(self, words, comment):
        """Takes one declaration in; returns what a comment behind it would describe."""
        words = [word for word in words if word not in ("GPUMEM_CALL", "extern")]
        if words[0] == "static" or words[:2] == ["struct", words[1]] and words[2] == ";":
            return None  # A function with a body; a struct that is named before it is declared.
        code = [word for word in words if not word.startswith("/**")]
        if words[0] == "GPUMEM_API":
            opening = code.index("(")
            function = Function(self._header, code[opening - 1], comment, _type(code[1:opening - 1]),
                                self._parameters(code[opening + 1:-2]))
            self.functions.append(function)
            return function
        if words[0] != "typedef":
            raise Unreadable(f"{self._header}: neither a typedef nor GPUMEM_API: {' '.join(words[:12])}")
        if "{" in words:
            struct = Struct(self._header, code[-2], comment, self._fields(words[words.index("{") + 1:-3]))
            self.structs.append(struct)
            return struct
        if "(" in code:
            opening = code.index("(")  # RESULT (* NAME) (PARAMETERS) ;
            callback = Callback(self._header, code[opening + 2], comment, _type(code[1:opening]),
                                self._parameters(code[opening + 5:-2]))
            # The type of a function of the library is no callback.
            if not callback.name.startswith("PFN_"):
                self.callbacks.append(callback)
            return callback
        kind, name = _type(code[1:-2]), code[-2]
        if code[1] == "struct" and kind.stars:
            self.handles.append(Handle(self._header, name, comment, kind.base))
            return self.handles[-1]
        if kind.base not in INTEGERS or kind.stars:
            raise Unreadable(f"{self._header}: {name} is a type of a kind that is not known here")
        match = re.search(r"\b(one|a sum|sum|any|bits) of (?:the )?(GPUMEM_\w+_) (?:\w+ )?(?:values|bits|flags)", plain(comment), re.IGNORECASE)
        flags = bool(match) and match[1].lower() != "one" or name.endswith("_flags")
        self.numbers.append(Numbers(self._header, name, comment, kind.base, flags, match[2] if match else "GPUMEM_"))
        return self.numbers[-1]

    def _parameters(self, code):
        parameters = []
        for words in _split(code, ","):
            if "]" in words or "(" in words:
                raise Unreadable(f"{self._header}: a parameter that is an array or a function: {_spell(words)}")
            if words not in ([], ["void"]):
                parameters.append(Parameter(words[-1], _type(words[:-1]), _spell(words)))
        return parameters

    def _fields(self, words):
        """Fields, each with the comment before or behind it."""
        fields, comment, code = [], None, []
        for word in words:
            if word.startswith("/**<"):
                fields[-1].comment = word[4:-2]
            elif word.startswith("/**"):
                comment = word[3:-2]
            elif word != ";":
                code.append(word)
            else:
                length = None
                if code[-1] == "]":
                    length = code[code.index("[") + 1]
                    length = int(length) if length.isdigit() else self._evaluate(length)[0]
                    code = code[:code.index("[")]
                fields.append(Field(self._header, code[-1], comment, _type(code[:-1]), length))
                comment, code = None, []
        return fields

    def _matching(self, pattern):
        return [constant for constant in self.constants if re.fullmatch(pattern, constant.name)]

    def _sort_constants(self):
        """Gives each constant the type that its name says: of the types whose prefix fits, the one with the longest."""
        patterns = {numbers.name: VALUES_OF.get(numbers.name, numbers.prefix + r"\w+") for numbers in self.numbers
                    if numbers.name in VALUES_OF or numbers.prefix != "GPUMEM_"}
        for name, pattern, base, text in UNTYPED:
            found = self._matching(pattern)
            if found and all(self._matching(known) != found for known in patterns.values()):
                prefix = re.match(r".*_", commonprefix([constant.name for constant in found]))[0]
                self.numbers.append(Numbers(found[0].header, name, text, base, False, prefix, declared=False))
                patterns[name] = pattern
        order = {numbers.name: (not numbers.declared, len(numbers.prefix)) for numbers in self.numbers}
        for constant in self.constants:
            fitting = [name for name, pattern in patterns.items() if re.fullmatch(pattern, constant.name)]
            for pattern, kind in TYPE_OF.items():
                if re.fullmatch(pattern, constant.name):
                    constant.type = kind
            if fitting:
                numbers = self.type_of_numbers(max(fitting, key=order.get))
                constant.type = numbers.name if numbers.declared else numbers.base
                numbers.constants.append(constant)


def _fill(body, parameters, arguments):
    values = dict(zip(parameters, [f"({argument.strip()})" for argument in arguments.split(",")]))
    return "(" + re.sub(r"\w+", lambda match: values.get(match[0], match[0]), body) + ")"


def _split(words, separator):
    parts = [[]]
    for word in words:
        if word == separator:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _type(words):
    """`const struct x * const *`: a const before the first star, on either side of the name, is that of the first."""
    base, stars, constant = "", [], False
    for word in words:
        if word == "const":
            constant = True
        elif word == "*":
            stars.append(constant)
            constant = False
        elif word != "struct":
            base = word
    return Type(base, tuple(stars))


def _spell(words):
    return re.sub(r"\* (?=[\w*])", "*", " ".join(words))
