# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Lets setuptools build in a temporary folder, so that `pip install` leaves nothing in this one. The package can carry the library, if
# GPUMEM_BUNDLE names the folder that it is in, and the plug-ins, if GPUMEM_PLUG_INS names theirs. It is then for the machines
# that they are for.

import atexit
import os
import shutil
import sys
import tempfile

from setuptools import Distribution, setup

folder = tempfile.mkdtemp(prefix="gpumem-")
atexit.register(shutil.rmtree, folder, True)
carried = []  # (file, folder in the package)
for variable, what, place, names in (
        # GPUMEM_BUNDLE | a full path | none | folder of the library that the wheel brings
        ("GPUMEM_BUNDLE", "the library", "gpumem", ["libgpumem.so.0"]),
        # GPUMEM_PLUG_INS | a full path | none | folder of the plug-ins that the wheel brings
        ("GPUMEM_PLUG_INS", "the plug-ins", "gpumem/adapters", ["libgpumem-python.so", "libgpumem-tms.so", "libgpumem-torch.so"])):
    for name in names if os.environ.get(variable) else []:
        file = os.path.join(os.environ[variable], name)
        if not os.path.isfile(file):
            sys.exit(f"there is no {file}: {variable} must be the full path of a folder with {what}")
        carried.append((file, place))
commands = {}
if carried:
    from setuptools.command.build_py import build_py
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:  # before setuptools 70.1
        from wheel.bdist_wheel import bdist_wheel

    class Build(build_py):
        def run(self):
            super().run()
            for file, place in carried:
                self.copy_file(file, os.path.join(self.build_lib, place))

    class Wheel(bdist_wheel):
        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    commands = {"build_py": Build, "bdist_wheel": Wheel}


class Package(Distribution):
    def has_ext_modules(self):
        return bool(carried)


setup(options={"egg_info": {"egg_base": folder}, "build": {"build_base": folder}}, cmdclass=commands, distclass=Package)
