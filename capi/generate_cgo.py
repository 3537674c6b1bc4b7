# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The small functions of C through which the Go binding calls the library, one for each function.

Handles and addresses cross as numbers. Memory of Go is bytes, so that Go looks for no pointers in it. A struct of options is one
of Go's without its pointers, which are parameters of their own; if it has few numbers, each of them is a parameter too, and
the struct costs Go no allocation. The one output that fits a number is the value of the result. bindings/go/gpumem/native.h has the
macros, and the functions that are written by hand.
"""

import description
import generate_cpp

# Functions that bindings/go/gpumem/native.h has by hand: they register functions of Go, or do more than one call.
BY_HAND = {f"gpumem_{name}" for name in (
    "instance_open memory_create memory_register range_reserve share_import link_import_next log_set_function stream_launch_host_function "
    "host_launch buffer_set_callbacks pool_set_callback table_get").split()}
# They may call the callback of a pool, which may end without a return.
ALLOCATING = {f"gpumem_{name}" for name in ("pool_alloc", "pool_alloc_aligned", "pool_alloc_native", "pool_alloc_batch")}
# Texts of up to 63 bytes, which need no allocation; others may have any length.
SHORT_TEXTS = ("name", "tag")
# What an output is if a call that fails does not write it; otherwise 0.
BEFORE = {"out_failed": "UINT64_MAX"}
# A struct of options with more numbers than that is handed over as one.
FEW = 2


class Call:
    """What one function takes from Go, does first, and passes to the library."""

    def __init__(self, interface, function):
        self.interface, self.function = interface, function
        self.takes, self.before, self.passes = [], [], []
        self.output, self.sleeps = None, False
        parameters = [parameter for parameter in function.parameters if parameter.name != "error"]
        outputs = [parameter for parameter in parameters if self._is_value(parameter)]
        for parameter in parameters:
            if outputs == [parameter]:
                self.output = parameter
                self.passes.append("&output")
            else:
                self._add(parameter)
        names = [name for _, name in self.takes]
        if len(names) != len(set(names)) or {"error", "result", "output", "made", "outer"} & set(names):
            raise description.Unreadable(f"{function.header}: {function.name}: the names of its parameters collide in "
                                         "bindings/go/gpumem/calls.h; write it by hand, see BY_HAND in capi/generate_cgo.py")

    def _is_value(self, parameter):
        """Whether it is an output that is one number, address or handle."""
        kind, among = parameter.type, self.function.parameters
        array = among[among.index(parameter) + 1].name == "capacity" or (kind.base == "void" and any(map(generate_cpp.is_count, among)))
        stars = 2 if kind.base == "void" else 1
        return (parameter.name.startswith("out_") and not array and kind.stars == (False,) * stars
                and self.interface.struct(kind.base) is None)

    def _take(self, kind, name):
        self.takes.append((kind, name))

    def _number(self, kind, name):
        """Takes a number, a handle or an address; returns it as C has it."""
        if self.interface.is_handle(kind.base):
            self._take("uintptr_t", name)
            return f"({kind.base}){name}"
        if not kind.stars:
            self._take(kind.base, name)
            return name
        self._take("uintptr_t" if name.startswith("native_") else "uint64_t", name)
        return f"(void*){name}" if name.startswith("native_") else f"gpumem_go_pointer({name})"

    def _add(self, parameter):
        interface, kind, name = self.interface, parameter.type, parameter.name
        struct = interface.struct(kind.base)
        if struct and struct.grows and kind.stars == (True,) and struct.name not in generate_cpp.element_structs(interface):
            self._options(struct)
        elif str(kind) == "const char *":
            self._take("_GoString_", name)
            self.before.append(f"gpumem_go_name {name}_text;")
            null = generate_cpp.may_be_null(self.function, name)
            self.passes.append(f"gpumem_go_{'text' if null else 'word'}(&{name}_text, {name})")
        elif not kind.stars or (kind.base == "void" and len(kind.stars) == 1):
            self.passes.append(self._number(kind, name))
        elif name.startswith("out_") and kind.base == "uint64_t":  # One of several.
            self._take("uint64_t*", name)
            self.passes.append(name)
        else:
            self._take("const uint8_t*" if kind.stars[-1] else "uint8_t*", name)
            self.passes.append(from_bytes(kind, name))

    def _options(self, struct):
        """A struct of options: its numbers, together or each for itself, and its pointers."""
        fields = [field for field in struct.fields[1:] if field.name != "reserved"]
        pointers = [field for field in fields if is_pointer(self.interface, struct, field)]
        numbers = [field for field in fields if field not in pointers]
        together = len(numbers) > FEW or any(field.length for field in numbers)
        if together:
            self._take("const uint8_t*", "given")
            if not pointers:
                self.passes.append(from_bytes(description.Type(struct.name, (True,)), "given"))
                return
        self.before += [f"{struct.name} desc{'' if together else f' = {struct.name.upper()}_INIT'};"]
        if together:
            self.before.append("memcpy(&desc, given, sizeof desc);")
        for field in fields:
            if field in pointers:
                self._pointer(field)
            elif not together:
                self.before.append(f"desc.{field.name} = {self._number(field.type, field.name)};")
        self.passes.append("&desc")

    def _pointer(self, field):
        name = field.name
        if field.type.base == "gpumem_progress_function":
            self._take("uintptr_t", "call")
            self._take("uint32_t", "progress")
            self.before += ["desc.progress = progress ? gpumem_go_progress : NULL;", "desc.user_data = (void*)call;"]
            self.sleeps = True
        elif name in SHORT_TEXTS:
            self._take("_GoString_", name)
            self.before += [f"gpumem_go_name {name}_text;", f"desc.{name} = gpumem_go_text(&{name}_text, {name});"]
        elif field.type.base == "char":
            self._take("const char*", name)
            self.before.append(f"desc.{name} = {name};")
        elif name != "user_data":
            self._take("const uint8_t*", name)
            self.before.append(f"desc.{name} = {from_bytes(field.type, name)};")

    def text(self):
        name = self.function.name
        result = "gpumem_go_block" if name in ALLOCATING else "gpumem_go_result"
        macro, first = "GPUMEM_GO_RETURN", [name]
        if name in ALLOCATING:
            macro = "GPUMEM_GO_RETURN_BLOCK"
        elif self.sleeps:
            macro, first = "GPUMEM_GO_RETURN_SLEEPING", ["call", name]
        elif self.output:
            kind = self.output.type
            pointer = len(kind.stars) > 1 or self.interface.is_handle(kind.base)
            macro = "GPUMEM_GO_RETURN_POINTER" if pointer else "GPUMEM_GO_RETURN_NUMBER"
            first = ["void*" if kind.base == "void" else kind.base, name]
            if not pointer:
                first.insert(1, BEFORE.get(self.output.name, "0"))
        # What is declared comes before what is set.
        before = sorted(self.before, key=lambda line: line.startswith(("desc.", "memcpy")))
        return function_text(result, name, self.takes, before, f"{macro}(", [*first, *self.passes], ");")


def is_pointer(interface, struct, field):
    """Whether a field is none that Go can fill in: a text, an array or a function. An address and a handle are numbers."""
    if interface.is_callback(field.type.base) or field.name == "user_data":
        return True
    sizes = {f"{part}_{word}" for part in (field.name, field.name.removesuffix("s"), field.name.removesuffix("es"))
             for word in ("size", "count")}
    return field.type.base == "char" and bool(field.type.stars) or bool(field.type.stars) and any(
        other.name in sizes for other in struct.fields)


def from_bytes(kind, name):
    """Bytes of Go as what C points to."""
    if kind.base == "void" and len(kind.stars) == 1:
        return name
    target = str(kind).replace(" *", "*")
    if kind.base == "char":
        return f"({target}){name}"
    return f"({target})({'const ' * kind.stars[-1]}void*){name}"


def function_text(result, name, takes, before, first, words, last):
    parameters = [f"{kind} {parameter}" for kind, parameter in takes] or ["void"]
    text = generate_cpp.fold(f"static inline {result} gpumem_go_{name.removeprefix('gpumem_')}(", parameters, ") {", " " * 4)
    text += "".join(f"  {line}\n" for line in before)
    return text + generate_cpp.fold(f"  {first}", words, last, " " * 6) + "}\n"


def generated(interface):
    text, header = "", None
    for function in interface.functions:
        if function.name in BY_HAND:
            continue
        text += f"\n/* ---- {function.header} ---- */\n" * (function.header != header) + "\n"
        header = function.header
        if str(function.result) == "gpumem_status" and function.parameters[-1].name == "error":
            text += Call(interface, function).text()
        else:
            takes = [(parameter.type.base, parameter.name) for parameter in function.parameters]
            text += function_text(str(function.result).replace(" *", "*"), function.name, takes, [], f"return GPUMEM_GO({function.name})(",
                                  [name for _, name in takes], ");")
    return text
