# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Three mistakes, and the messages of the library."""

import gpumem

device = gpumem.default_device()
instance = device.instance
try:
    device.memory(0)
except gpumem.InvalidArgument as error:
    print(f"{error.name}: {error}")
try:
    device.memory(1 << 62)
except gpumem.OutOfDeviceMemory as error:
    print(f"{error.name}: {error}")
with device.memory(4096) as memory:
    try:
        instance.copy(int(memory) + 4088, bytes(16))  # only 8 bytes are left there
    except gpumem.Error as error:
        print(f"{error.name}: {error}")
busy = gpumem.status_info(gpumem.Busy.code)
print(f"{busy.name}: {busy.cause}; {busy.remedy}")
print(f"live objects: {instance.stats().live_objects}")
