# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the methods of the Go binding that only pass on what they get to one function of C, and return what that has written.

Name, parameters and texts follow from C, and the class from members.py. All other methods are by hand, in the file of the object.
"""

import re
import textwrap

import description
import generate_infos
from generate_go import OPTIONS, RECEIVERS

# The functions, without gpumem_.
CALLS = """
    stats_get stats_get_kind stats_reset_peaks free unregister pool_free_pointer share_revoke share_flush_cache pointer_get_access
    managed_advise managed_get_info
    device_trim_graphs device_can_access_peer device_enable_peer_access device_disable_peer_access malloc
    stream_get_capture_id stream_wait_event stream_write_value stream_wait_value managed_prefetch
    event_export event_destroy physical_release
    hub_publish hub_withdraw hub_close link_fetch link_publish link_withdraw link_close
    pool_free pool_release_capture pool_capacity_for pool_set_limit pool_set_release_threshold pool_reset_peaks
    host_native_stream_create host_native_stream_destroy host_stream_set_capturing host_device_lose host_fail_step
    host_foreign_alloc host_foreign_free host_foreign_peer_access
""".split()
# Those that refuse the address of an object, and which objects these are.
REFUSES = {"free": "ownedMemory", "unregister": "ownedMemory", "pool_free": "ownedBlocks", "pool_free_pointer": "ownedBlocks"}
# What Go says besides.
MORE = {
    **{name: " The address of a Memory is refused, also as a number: close the Memory." for name in ("free", "unregister")},
    **{name: " The address of a PoolBlock is refused, also as a number: call [PoolBlock.Free]." for name in ("pool_free", "pool_free_pointer")},
    "malloc": " Free it with [Instance.Free]; nothing else does.",
    "stream_write_value": " The memory must stay open until the write has been observed complete.",
    "stream_wait_value": " The memory must stay open until the wait has been observed complete.",
    "event_export": " That takes EventDisableTiming too.", "link_close": " A Wait of another goroutine fails with ErrStaleHandle.",
}


class Call:
    """The method for a function."""

    def __init__(self, interface, go, function, name):
        self.given, self.words, self.used, self.lines, self.notes = [], [], [], [], []
        owner = name.partition(".")[0]
        self.this = RECEIVERS.get(owner, owner[0].lower())
        self.name, self.owner, self.result, self.returns, self.info = name.partition(".")[2], owner, "", "", ""
        names = [parameter.name for parameter in function.parameters]
        out = [parameter for parameter in function.parameters if parameter.name.startswith("out_")]
        for parameter in out:
            self.writes(interface, go, parameter, function.notes[parameter.name])
        if not out and "GPUMEM_NO_EFFECT" in function.notes:
            self.result, self.zero = "bool", "false"
            self.returns = f" It reports whether that has an effect: not if {function.notes['GPUMEM_NO_EFFECT']}."
        for number, parameter in enumerate(function.parameters[:-1]):
            base, raw = parameter.type.base, go.raw(parameter.name)
            text = function.notes.get(parameter.name, "")
            kind = base.removesuffix("_t")
            word = f"C.{base}({raw})"
            if parameter in out:
                continue
            if interface.is_handle(base):
                kind, word = f"*{go.classes[base]}", f"{raw if number else self.this}.id()"
                self.used.append(raw if number else self.this)
                text = text.replace("NULL", "nil")
            elif base == "gpumem_share_handle":
                kind, word = "ShareHandle", f"{raw}.native()"
            elif parameter.name == "count":
                self.words.append(f"C.uint64_t(len({self.given[-1][0]}))")
                continue
            elif "count" in names[number + 1:number + 2]:
                kind, word = f"[]{kind}", f"first({raw})"
            elif parameter.name.startswith("native_"):
                kind, word = "uintptr", f"C.uintptr_t({raw})"
            elif base == "void":
                kind, word = "Address", f"C.uint64_t({raw}.value)"
                objects = REFUSES.get(function.name.removeprefix("gpumem_"))
                if objects:
                    instance = self.this if owner == "Instance" else f"{self.this}.Device().Instance()"
                    self.refuses(f'{objects}.check("{name}", {instance}, {raw})')
                elif "host_" not in function.name:
                    size = "size" if "size" in names else "uint64(valueSize)" if "value_size" in names else "1"
                    leaves = f"{raw}.leave()" if owner != "Stream" else f"{self.this}.leave({raw})"
                    self.refuses(f'{raw}.enter("{name}", {size})', f"defer {leaves}")
            elif base in go.kinds:
                kind = go.kinds[base]
            elif parameter.name == "location_id":
                kind = "int"
                entered, self.lines = self.lines, []
                self.refuses(f'checkLocationID("{name}", {raw})', *entered)
            elif base == "char":
                kind, word = "string", raw
                self.refuses(f'checkTexts("{name}", {raw})')
            elif base in OPTIONS:
                raw, kind, word, text = "options", OPTIONS[base][0], "inC(&desc)", ""
                self.lines.append("desc := options.native()")
            elif text.startswith("1 "):
                kind, word = "bool", f"zeroOrOne({raw})"
                text = text.replace("1 if", "whether").replace(", otherwise 0", "")
            self.words.append(word)
            if number:
                self.given.append((raw, kind))
                if text not in ("1 or 0", "") and not re.match("one of the GPUMEM_", text):
                    self.notes.append(f"{raw}: {text}")

    def refuses(self, check, *then):
        """A check that the call does not pass on."""
        self.lines += [f"if err := {check}; err != nil {{", "\treturn ZERO", "}", *then]

    def writes(self, interface, go, parameter, text):
        """What the library writes: information, or a value."""
        base = parameter.type.base
        if base in generate_infos.GO_STRUCTS:
            self.info = go.struct(base)
            self.result, self.zero = generate_infos.GO_STRUCTS[base], "info.public()"
            return
        self.returns = re.sub("^receives ", " It returns ", text).removesuffix("; or NULL") + "."
        self.returns = re.sub(r" It returns (1 or 0|one of the GPUMEM_\w+ values)\.$", "", self.returns)
        self.zero = "0"
        if base == "gpumem_share_handle":
            self.result, self.zero = "ShareHandle", "ShareHandle{}"
        elif re.match("receives 1 ", text):
            self.result, self.zero = "bool", "false"
        elif base in go.kinds:
            self.result = go.kinds[base]
        elif base == "void":
            native = "native" in text
            self.result, self.zero = ("uintptr", "0") if native else ("Address", "Address{}")
        else:
            self.result = base.removesuffix("_t")

    def body(self, function):
        call = f"C.{function.name.replace('gpumem_', 'gpumem_go_')}({', '.join(self.words)}"
        used = f"), {', '.join(self.used)})"
        if self.name == "Close":
            return [f"if {self.this} == nil {{", "\treturn nil", "}",
                    f"return closeObject({self.this}, &{self.this}.handled, func() error {{ return failure({call})) }})"]
        lines = [line.replace("ZERO", f"{self.zero}, err" if self.result else "err") for line in self.lines]
        if self.info:
            return [f"info := {self.info}{{structSize: unsafe.Sizeof({self.info}{{}})}}", *lines, f"err := checked({call}, inC(&info){used}",
                    "return info.public(), err"]
        if not self.result:
            return [*lines, f"return checked({call}{used}"]
        if self.result == "ShareHandle":
            return [*lines, f"defer runtime.KeepAlive({self.this})",
                    f"return newHandle(func(bytes *C.uint8_t) error {{ return failure({call}, bytes)) }})"]
        if self.result == "bool":
            if not any(parameter.name.startswith("out_") for parameter in function.parameters):
                return [*lines, f"return succeeded({call}{used}"]
            return [*lines, f"yes, err := valueOf[uint64]({call}{used}", "return yes != 0, err"]
        if self.result == "Address":
            return [*lines, f"address, err := valueOf[uint64]({call}{used}", "return RawAddress(address), err"]
        return [*lines, f"return valueOf[{self.result}]({call}{used}"]


def calls(interface, go, member):
    """The methods. What Go calls things comes from generate.py."""
    known = {function.name.removeprefix("gpumem_"): function for function in interface.functions}
    if not {*CALLS} <= {*known}:
        raise description.Unreadable(f"generate_go_calls.py names {', '.join({*CALLS} - {*known})}, which no header has")
    text = ""
    for short in CALLS:
        function = known[short]
        call = Call(interface, go, function, member(function))
        own = {parameter.name: go.raw(parameter.name) for parameter in function.parameters}
        about = f"{function.text}{call.returns}{MORE.get(short, '')}".replace(": see share.h", "").replace("with NULL or", "with nil or")
        text += "\n" + go.comment(f"{call.name} {about[0].lower()}{go.words(about[1:], own)}")
        for note in call.notes:
            text += go.comment(go.words(note, own)).replace("// ", "//   - ", 1).replace("\n// ", "\n//     ")
        given = ", ".join(" ".join(one) for one in call.given)
        result = f"({call.result}, error)" if call.result else "error"
        text += f"func ({call.this} *{call.owner}) {call.name}({given}) {result} {{\n"
        for line in call.body(function):
            parts = textwrap.wrap(line, 116, break_on_hyphens=False) if "func(" not in line and line[0] != "\t" else [line]
            text += "\t" + "\n\t\t".join(parts) + "\n"
        text += "}\n"
    return '// #include "native.h"\nimport "C"\n\nimport (\n\t"runtime"\n\t"unsafe"\n)\n' + text
