# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the options and information classes of C#: what the library takes and returns in a struct, as properties. generate.py
runs it."""

import re

import description

# Struct: class of C#, and what is by hand in a partial class: properties that it prints too, and fields that it reads itself.
CLASSES = {
    "gpumem_status_info": ("StatusInfo", [], []),
    "gpumem_copy_file_info": ("FileCopied", [], []),
    "gpumem_probe_info": ("ProbeInfo", [], []),
    "gpumem_instance_info": ("InstanceInfo", [], []),
    "gpumem_device_info": ("DeviceInfo", [], []),
    "gpumem_capability_info": ("CapabilityInfo", ["Answer", "IsAvailable"], []),
    "gpumem_memory_info": ("MemoryInfo", [], []),
    "gpumem_pointer_info": ("PointerInfo", ["IsOfInstance", "Buffer"], ["memory", "buffer"]),
    "gpumem_managed_info": ("UnifiedInfo", ["AccessedByDevices"], ["accessed_by_devices"]),
    "gpumem_physical_info": ("PhysicalInfo", [], []),
    "gpumem_range_info": ("AddressRangeInfo", [], []),
    "gpumem_buffer_info": ("BufferInfo", [], ["range"]),
    "gpumem_group_info": ("BufferGroupInfo", [], []),
    "gpumem_mapping_info": ("MappingInfo", [], ["range"]),
    "gpumem_stream_info": ("StreamInfo", [], []),
    "gpumem_event_info": ("EventInfo", [], []),
    "gpumem_kind_stats": ("KindStats", [], []),
    "gpumem_stats": ("InstanceStats", ["LiveObjects"], []),
    "gpumem_pool_info": ("PoolInfo", [], []),
    "gpumem_pool_class_info": ("PoolClassInfo", [], []),
    "gpumem_pool_block_info": ("PoolBlockInfo", ["IsOfDisposedPool"], ["pool"]),
    "gpumem_pool_attempt": ("PoolAttempt", [], []),
    "gpumem_ring_info": ("RingInfo", [], []),
    "gpumem_hub_info": ("HubInfo", [], []),
    "gpumem_link_info": ("LinkInfo", [], []),
    "gpumem_entry_info": ("HubEntry", [], []),
    "gpumem_share_info": ("ShareInfo", [], []),
    "gpumem_import_info": ("ImportInfo", [], []),
    "gpumem_way_info": ("ShareWayInfo", ["IsPossible"], []),
}
# Fields that C# calls otherwise.
FIELDS = {"pid": "Process", "uid": "User", "exporter_pid": "ExporterProcess", "publisher_pid": "PublisherProcess",
          "publisher_uid": "PublisherUser", "fd_count": "DescriptorCount", "device_uuid": "Uuid", "slow": "IsSlow",
          "fds_max": "DescriptorsMax", "copied": "Size"}
# Texts of the library, in which C names are replaced.
TEXTS = {"cause", "fallback_reason", "message", "reason", "remedy"}
# Types of C, in texts.
NOUNS = {"gpumem_buffer": "GrowableBuffer", "gpumem_memory": "GpuMemory", "gpumem_physical": "PhysicalMemory",
         "gpumem_range": "AddressRange", "gpumem_device": "GpuDevice", "gpumem_stream": "GpuStream", "gpumem_event": "GpuEvent",
         "gpumem_group": "BufferGroup", **{struct: name for struct, (name, _, _) in CLASSES.items()}}


def pascal(name):
    return FIELDS.get(name) or "".join(part.capitalize() for part in name.split("_"))


def properties(interface, names, struct, by_hand):
    """The fields of a struct that are properties, as (field, type in C#, expression)."""
    fields = {field.name: field for field in struct.fields}
    apart = struct.name == "gpumem_pointer_info"  # The location of a byte in it may be unknown.
    for field in struct.fields:
        base, info = field.type.base, f"info->{'@' if field.name == 'base' else ''}{field.name}"
        whole_id = field.name + "_id" in fields and not apart
        if field.name in ("struct_size", "reserved", *by_hand) or interface.is_handle(base):
            continue
        if field.name.endswith("_id") and "location" in field.name and not apart:
            continue
        if base == "char" and field.type.stars:
            yield field, "string", f"{'Words' if field.name in TEXTS else 'Text'}.Read({info})"
        elif field.length:
            reader = ("Bytes" if base == "uint8_t" else "Words" if field.name in TEXTS else "Text") + ".Read"
            yield field, "byte[]" if base == "uint8_t" else "string", f"{reader}({info}, {field.length})"
        elif field.type.stars:
            yield field, "IntPtr", info
        elif whole_id:
            yield field, "MemoryLocation", f"new MemoryLocation((Location){info}, {info}_id)"
        elif base in names or "GPUMEM_BACKEND_" in field.text:
            kind = names.get(base, "Backend")
            yield field, kind, f"({kind}){info}"
        elif base == "uint32_t" and re.match(r"1 (if|once|until) ", field.text):
            yield field, "bool", f"{info} != 0"
        elif base == "uint64_t" and not re.search(r"(?:^|_)id$|^native_handle$", field.name):
            yield field, "long", f"Sizes.FromNative({info})"
        elif base == "uint32_t" and not field.name.endswith("uid"):
            yield field, "int", f"(int){info}"
        else:
            yield field, {"int32_t": "int", "uint32_t": "uint", "uint64_t": "ulong"}[base], info


def summary(text, indent, words):
    line = f"{indent}/// <summary>{words(text)}</summary>\n"
    if len(line) <= 121:
        return line
    lines, limit = [""], 120 - len(indent) - 4
    for word in re.findall(r"(?:<[^>]*>|\S)+", words(text)):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > limit:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return f"{indent}/// <summary>\n" + "".join(f"{indent}/// {one}\n" for one in lines) + f"{indent}/// </summary>\n"


def to_string(what, name, parts):
    """The method that prints the parts, as (name, expression)."""
    line, lines = f"return new Printed(nameof({name}))", []
    for part, expression in parts:
        call = f".Add(nameof({part}), {expression})"
        if len(line) + len(call) > 110:
            lines.append(line)
            line = "    "
        line += call
    return (f"    /// <summary>{what}</summary>\n    public override string ToString()\n    {{\n"
            + "".join(f"      {part}\n" for part in [*lines, line + ".ToString();"]) + "    }\n")


def words_of(interface, constants, members, own):
    """The function that says in words of C# what a text says; `own` are the properties of the class by their fields."""
    fields = {field.name for struct in interface.structs for field in struct.fields}

    def words(text, kind=""):
        if kind == "bool":
            text = re.sub(r"^1 if (.*?)(?:, else 0|; otherwise 0)?\.", r"Whether \1.", text)
            text = re.sub(r"^1 (once|until) ", r"True \1 ", text)
        text = re.sub(r"^(?:Its|The device's) ordinal\.$", "Ordinal of its device.", text)
        text = re.sub(r"`(require|prefer)`", lambda match: f"`{match[1].capitalize()}`", text)
        text = text.replace("NULL", "zero").replace("destroyed", "disposed")
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        if kind == "Status":
            text = re.sub(r"\b0 if ", "#GPUMEM_SUCCESS if ", text)
        text = re.sub(r"#(GPUMEM_\w+)", lambda match: f'<see cref="{constants[match[1]]}"/>', text)
        text = re.sub(r"(?:one|a sum|sum) of the GPUMEM_\w+ values", "its kind", text, flags=re.IGNORECASE)
        text = re.sub(r"(gpumem_\w+)\(\)", lambda match: f"<c>{members[match[1]]}</c>", text)
        text = re.sub(r"gpumem_\w+", lambda match: f'<see cref="{NOUNS[match[0]]}"/>', text)
        return re.sub(r"`([^`]*)`", lambda match: f'<see cref="{own[match[1]]}"/>' if match[1] in own else
                      f"<c>{pascal(match[1]) if match[1] in fields else match[1]}</c>", text)
    return words


def infos(interface, names, constants, members):
    """`names`: types of numbers; `constants` and `members`: what C# calls constants and functions."""
    def one(struct):
        name, printed, by_hand = CLASSES[struct.name]
        chosen = list(properties(interface, names, struct, by_hand))
        own = {field.name: pascal(field.name) for field, _, _ in chosen}

        words = words_of(interface, constants, members, own)
        text = summary(struct.text.replace(" The texts are constants of the library and stay valid forever.", ""), "  ", words) + f"  public sealed unsafe partial class {name}\n  {{\n"
        text += f"    internal {name}({struct.name}* info)\n    {{\n"
        text += "".join(f"      {own[field.name]} = {expression};\n" for field, _, expression in chosen)
        text += ("      Complete(info);\n" if by_hand else "") + "    }\n\n"
        for field, kind, _ in chosen:
            text += summary(field.text, "    ", lambda text, kind=kind: words(text, kind))
            text += f"    public {kind} {own[field.name]} {{ get; private set; }}\n\n"
        return text + to_string("All of it.", name, [(part, part) for part in [*own.values(), *printed]]) + "  }\n"
    for struct in interface.structs:
        if struct.name.endswith(("_info", "_stats")) and struct.name not in CLASSES:
            raise description.Unreadable(f"{struct.header}: generate_csharp.py does not say which class of C# has {struct.name}")
    return ("// What the library returns in a struct, as plain values. Other files add to some of these classes.\n\n"
            "using System;\nusing GpuMem.Interop;\n\nnamespace GpuMem\n{\n"
            + "\n".join(one(struct) for struct in interface.structs if struct.name in CLASSES) + "}\n")
