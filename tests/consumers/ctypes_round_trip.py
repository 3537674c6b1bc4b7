#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A Python program that uses the library through ctypes and nothing else. Usage: ctypes_round_trip.py LIBRARY"""

import ctypes
import sys
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

BACKEND_HOST = 2
KIND_DEVICE = 4
CLOSE_CHECK = 0


class Error(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("status", c_int32), ("native_domain", c_int32), ("native_code", c_int32),
                ("reserved", c_uint32), ("native_name", c_char * 56), ("function", c_char * 48),
                ("entry_point", c_char * 48), ("message", c_char * 512)]


class InstanceDesc(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("transfer_threads", c_uint32), ("name", c_char_p),
                ("pin_budget", c_uint64), ("host", c_void_p), ("cuda", c_void_p), ("transfer_bytes", c_uint64)]


SIGNATURES = {
    "gpumem_instance_open": [POINTER(InstanceDesc), POINTER(c_void_p), POINTER(Error)],
    "gpumem_device_get": [c_void_p, c_uint32, POINTER(c_void_p), POINTER(Error)],
    "gpumem_malloc": [c_void_p, c_int32, c_uint64, POINTER(c_void_p), POINTER(Error)],
    "gpumem_copy": [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, POINTER(Error)],
    "gpumem_free": [c_void_p, c_void_p, POINTER(Error)],
    "gpumem_instance_close": [c_void_p, c_int32, POINTER(c_uint64), POINTER(Error)],
}


def main():
    library = ctypes.CDLL(sys.argv[1])
    error = Error(struct_size=ctypes.sizeof(Error))
    desc = InstanceDesc(struct_size=ctypes.sizeof(InstanceDesc), backend=BACKEND_HOST)

    def call(name, *arguments):
        function = getattr(library, name)
        function.argtypes, function.restype = SIGNATURES[name], c_int32
        status = function(*arguments, byref(error))
        assert status >= 0, f"{name}: {status}: {error.message.decode()}"

    sent, received = bytes(range(250)) * 4, ctypes.create_string_buffer(1000)
    instance, device, memory = c_void_p(), c_void_p(), c_void_p()
    call("gpumem_instance_open", byref(desc), byref(instance))
    call("gpumem_device_get", instance, 0, byref(device))
    call("gpumem_malloc", device, KIND_DEVICE, len(sent), byref(memory))
    call("gpumem_copy", instance, memory, sent, len(sent), None)
    call("gpumem_copy", instance, received, memory, len(sent), None)
    call("gpumem_free", instance, memory)
    call("gpumem_instance_close", instance, CLOSE_CHECK, None)
    assert received.raw == sent, "the bytes came back changed"

    library.gpumem_version_text.restype = c_char_p
    print(f"gpumem {library.gpumem_version_text().decode()}: round trip good")


if __name__ == "__main__":
    main()
