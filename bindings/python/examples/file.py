# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights in a file behind a header, read into memory of a device."""

import tempfile

import gpumem

HEADER = 100
SIZE = 12 << 20

device = gpumem.default_device()
instance = device.instance
content = bytes((i * 7 + i // 1000) % 256 for i in range(SIZE // 64)) * 64
last = 0


def show(done: int, total: int) -> None:
    global last
    last = 100 * done // total  # an exception ends the call


with tempfile.TemporaryFile() as file, device.memory(SIZE) as weights:
    file.write(bytes(HEADER) + content)
    file.flush()  # the library reads the file, and not what Python still holds
    instance.read_file(weights, file, HEADER, progress=show)
    back = bytearray(SIZE)
    weights.copy_to(back)
    print(f"{last} % are there, content {'equal' if back == content else 'different'}")

    try:  # more than the file has
        instance.read_file(weights, file, HEADER + 1)
    except gpumem.InvalidArgument as problem:
        print(f"{problem.name}: {problem}")
print(f"live objects: {instance.stats().live_objects}")
