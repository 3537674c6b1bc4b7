# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A megabyte from page-locked memory to the device and back. The README shows this program."""

import gpumem

SIZE = 1 << 20

device = gpumem.default_device()
with device.memory(SIZE, gpumem.Kind.PINNED) as sent, device.memory(SIZE, gpumem.Kind.PINNED) as received, \
        device.memory(SIZE) as there:
    sent.copy_from(bytes(i * 7 % 256 for i in range(SIZE)))
    there.copy_from(sent)
    received.copy_from(there)
    equal = sent.buffer() == received.buffer()
    print(f"basic: {SIZE} bytes to the device and back, content {'equal' if equal else 'different'}")
print(f"live objects: {device.instance.stats().live_objects}")
