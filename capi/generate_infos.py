# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The structs of information of the Go binding, made of the structs of C that the library fills in.

A field has the name, the type and the text that follow from C: a text is a string, a number that is "1 if" something is a bool,
and other small numbers are int. What does not follow is named in FIELDS. Structs with fields of another shape are written by hand.
"""

import re

# The structs that Go has, with their names.
STRUCTS = {f"gpumem_{pair.partition('=')[0]}": pair.partition("=")[2] for pair in (
    "probe_info=ProbeInfo instance_info=InstanceInfo device_info=DeviceInfo capability_info=CapabilityInfo memory_info=MemoryInfo "
    "stream_info=StreamInfo event_info=EventInfo physical_info=PhysicalInfo range_info=RangeInfo mapping_info=MappingInfo "
    "buffer_info=BufferInfo group_info=GroupInfo share_info=ShareInfo import_info=ImportInfo hub_info=HubInfo link_info=LinkInfo "
    "entry_info=Entry pool_info=PoolInfo pool_class_info=PoolClass pool_attempt=PoolAttempt ring_info=RingInfo stats=Stats kind_stats=KindStats").split()}
# Those that other languages have by hand.
GO_STRUCTS = {**STRUCTS, "gpumem_way_info": "WayInfo", "gpumem_pointer_info": "PointerInfo", "gpumem_managed_info": "ManagedInfo",
              "gpumem_pool_block_info": "BlockInfo"}
# What a field is called and of which type, if that does not follow; "" leaves it as it is. Fields that are None are left out, as
# all handles are: an object knows what it belongs to, and its address.
FIELDS = {
    "gpumem_memory_info.host_pointer": None, "gpumem_memory_info.device_pointer": None, "gpumem_buffer_info.base": None,
    "gpumem_range_info.base": None,
    "gpumem_hub_info.fd_count": ("FileCount", ""), "gpumem_share_info.fd_count": ("FileCount", ""),
    "gpumem_ring_info.is_producer": ("Producer", ""), "gpumem_ring_info.slot_count": ("Slots", ""),
    "gpumem_ring_info.consumers_max": ("MaxConsumers", ""), "gpumem_ring_info.base": ("", "DevicePtr"),
    "gpumem_share_info.backend": ("", "Backend"), "gpumem_way_info.fd_count": ("FileCount", ""),
    "gpumem_pointer_info.device_pointer": ("", "DevicePtr"), "gpumem_managed_info.accessed_by_devices": None,
    **{f"gpumem_{name}": ("", kind) for name, kind in (
        ("capability_info.native_code", "int32"), ("stream_info.priority", "int32"), ("link_info.uid", "uint32"),
        ("entry_info.publisher_uid", "uint32"),
        ("device_info.pci_domain", "uint32"), ("device_info.pci_bus", "uint32"), ("device_info.pci_device", "uint32"))},
}
# Fields that follow from handles and bits, or that the caller knows: name, type, value and text.
MORE = {
    "gpumem_way_info": [("Way", "ShareWay", "", "Which way it is.")],
    "gpumem_pointer_info": [
        ("Owned", "bool", "info.memory != 0 || Kind(info.kind) == KindVirtual || Kind(info.kind) == KindPool",
         "The memory was made through this instance: as an object of its own, a range, a buffer, or a block of a pool. A block of ordinary "
         "memory is like any other ordinary memory."), ("buffer", "uintptr", "info.buffer", "")],
    "gpumem_managed_info": [("AccessedByDevices", "[]int", "ordinals(info.accessedByDevices)",
                             "Ordinals of the devices that are set as accessors of every page.")],
    "gpumem_pool_block_info": [("PoolClosed", "bool", "info.pool == 0", "Its pool was closed.")],
}
# Texts that the library has made, with names of C in them.
TRANSLATED = ("reason", "fallback_reason", "gpumem_way_info.message")
# How the text of a struct begins, and how it goes on behind its name.
BEGINNINGS = {"Information": "is information", "Result": "is the result", "Answer": "is the answer", "What": "is what", "One": "is one",
              "Counters": "has the counters", "Whether": "says whether"}
SHORT = 120  # A text that makes a line longer stands above its field.


def said(struct, field):
    """A text without what only C has: a number that is 0 or 1 is a bool, and the device of an object is not there, its ordinal is."""
    text = field.text
    device = next((other.text for other in struct.fields if other.name == "device"), None)
    if field.name == "device_ordinal" and device:
        return f"Ordinal of {'the ' * device.startswith('Device')}{device[0].lower()}{device[1:]}"
    if re.match(r"(One|A sum) of (the )?GPUMEM_\w+ values\.$", text):
        return ""
    text = re.sub(r"^1 if (.*?)(?:, else 0|; otherwise 0)?\.$", r"Whether \1.", text)
    return re.sub(r"^1 (once|until) ", r"True \1 ", text)


def fields_of(interface, struct, raw, kinds, pascal):
    """The fields: name, type, conversion of `info`, text."""
    found = []
    for field in struct.fields[1:]:
        change = FIELDS.get(f"{struct.name}.{field.name}", ("", ""))
        if change is None or field.name == "reserved" or interface.is_handle(field.type.base):
            continue
        name, kind = change[0] or pascal(field.name), change[1]
        value = f"info.{raw(field.name)}"
        base = field.type.base
        if field.length is not None and base == "char":
            kind, value = "string", f"text({value}[:])"
            value = f"translate({value})" if {field.name, f"{struct.name}.{field.name}"} & set(TRANSLATED) else value
        elif field.length is not None:
            kind = f"[{field.length}]byte"
        elif base in kinds:
            kind = kinds[base]
            value = f"{kind}({value})"
        elif re.match(r"1 (if|once|until) ", field.text) and base == "uint32_t":
            kind, value = "bool", f"{value} != 0"
        elif field.type.stars:
            kind = kind or ("uintptr" if field.name.startswith("native_") else "uint64")
            value = f"{kind}({value})" if kind != "uint64" else value
        elif base in ("int32_t", "uint32_t"):
            kind = kind or "int"
            value = f"{kind}({value})" if kind != base.removesuffix("_t") else value
        found.append((name, kind or base.removesuffix("_t"), value, said(struct, field)))
    return found + MORE.get(struct.name, [])


def declared(fields, columns, comment):
    """The fields as gofmt puts them: those between two that have their text above are in columns."""
    runs = [[]]
    for name, kind, _, text in fields:
        if len(name) + len(kind) + len(text) > SHORT - 12:
            runs.append([comment(text, "\t// ", SHORT), [name, kind]])
        else:
            runs[-1].append([name, kind, f"// {text}"] if text else [name, kind])
    return "".join((run.pop(0) if isinstance(run[0], str) else "") + columns(run) for run in runs if run)


def go(interface, native, raw, kinds, pascal, words, columns, comment):
    """The text of the file. What Go calls things, and how it writes them, comes from generate.py."""
    interface.require(FIELDS)
    text = ""
    for c_name, name in GO_STRUCTS.items():
        struct = interface.struct(c_name)
        names = {field.name: FIELDS.get(f"{c_name}.{field.name}", ("", "")) for field in struct.fields}
        own = {field: (change and change[0]) or pascal(field) for field, change in names.items()}
        fields = [(name, kind, value, words(says, own)) for name, kind, value, says in fields_of(interface, struct, raw, kinds, pascal)]
        about = struct.text.replace(" A failed call leaves them unchanged.", "")  # The methods return a new one.
        first, _, rest = words(about, own).partition(" ")
        text += "\n" + comment(f"{name} {BEGINNINGS[first]} {rest}", "// ", SHORT) + f"type {name} struct {{\n"
        text += declared(fields, columns, comment) + f"}}\n\nfunc (info *{native(c_name)}) public() {name} {{\n\treturn {name}{{\n"
        text += columns([[f"{field}:", f"{value},"] for field, _, value, _ in fields if value], "\t\t") + "\t}\n}\n"
        text += f"\n// String returns the fields that are not zero.\nfunc (info {name}) String() string {{ return fields(info) }}\n"
    return text
