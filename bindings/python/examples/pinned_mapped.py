# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Page-locked memory with its flags, existing memory that is page-locked in place, and a copy between them in a stream."""

import array

import gpumem
from gpumem import Kind, MemoryFlags

SIZE = 65536


def yes_or_no(condition: object) -> str:
    return "yes" if condition else "no"


def print_flags(name: str, memory: gpumem.Memory) -> None:
    flags = memory.granted_flags
    print(f"{name}: portable {yes_or_no(flags & MemoryFlags.PORTABLE)}, mapped {yes_or_no(flags & MemoryFlags.MAPPED)}, "
          f"write_combined {yes_or_no(flags & MemoryFlags.WRITE_COMBINED)}")


device = gpumem.default_device()
mine = array.array("i", (i * i for i in range(16384)))
with device.memory(SIZE, Kind.PINNED, require=MemoryFlags.PORTABLE | MemoryFlags.MAPPED) as pinned, \
        device.memory(SIZE, Kind.PINNED, require=MemoryFlags.WRITE_COMBINED) as combined:
    print_flags("pinned", pinned)
    print_flags("write-combined", combined)
    print(f"device pointer: {yes_or_no(pinned.device_pointer)}")
    with device.register(mine) as registered, device.stream() as stream, device.event() as event:
        print(f"registered: {registered.size} bytes")
        pinned.copy_from(registered, stream=stream)
        event.record(stream)
        event.synchronize()
        equal = pinned.view("int32").buffer().tolist() == mine.tolist()
        print(f"pinned_mapped: {SIZE} bytes on a stream, content {'equal' if equal else 'different'}")
print(f"live objects: {device.instance.stats().live_objects}")
