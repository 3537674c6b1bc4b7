# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the methods of the Rust binding that only pass on what they get to one function of C, and return what that has written.

Name, parameters, texts and errors follow from C, and the class from members.py. All other methods are by hand, in the module of the
object.
"""

import re
import textwrap

import description
from generate_rust import STRUCTS

# The functions, without gpumem_.
CALLS = """
    instance_get_info stats_get stats_get_kind stats_reset_peaks pointer_get_info free unregister range_get_mapping share_revoke
    share_get_way share_flush_cache pool_free_pointer pool_get_block_info copy copy_2d fill fill_2d
    managed_advise managed_get_info managed_begin_host_access managed_end_host_access
    device_get_info device_trim_graphs device_get_capability device_can_access_peer device_enable_peer_access
    device_disable_peer_access malloc register pointer_get_device_pointer
    stream_get_info stream_get_capture_id copy_async copy_2d_async fill_async fill_2d_async stream_write_value stream_wait_value
    managed_attach managed_prefetch managed_prefetch_batch managed_discard_batch managed_discard_and_prefetch_batch
    event_get_info event_export physical_get_info hub_get_info link_get_info memory_get_import_info ring_export
    pool_get_info pool_get_class_info pool_reset_peaks pool_set_limit pool_set_release_threshold pool_trim pool_release_capture
    pool_capacity_for pool_record_use pool_free pool_free_sized pool_free_batch pool_free_native
    host_native_stream_create host_native_stream_destroy host_stream_set_capturing host_device_lose host_fail_step
    host_foreign_alloc host_foreign_free host_foreign_peer_access
""".split()
# Those beside a safe one, which has the name.
RAW = {"share_get_way", "stream_write_value", "stream_wait_value", "managed_attach", "managed_prefetch", "managed_prefetch_batch",
       "managed_discard_batch", "managed_discard_and_prefetch_batch", *(f"{name}{end}" for name in ("copy", "copy_2d", "fill", "fill_2d") for end in ("", "_async"))}
# Those beside one that calls the function otherwise: they say their own name in messages.
METHODS = {"managed_advise": "Instance::advise_raw", "managed_get_info": "Instance::managed_info_raw",
           "managed_begin_host_access": "Instance::begin_host_access_raw", "pool_record_use": "Pool::record_use_raw"}
# Parameters that stand in a pair with the one before.
PAIRED = {"destination_pitch", "source_pitch", "pitch", "height", "value_size"}
# The unsafe ones, with what their caller promises.
FREED = ("Nothing may use the block any more, except work that is enqueued in the stream, or ordered before what is; without a stream, all "
         "work on it must have been observed complete. It must not be a [`PoolBlock`].")
PROMISES = {
    "free": "Nothing may use the memory any more, and all device work on it must have been observed complete. It must not be the memory of "
            "an object of this crate.",
    "register": "The memory must stay mapped until it is unregistered.",
    "unregister": "All device work on it must have been observed complete.",
    "copy": "`source` has `size` readable bytes and `destination` as many writable ones, and no Rust reference forbids the access.",
    **{name: "As [`Instance::copy_raw`]." for name in ("copy_2d", "fill", "fill_2d")},
    **{f"{name}_async": "As [`Instance::copy_raw`], until the work has been observed complete." for name in ("copy", "copy_2d", "fill", "fill_2d")},
    "stream_write_value": "The word may be written, concurrently with other accesses, until the work has been observed complete.",
    "stream_wait_value": "The word may be read until the work has been observed complete.",
    "managed_attach": "The memory lives until the work has been observed complete. Nothing accesses it that it then no longer belongs to.",
    **{f"managed_prefetch{end}": "The memory lives until the work has been observed complete." for end in ("", "_batch")},
    "managed_end_host_access": "It must not be the access of a guard.",
    **{f"managed_discard{end}_batch": "The memory lives, and nothing else accesses it, until the work has been observed complete. No value is "
       "read there before one is written." for end in ("", "_and_prefetch")},
    "pool_release_capture": "The graph must not run any more, apart from launches that are enqueued in the stream now: others get the memory "
                            "that it uses.",
    **{f"pool_free{end}": FREED for end in ("", "_sized", "_batch", "_native", "_pointer")},
    **{f"host_{name}": "Nothing uses it any more." for name in ("native_stream_destroy", "foreign_free")},
}
# What Rust says besides.
MORE = {
    "malloc": " [`Instance::free`] frees it. [`DeviceMemory`], [`Pinned`] and [`Managed`] free themselves.",
    **{f"managed_{name}": " The memory may be pageable, too, where devices access that." for name in ("advise", "prefetch")},
    "managed_begin_host_access": " [`Managed::host`] does so safely.",
    "managed_end_host_access": " It is one of [`Instance::begin_host_access_raw`].",
    "register": " It stays so until [`Instance::unregister`]. [`Registered`] and [`Device::with_registered`] do so safely.",
}
TYPES = {"void": "*mut c_void", "uint64_t": "u64", "uint32_t": "u32"}
INFOS = {**STRUCTS, "gpumem_managed_info": "ManagedInfo"}
# How a handle is got from an object, if not by its method.
HANDLE_OF = {"Device": "handle", "Instance": "inner.handle"}


class Call:
    """The method for a function."""

    def __init__(self, interface, function, owner, kinds):
        self.given, self.words, self.result, self.convert, self.info, self.returns = [], [], "()", ".map(drop)", "", ""
        for number, parameter in enumerate(function.parameters[:-1]):
            base, stars, name = parameter.type.base, parameter.type.stars, parameter.name
            text = function.notes.get(name, "")
            handle = interface.is_handle(base) and not stars
            if name.startswith("out_"):
                self.writes(base, name, text, kinds)
            elif handle and not number and owner != "host":
                self.words.append(f"self.{HANDLE_OF.get(owner, 'handle()')}")
            elif handle:
                kind = base.removeprefix("gpumem_").capitalize()
                field = HANDLE_OF.get(kind, "handle()")
                if "NULL" in text or text == "as for gpumem_pool_free()":
                    self.given.append(f"{name}: Option<&{kind}>")
                    self.words.append(f"order({name})" if kind == "Stream" else f"{name}.map_or(ptr::null_mut(), |{name}| {name}.{field})")
                else:
                    self.given.append(f"{name}: &{kind}")
                    self.words.append(f"{name}.{field}")
            elif base == "gpumem_location":
                optional = "ignored" in text
                self.given.append("place: Option<Place>" if optional else "place: Place")
                self.words += [f"place.{'map_or((0, 0), Place::to_c)' if optional else 'to_c()'}.{part}" for part in (0, 1)]
            elif name == "location_id":
                continue  # Of the place.
            elif base == "gpumem_copy_options":
                self.given.append(f"{name}: &CopyOptions")
                self.words.append(f"&{name}.describe()")
            elif base == "gpumem_share_handle":
                self.given.append(f"{name}: &ShareHandle")
                self.words.append(f"&{name}.to_c()")
            elif name == "count":
                self.words.append(f"{function.parameters[number - 1].name}.len() as u64")
            elif function.parameters[number + 1].name == "count":
                self.given.append(f"{name}: &[{TYPES.get(base, f'sys::{base}')}]")
                self.words.append(f"first_of({name})")
            elif base in kinds:
                self.given.append(f"{name}: {kinds[base]}")
                self.words.append(f"{name}.0")
            elif text.startswith("1 "):
                self.given.append(f"{name}: bool")
                self.words.append(f"{name}.into()")
            else:
                self.given.append(f"{name}: {'*const c_void' if stars and stars[0] else TYPES[base]}")
                self.words.append(name)
            if name in PAIRED and "wait" not in function.name and "write" not in function.name:
                (first, kind), (_, other) = (one.split(": ") for one in self.given[-2:])
                self.given[-2:] = [f"({first}, {name}): ({kind}, {other})"]
        if "GPUMEM_NO_EFFECT" in function.notes:
            self.result, self.convert = "bool", ".map(|status| status != Status::NO_EFFECT)"
            self.returns = f"Returns `false` if {function.notes['GPUMEM_NO_EFFECT']}.".replace(" if see", ": see")

    def writes(self, base, name, text, kinds):
        """What the library writes: information, or a value."""
        self.convert = ""
        if base in INFOS:
            self.info = self.result = INFOS[base]
            return
        self.returns = re.sub(r"^receives ", "Returns ", text).removesuffix("; or NULL") + "."
        if base == "gpumem_share_handle":
            self.result, self.convert = "ShareHandle", ".map(|handle| ShareHandle::of(&handle))"
        elif re.match("receives 1 ", text):
            self.result, self.convert = "bool", ".map(|yes| yes != 0)"
            self.returns = re.sub("^Returns 1 if", "Returns whether", self.returns).replace(", else 0", "")
        elif name == "out_device_pointer":
            self.result, self.convert = "u64", ".map(|address| address as u64)"
        else:
            self.result = TYPES[base]

    def body(self, function, promised):
        words = f"{function.name}({', '.join(self.words)})"
        if self.info:
            return f"info_call!({words} => {self.info})" + ("\n    " + self.convert) * bool(self.convert)
        macro = "output_call" if any(parameter.name.startswith("out_") for parameter in function.parameters) else "call"
        safety = "the promise of the caller" if promised else "handles, numbers and addresses may be any"
        line = f"unsafe {{ {macro}!({words}) }}"
        return f"// SAFETY: {safety}.\n{line}" + "\n    " * (len(line + self.convert) > 102) + self.convert


def failures(function, errors, words):
    """The kinds of errors, each with the causes that are not those of C alone."""
    found = {}
    for status, cause in function.notes.items():
        if status.startswith("GPUMEM_ERROR_"):
            causes = found.setdefault(errors.get(status.removeprefix("GPUMEM_ERROR_"), "Internal"), [])
            cause = re.sub(r"[^,;]*(\bNULL\b|`out_|is another number)[^,;]*([,;]|$)", "", cause.replace("NULL or mis", "a mis"))
            causes += [one for one in [cause.strip(" ,;").removeprefix("or ")] if one and one not in causes]
    alike = {}
    for kind, causes in found.items():
        alike.setdefault("; ".join(causes), []).append(f"[`ErrorKind::{kind}`]")
    return [f"- {', '.join(same)}: {words(causes)}" for causes, same in alike.items() if causes]


def parameters(function, given, words):
    """What a method says of its parameters."""
    for one in given:
        names, _, kind = one.rpartition(": ")
        for name in re.findall(r"\w+", names):
            text = function.notes["location" if name == "place" else name]
            if kind == "bool":
                text = text.replace("1 if", "whether").replace(", otherwise 0", "")
            elif kind[0] in "&O":
                text = re.sub(r"array of `count` (\w+)(; each has .*)?", r"the \1", re.sub("(, or|, such as|;) NULL .*", "", text))
                text = re.sub(r"\bNULL\b", "`None`", text)
            if text not in ("1 or 0", name) and not re.match("(one|a sum) of the GPUMEM_", text):
                yield f"- `{name}`: {words(text)}"


def calls(interface, kinds, errors, member, words, comment):
    """The methods, by class. What Rust calls things comes from generate.py."""
    known = {function.name.removeprefix("gpumem_"): function for function in interface.functions}
    if not {*CALLS, *PROMISES} <= {*known}:
        raise description.Unreadable(f"generate_rust_calls.py names {', '.join({*CALLS, *PROMISES} - {*known})}, which no header has")
    made = {}
    for short in CALLS:
        function, promise = known[short], PROMISES.get(short)
        owner, _, name = METHODS.get(short, member(function)).rpartition("::")
        if short in RAW:
            name = name.removesuffix("_batch") + "_batch" * short.endswith("_batch") + "_raw"
        call = Call(interface, function, owner, kinds)
        if short in METHODS:
            call.convert += f'.map_err(|error| error.called_as("{METHODS[short]}"))'
        about = f"{function.text}{MORE.get(short, '')} {call.returns}".strip().replace(": see share.h", "").replace(" Returns 1 or 0.", "")
        notes = list(parameters(function, call.given, words))
        says = [words(about.replace("with NULL or", "with `None` or")), *[""] * bool(notes), *notes]
        says += ["", "# Safety", promise] if promise else []
        failing = failures(function, errors, words)
        says += ["", "# Errors", *(failing or ["If the instance is closed, or belongs to the parent process."])]
        width = 110 if owner == "host" else 106
        text = ""
        for line in says:
            lines = comment(line, "/// ", width) or "///\n"
            text += lines.replace("\n/// ", "\n///   ") if line.startswith("- ") else lines
        first, given = f"pub {'unsafe ' * bool(promise)}fn {name}(", ["&self"] * (owner != "host") + call.given
        last = f") -> Result<{call.result}, Error> {{"
        line = first + ", ".join(given) + last
        if len(line) > width:
            line = f"{first}\n" + "".join(f"    {one},\n" for one in given) + last
        body = [textwrap.fill(part, 106, initial_indent="    ", subsequent_indent=" " * 8, break_on_hyphens=False)
                for part in call.body(function, promise).splitlines()]
        made.setdefault(owner, []).append(f"{text}{line}\n" + "\n".join(body) + "\n}\n")
    text = "".join(f"\n{one}" for one in made.pop("host"))
    for owner, methods in made.items():
        text += f"\nimpl {owner} {{\n" + textwrap.indent("\n".join(methods), "    ") + "}\n"
    return text
