# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The functions of the library that `gpumem trace record` puts in place of the library's: each calls the library, and those that
make, end or change memory write a line. bindings/cli/trace/shim.cpp has what they are made of."""

# The functions that are recorded, without "gpumem_".
RECORDED = (
    "memory_create memory_register memory_destroy malloc free register unregister "
    "physical_create physical_retain physical_import_fd physical_import_fabric physical_release range_reserve range_release range_map range_unmap "
    "buffer_create buffer_destroy buffer_resize buffer_set_capacity buffer_sleep buffer_wake group_sleep group_wake "
    "pool_create pool_destroy pool_alloc pool_alloc_aligned pool_try_alloc pool_free pool_free_sized pool_alloc_batch pool_free_batch "
    "pool_alloc_native pool_free_native pool_free_pointer pool_trim ring_create ring_open ring_destroy share_import "
    "stream_create stream_wrap stream_destroy instance_close").split()
# What is written of the options of a call, and of the arrays that have a line for each entry.
FIELDS = {
    "gpumem_memory_desc": "kind size alignment require name", "gpumem_register_desc": "pointer size require name",
    "gpumem_physical_desc": "location size name", "gpumem_range_desc": "size alignment name",
    "gpumem_buffer_desc": "size reserve location flags name group tag", "gpumem_sleep_desc": "content tag", "gpumem_wake_desc": "keep tag",
    "gpumem_pool_desc": "kind flags memory_flags limit release_threshold initial_size segment_size name",
    "gpumem_ring_desc": "slot_size slot_count name", "gpumem_stream_desc": "name",
}
ARRAYS = {"sizes": "size", "pointers": "pointer", "out_pointers": "pointer", "physicals": "physical"}
# What the library is asked about the object of a call that succeeds, of which shim.cpp has a function for each type.
DESCRIBED = ("gpumem_memory", "gpumem_physical", "gpumem_range", "gpumem_buffer", "gpumem_pool", "gpumem_ring")
ENDS = ("destroy", "release", "close")


def value(interface, kind, name, expression):
    """The call that writes one value."""
    if kind.base == "gpumem_device":
        return f"line.device({expression});"
    if kind.base == "gpumem_kind":
        return f"line.kind({expression});"
    if kind.base == "char":
        return f'line.text("{name}", {expression});'
    if interface.is_handle(kind.base) or kind.stars:
        return f'line.address("{name}", {expression});'
    return f'line.number("{name}", static_cast<uint64_t>({expression}));'


def written(interface, function):
    """The statements that write the values of a call; `made` is whether it has succeeded."""
    arrays, lines, described = [], [], None
    for parameter in function.parameters:
        name, kind = parameter.name, parameter.type
        short = name.removeprefix("out_")
        if name in ARRAYS:
            element = value(interface, type(kind)(kind.base, kind.stars[1:]), ARRAYS[name], f"{name}[i]")
            arrays.append(f"if (made) {element}" if name.startswith("out_") else element)
        elif name in ("error", "count") or (name.startswith("out_") and interface.struct(kind.base)) or kind.base == "gpumem_share_handle" or name in ("fds", "fd_count", "fd", "handle"):
            continue
        elif kind.base in FIELDS:
            struct = interface.struct(kind.base)
            fields = {field.name: field for field in struct.fields}
            last = max(FIELDS[kind.base].split(), key=list(fields).index)
            lines.append(f"if (knows({name}, offsetof({kind.base}, {last}) + sizeof {name}->{last})) {{ " + " ".join(
                value(interface, fields[field].type, field, f"{name}->{field}") for field in FIELDS[kind.base].split()) + " }")
        elif name.startswith("out_"):
            lines.append(f"if (made && {name} != nullptr) {value(interface, type(kind)(kind.base, kind.stars[1:]), short, '*' + name)}")
            if kind.base in DESCRIBED:
                described = f"*{name}"
        elif not kind.stars or kind.base == "void":
            lines.append(value(interface, kind, name, name))
            if kind.base in DESCRIBED and not function.name.endswith(ENDS):
                described = described or (f"{name}, true" if function.name == "gpumem_pool_trim" else name)
    if described:
        lines.append(f"if (made) line.describe({described});")
    return arrays, lines


def wrapper(interface, function):
    name, short = function.name, function.name.removeprefix("gpumem_")
    space = "" if str(function.result).endswith("*") else " "
    head = f"GPUMEM_API {function.result}{space}{name}({', '.join(parameter.text for parameter in function.parameters)}) {{"
    call = f"real().{name}({', '.join(parameter.name for parameter in function.parameters)})"
    if short not in RECORDED:
        return f"{head} return {call}; }}\n"
    arrays, lines = written(interface, function)
    lines = [f'Line line(begin, "{short}", status{", end" * bool(arrays)});', *lines]
    if arrays:
        lines = ["const uint64_t end = now();", "for (uint64_t i = 0; i < count; ++i) {",
                 *(f"  {text}" for text in [lines[0], 'line.number("index", i);', *lines[1:], *arrays]), "}"]
    if any("made" in text for text in lines):
        lines.insert(0, "const bool made = status == GPUMEM_SUCCESS;")
    body = ["const uint64_t begin = now();", f"const gpumem_status status = {call};", *lines, "return status;"]
    return "\n".join([head, *(f"  {text}" for text in body), "}\n"])


def generated(interface, in_table):
    interface.require(f"{struct}.{field}" for struct, fields in FIELDS.items() for field in fields.split())
    names = [function.name for function in in_table]
    unknown = [name for name in RECORDED if f"gpumem_{name}" not in names]
    if unknown:
        raise ValueError(f"no header has {unknown}")
    return ("".join(wrapper(interface, function) for function in in_table)
            + "\n// The members of gpumem_table, for a loop over all.\n#define GPUMEM_TRACE_FUNCTIONS(X) \\\n"
            + " \\\n".join(f"  X({name})" for name in names) + "\n")
