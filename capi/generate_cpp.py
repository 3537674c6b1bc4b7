# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The part of gpumem.hpp that follows from the C headers: the structs of options, and a class with its calls for each handle.

A function is a member of the class of its first handle, or a free function if it has none. Its outputs are what it returns:
handles in their owners, and std::optional where GPUMEM_NOT_READY is a note; a note alone is a bool. An array and its count are a
span. What does not fit is written by hand in gpumem.hpp and named in BY_HAND.
"""

import re
import textwrap

import description

# How the names of functions that end an object end. The destructor of an owner calls it.
ENDS = ("destroy", "release", "close")
# What the destructor does before, or calls instead, with `handle`.
DESTRUCTORS = {
    # Work of the stream may use memory that is freed next.
    "stream": ["gpumem_stream_synchronize(handle, GPUMEM_TIMEOUT_INFINITE, nullptr);", "gpumem_stream_destroy(handle, nullptr);"],
    "instance": ["gpumem_instance_close(handle, GPUMEM_CLOSE_FORCE, nullptr, nullptr);"],
    "range": ["gpumem_range_unmap(handle, 0, GPUMEM_WHOLE_RANGE, nullptr);", "gpumem_range_release(handle, nullptr);"],
    # Else the consumers of a producer would wait as long as its process lives. A consumer is refused.
    "ring": ["gpumem_ring_finish(handle, 0, nullptr);", "gpumem_ring_destroy(handle, nullptr);"],
}
# What close() calls if it is not the function that ends the object.
CLOSERS = {"instance": "gpumem_instance_close(handle, GPUMEM_CLOSE_CHECK, nullptr, error)"}

# Functions that are written by hand, or that C++ has no use for.
BY_HAND = {f"gpumem_{name}" for name in (
    "version version_text feature_supported status_name instance_close instance_default physical_get_granularity device_get_memory "
    "share_get_fds link_import_next pool_alloc_batch stats_report stats_snapshot log_set_function table_get").split()}
# Outputs that a failing call may write, or that few ask for: they stay pointers, which may be null.
POINTERS = {("gpumem_copy_regions", "out_failed"), ("gpumem_copy_regions_async", "out_failed"), ("gpumem_copy_file", "out_info"),
            ("gpumem_share_import", "out_pointer"), ("gpumem_pool_try_alloc", "out_attempt")}
# Members whose results few need, so that the compiler does not ask for them.
MAY_BE_IGNORED = {"gpumem_hub_publish", "gpumem_link_publish", "gpumem_pool_trim"}
# Overloads that are written by hand beside a generated member of the same name.
OVERLOADS = {"instance": ["copy", "copy_file", "fill"], "stream": ["copy", "fill"], "group": ["sleep", "wake"],
             "buffer": ["sleep", "wake", "set_callbacks"], "pool": ["set_callback"], "host_kernel": ["view"]}

# Members that are not called by the words of their functions.
NAMES = {f"gpumem_{name}": member for name, member in (pair.split("=") for pair in (
    "malloc=allocate register=register_pointer unregister=unregister_pointer device_get_capability=capability "
    "physical_import_fd=import_physical physical_import_fabric=import_physical share_export=export_memory share_revoke=revoke "
    "share_get_info=share_info share_import=import_memory share_set_cache=set_import_cache share_flush_cache=flush_import_cache "
    "share_get_way=share_way share_send=send share_receive=receive share_export_dma_buf=export_dma_buf event_export=export_handle "
    "ring_export=export_handle link_enumerate=entry link_get_way=share_way link_fetch=fetch instance_probe=probe "
    "managed_attach=attach managed_advise=advise managed_prefetch=prefetch managed_prefetch_batch=prefetch "
    "managed_discard_batch=discard managed_discard_and_prefetch_batch=discard_and_prefetch managed_get_info=managed_info "
    "managed_begin_host_access=begin_host_access managed_end_host_access=end_host_access pool_free_pointer=free_pool_block "
    "stats_get=stats stats_get_kind=kind_stats stats_reset_peaks=reset_peaks status_get_info=status_info "
    "pointer_get_device_pointer=device_pointer pointer_get_info=pointer_info pointer_get_access=pointer_access range_get_mapping=mapping "
    "pool_get_block_info=pool_block_info status_enumerate=enumerate_status capability_enumerate=enumerate_capability").split())}

INFINITE = "GPUMEM_TIMEOUT_INFINITE"


def bare(name):
    return name.removeprefix("gpumem_")


def pascal(name):
    return "".join(word.capitalize() for word in bare(name).split("_"))


def ends(interface):
    """The function that ends an object, by the name of its handle."""
    found = {}
    for function in interface.functions:
        for word in ENDS:
            for handle in interface.handles:
                if function.name == f"{handle.name}_{word}":
                    found[handle.name] = function
    return found


def reference_class(interface, handle):
    """StreamRef does not own; a Device is never owned, so its class needs no other name."""
    return pascal(handle) + ("Ref" if handle in ends(interface) else "")


def said_of(function, name):
    match = re.search(rf"\\param(?:\[[\w,]+\])?\s+{name}\b(.*?)(?=\\param|\\ret|\\blocking|\\handles)", function.comment or "", re.DOTALL)
    return description.plain(match[1]) if match else ""


def may_be_null(function, name):
    return bool(re.search(r"\bNULL\b(?! pointer)(?! gives)", said_of(function, name))) and "but NULL" not in said_of(function, name)


def is_count(parameter):
    return re.fullmatch(r"(?:\w+_)?count", parameter.name) is not None


def element_structs(interface):
    """The structs of arrays, and those that a field of another points to: they are passed as they are."""
    found = {field.type.base for struct in interface.structs for field in struct.fields
             if interface.struct(field.type.base) and field.type.stars and struct.name != "gpumem_table"}
    for function in interface.functions:
        for parameter, after in zip(function.parameters, function.parameters[1:]):
            if interface.struct(parameter.type.base) and parameter.type.stars == (True,) and is_count(after):
                found.add(parameter.type.base)
    return found


def option_structs(interface):
    """The structs that a call takes one of."""
    return [struct for struct in interface.structs if struct.grows and struct.name not in element_structs(interface)
            and any(parameter.type.base == struct.name and parameter.type.stars == (True,)
                    for function in interface.functions for parameter in function.parameters)]


def type_of(interface, kind):
    """A type of C, with a handle as a Handle."""
    if interface.is_handle(kind.base) and not kind.stars:
        return f"Handle<{kind.base}>"
    return str(kind)


def named(kind, name):
    """A declaration; the star stands at the name."""
    return kind + ("" if kind[-1] in "*&" else " ") + name


def comment(text, indent):
    lines = textwrap.wrap(text, 116 - len(indent), break_long_words=False, break_on_hyphens=False)
    return "".join(f"{indent}/// {line}\n" for line in lines)


def fold(first, words, last, indent):
    """The same on one line if that is short enough, otherwise the words on lines of their own."""
    line = first + ", ".join(words) + last
    if len(line) <= 120:
        return line + "\n"
    return first + "\n" + textwrap.fill(", ".join(word.replace(" ", "\0") for word in words) + last.replace(" ", "\0"), 120, break_long_words=False,
                                        break_on_hyphens=False, initial_indent=indent, subsequent_indent=indent).replace("\0", " ") + "\n"


def words(text):
    return re.sub(r"#(GPUMEM_\w+)", r"\1", text)


def structs(interface):
    text = ""
    for struct in interface.structs:
        if struct.name not in element_structs(interface) or not struct.grows:
            continue
        text += comment(f"A {struct.name} with its initial value.", "")
        text += (f"struct {pascal(struct.name)} : {struct.name} {{\n"
                 f"  {pascal(struct.name)}() noexcept : {struct.name}({struct.name.upper()}_INIT) {{}}\n}};\n\n")
    for struct in option_structs(interface):
        text += comment(f"{words(struct.sentence)} The fields are those of {struct.name}, which says more.", "")
        text += f"struct {pascal(struct.name)} {{\n"
        for field in struct.fields[1:]:
            text += f"  {named(type_of(interface, field.type), field.name)}{f'[{field.length}]' if field.length else ''} = {{}};\n"
        text += f"\n  /// As C has it.\n  {struct.name} c() const noexcept {{\n    {struct.name} made = {struct.name.upper()}_INIT;\n"
        for field in struct.fields[1:]:
            if field.length:
                text += f"    std::memcpy(made.{field.name}, {field.name}, sizeof made.{field.name});\n"
            else:
                text += f"    made.{field.name} = {field.name}{'.get()' if interface.is_handle(field.type.base) else ''};\n"
        text += "    return made;\n  }\n};\n\n"
    return text


class Member:
    """A function as C++ offers it."""

    def __init__(self, interface, function):
        self.function = function
        parameters = [parameter for parameter in function.parameters if parameter.name != "error"]
        self.owner = self.template = None
        if parameters and interface.is_handle(parameters[0].type.base) and not parameters[0].type.stars:
            self.owner = parameters.pop(0).type.base
        self.name = self._name(interface)
        self.before, self.takes, self.passes, outputs = [], [], ["handle_"] if self.owner else [], []
        while parameters:
            parameter = parameters.pop(0)
            kind, name = parameter.type, parameter.name
            struct = interface.struct(kind.base)
            null = may_be_null(function, name)
            if name.startswith("out_") and (function.name, name) not in POINTERS:
                outputs.append(parameter)
                self.passes.append(f"&{name.removeprefix('out_')}" if not interface.is_handle(kind.base) else "&made")
            elif name.startswith("out_"):
                self._take(str(kind), name, "nullptr")
            elif parameters and kind.stars and is_count(parameters[0]):
                count = parameters.pop(0)
                element = self._element(interface, kind)
                width = interface.resolve(count.type.base)
                self._take(f"span<{element}>", name, "{}" if null and "if `count` is 0" not in said_of(function, name) else None,
                           [f"{name}.data()", f"{name}.size()" if width == "uint64_t" else f"static_cast<{width}>({name}.size())"])
            elif struct and kind.stars == (True,) and struct.grows:
                self.before.append(f"const {kind.base} c_{name} = {name}.c();")
                self._take(f"const {pascal(kind.base)} &", name, "{}" if null else None, [f"&c_{name}"])
            elif struct and kind.stars == (True,):
                self._take(f"const {kind.base} &", name, None, [f"&{name}"])
            elif interface.is_handle(kind.base) and not kind.stars:
                self._take(f"Handle<{kind.base}>", name, "nullptr" if null else None, [f"{name}.get()"])
            elif interface.is_callback(kind.base) and parameters and parameters[0].name == "user_data":
                parameters.pop(0)
                self._callback(next(callback for callback in interface.callbacks if callback.name == kind.base), name)
            else:
                default = INFINITE if name == "timeout_ns" else "nullptr" if null and kind.base == "char" else None
                self._take(str(kind), name, default)
        self._results(interface, outputs)
        # A default value is possible only where all later parameters have one.
        usable = True
        for take in reversed(self.takes):
            usable = usable and take[2] is not None
            if not usable:
                take[2] = None

    def _name(self, interface):
        function = self.function.name
        if function in NAMES:
            return NAMES[function]
        name = bare(function).removesuffix("_async")
        if self.owner and name.startswith(bare(self.owner) + "_"):
            name = name.removeprefix(bare(self.owner) + "_")
        else:
            for handle in interface.handles:
                noun = bare(handle.name)
                if name.startswith(noun + "_"):
                    verb = name.removeprefix(noun + "_")
                    name = verb.removeprefix("get_") if verb.startswith("get_") else f"{verb}_{noun}"
                    break
        return name.removeprefix("get_")

    @staticmethod
    def _element(interface, kind):
        element = description.Type(kind.base, kind.stars[1:])
        if len(kind.stars) > 1:  # `void *const *` is an array of pointers, which is only read.
            return f"{element.base} *const"
        text = pascal(kind.base) if interface.struct(kind.base) else element.base
        return f"const {text}" if kind.stars[0] else text

    def _take(self, kind, name, default=None, passes=None):
        self.takes.append([kind, name, default])
        self.passes += passes or [name]

    def _callback(self, callback, name):
        others = [str(parameter.type) for parameter in callback.parameters if parameter.name != "user_data"]
        first = callback.parameters[0].name == "user_data"
        self.template = "Callable"
        self._take("Callable &", name, None, [
            f"&detail::{'Call' if first else 'CallLast'}<Callable, {', '.join([str(callback.result), *others])}>::run",
            f"detail::address({name})"])

    def _results(self, interface, outputs):
        notes = [note for note in ("NOT_READY", "NO_EFFECT") if rf"\retval GPUMEM_{note}" in self.function.comment]
        if len(outputs) > 1:
            raise description.Unreadable(f"{self.function.name} has several outputs: write it by hand, and name it in "
                                         "capi/generate_cpp.py")
        self.result, self.after = "void", None
        if outputs:
            kind, name = outputs[0].type, outputs[0].name.removeprefix("out_")
            kind = description.Type(kind.base, kind.stars[:-1])
            struct = interface.struct(kind.base)
            if interface.is_handle(kind.base):
                self.before.append(f"{kind.base} made = nullptr;")
                self.result = pascal(kind.base)
                self.after = f"{self.result}(made)"
            else:
                self.result = str(kind)
                start = f" = {kind.base.upper()}_INIT" if struct and struct.grows and not kind.stars else "{}"
                self.before.append(f"{named(self.result, name)}{start};")
                self.after = name
            if notes:
                self.result = f"std::optional<{self.result}>"
        elif notes:
            self.result = "bool"
        self.noted = bool(notes)

    def signature(self, owner_name=None):
        takes = [named(kind, name) + (f" = {default}" if default and owner_name is None else "")
                 for kind, name, default in self.takes] + ["OnError on_error" + (" = {}" if owner_name is None else "")]
        return takes

    def declaration(self):
        text = comment(f"{words(self.function.sentence)} {self.function.name}()", "  ")
        template = "template <class Callable>\n  " if self.template else ""
        discard = "" if self.result in ("void", "bool") or self.function.name in MAY_BE_IGNORED else "[[nodiscard]] "
        return text + fold(f"  {template}{discard}{named(self.result, self.name)}(", self.signature(), f"){' const' if self.owner else ''};", " " * 6)

    def definition(self, interface):
        owner = f"{reference_class(interface, self.owner)}::" if self.owner else ""
        template = "template <class Callable>\n" if self.template else ""
        text = template + fold(f"{'' if template else 'inline '}{named(self.result, owner + self.name)}(", self.signature(owner),
                               f"){' const' if self.owner else ''} {{", " " * 4)
        text += "  detail::Attempt attempt(on_error);\n"
        text += "".join(f"  {line}\n" for line in self.before)
        first, last = {"void": ("attempt.done(", ");"), "bool": ("return attempt.ready(", ");")}.get(
            self.result, ("if (!attempt.ready(", ")) return std::nullopt;") if self.noted else ("attempt.done(", ");"))
        text += fold(f"  {first}{self.function.name}(", [*self.passes, "attempt.error()"], ")" + last, " " * 6)
        text += f"  return {self.after};\n" * bool(self.after)
        return text + "}\n"


def members(interface):
    ending = {function.name for function in ends(interface).values()}
    return [Member(interface, function) for function in interface.functions
            if function.name not in BY_HAND and function.name not in ending]


def generated(interface):
    ending, all_members = ends(interface), members(interface)
    text = "".join(f"class {reference_class(interface, handle.name)};\n" for handle in interface.handles)
    text += "\n"
    for handle in interface.handles:
        if handle.name in ending:
            text += comment(f"{words(handle.sentence)} An owner, which ends it.", "")
            text += f"using {pascal(handle.name)} = Owner<{reference_class(interface, handle.name)}>;\n"
    text += "\n" + structs(interface)
    for handle in interface.handles:
        name, noun = reference_class(interface, handle.name), bare(handle.name)
        owned = handle.name in ending
        text += comment(f"{words(handle.sentence)} {'Does not own it.' if owned else 'It is never owned.'}", "")
        text += f"class {name} : public detail::Reference<{handle.name}{', detail::Owned::yes' if owned else ''}>, public detail::ByHand<{name}> {{\n public:\n"
        text += "  using Reference::Reference;\n"
        text += "".join(f"  using detail::ByHand<{name}>::{overload};\n" for overload in OVERLOADS.get(noun, []))
        for member in all_members:
            if member.owner == handle.name:
                text += "\n" + member.declaration()
        if owned:
            calls = DESTRUCTORS.get(noun, [f"{ending[handle.name].name}(handle, nullptr);"])
            closer = CLOSERS.get(noun, f"{ending[handle.name].name}(handle, error)")
            text += f"\n protected:\n  static void end_handle({handle.name} handle) noexcept {{\n" + "".join(f"    {call}\n" for call in calls) + "  }\n"
            text += f"  static gpumem_status close_handle({handle.name} handle, gpumem_error *error) noexcept {{\n    return {closer};\n  }}\n"
        text += "};\n\n"
    free = [member for member in all_members if member.owner is None]
    text += "".join(re.sub(r"^  ", "", member.declaration(), flags=re.MULTILINE) + "\n" for member in free)
    return text + "\n".join(member.definition(interface) for member in all_members)
