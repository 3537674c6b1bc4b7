#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Stock GStreamer loads the fake driver, and its allocator has frames in the memory of that. Usage: gstreamer.py FAKE_CUDA_FOLDER"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from consumers import not_in_driver
from tap import Tap

LIBRARIES = "libgstreamer-1.0.so.0", "libgstvideo-1.0.so.0", "libgstcuda-1.0.so.0"
NV12, WIDTH, HEIGHT = 23, 64, 16  # GST_VIDEO_FORMAT_NV12
READ, WRITE, CUDA = 1, 2, 1 << 17  # GstMapFlags


class MapInfo(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t),
                ("max_size", ctypes.c_size_t), ("user_data", ctypes.c_void_p * 4), ("reserved", ctypes.c_void_p * 4)]


def program():
    """Writes a frame by the CPU, has it on the device, and reads it."""
    core, video, cuda = (ctypes.CDLL(name) for name in LIBRARIES)
    for function in (core.gst_allocator_find, video.gst_video_info_new, cuda.gst_cuda_context_new, cuda.gst_cuda_allocator_alloc):
        function.restype = ctypes.c_void_p
    core.gst_init(None, None)
    assert cuda.gst_cuda_load_library() == 1, "it lacks a function"
    cuda.gst_cuda_memory_init_once()
    context = cuda.gst_cuda_context_new(0)
    assert context is not None, "no context"
    info = video.gst_video_info_new()
    video.gst_video_info_set_format(ctypes.c_void_p(info), NV12, WIDTH, HEIGHT)
    memory = cuda.gst_cuda_allocator_alloc(ctypes.c_void_p(core.gst_allocator_find(b"gst.cuda.memory")), ctypes.c_void_p(context), ctypes.c_void_p(info))
    assert memory is not None, "no memory"

    def mapped(flags, use):
        found = MapInfo()
        assert core.gst_memory_map(ctypes.c_void_p(memory), ctypes.byref(found), flags) == 1, f"not mapped with {flags}"
        result = use(found)
        core.gst_memory_unmap(ctypes.c_void_p(memory), ctypes.byref(found))
        return result

    def content(found):
        return ctypes.string_at(found.data, found.size)

    size = mapped(WRITE, lambda found: ctypes.memset(found.data, 0x5a, found.size) and found.size)
    device = mapped(READ | WRITE | CUDA, lambda found: found.data)
    again = mapped(READ, lambda found: (found.data, content(found)))
    assert device not in (None, again[0]), "the device has no memory of its own"
    assert again[1] == b"\x5a" * size, "other bytes came back"
    core.gst_mini_object_unref(ctypes.c_void_p(memory))
    core.gst_object_unref(ctypes.c_void_p(context))
    print(size)


def lacking(fake):
    """What GStreamer's library looks up by name and the fake driver has not."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        (path,) = {line.split(maxsplit=5)[5].rstrip() for line in maps if "/libgstcuda-1.0.so" in line}
    return not_in_driver(Path(fake), {name.decode() for name in re.findall(rb"(?<=\0)cu[A-Z]\w+(?=\0)", Path(path).read_bytes())})


def main():
    tap = Tap()
    name = "GStreamer has a frame in the fake driver's memory"
    try:
        for library in LIBRARIES:
            ctypes.CDLL(library)
    except OSError:
        tap.skip(name, "GStreamer with its library for CUDA is not installed: libgstreamer-plugins-bad1.0-0")
        tap.finish()
    tap.check("the fake driver has each function that GStreamer loads", lacking(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "violations"
        env = {**os.environ, "LD_LIBRARY_PATH": sys.argv[1], "FAKE_CUDA_REPORT": str(report), "GST_REGISTRY": f"{folder}/registry"}
        outcome = subprocess.run([sys.executable, __file__, "--program"], env=env, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, timeout=300, check=False)
        least = WIDTH * HEIGHT * 3 // 2
        good = outcome.returncode == 0 and outcome.stdout.strip().isdigit() and int(outcome.stdout) >= least
        tap.check(name, "" if good else f"exit status {outcome.returncode}\n{outcome.stdout}")
        tap.check("it does nothing that a driver forbids", report.read_text(encoding="utf-8") if report.exists() else "")
    tap.finish()


if __name__ == "__main__":
    if sys.argv[1:] == ["--program"]:
        program()
    else:
        main()
