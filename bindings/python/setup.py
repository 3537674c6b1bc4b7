# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Lets setuptools build in a temporary folder, so that `pip install` leaves nothing in this one. If GPUMEM_PLUG_INS names the folder
# of the plug-ins, the package carries them, and is for the machines that they are for.

import atexit
import os
import shutil
import sys
import tempfile

from setuptools import Distribution, setup

folder = tempfile.mkdtemp(prefix="gpumem-")
atexit.register(shutil.rmtree, folder, True)
commands = {}
plug_ins = os.environ.get("GPUMEM_PLUG_INS")
if plug_ins:
    from setuptools.command.build_py import build_py
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:  # before setuptools 70.1
        from wheel.bdist_wheel import bdist_wheel

    files = [os.path.join(plug_ins, name) for name in ("libgpumem-tms.so", "libgpumem-torch.so")]
    for file in files:
        if not os.path.isfile(file):
            sys.exit(f"there is no {file}: GPUMEM_PLUG_INS must be the full path of a folder with the plug-ins")

    class Build(build_py):
        def run(self):
            super().run()
            for file in files:
                self.copy_file(file, os.path.join(self.build_lib, "gpumem", "adapters"))

    class Wheel(bdist_wheel):
        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    commands = {"build_py": Build, "bdist_wheel": Wheel}


class Package(Distribution):
    def has_ext_modules(self):
        return bool(plug_ins)


setup(options={"egg_info": {"egg_base": folder}, "build": {"build_base": folder}}, cmdclass=commands, distclass=Package)
