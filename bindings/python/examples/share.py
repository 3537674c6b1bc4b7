# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory that another process reads and writes. The guide shows this program."""

import multiprocessing

import gpumem


def attach(handle: gpumem.ShareHandle) -> None:
    with gpumem.import_memory(handle) as memory:
        received = bytearray(27)
        memory.copy_to(received, 27)
        print(f'share: another process has "{received.decode()}"')
        memory.copy_from(b"thank you")


if __name__ == "__main__":
    device = gpumem.default_device()
    with device.memory(2 << 20, require="shareable") as memory:
        memory.copy_from(b"from one process to another")
        other = multiprocessing.get_context("spawn").Process(target=attach, args=(memory.export(),))
        other.start()
        other.join()
        answer = bytearray(9)
        memory.copy_to(answer, 9)
        print(f'share: it answered "{answer.decode()}"')
