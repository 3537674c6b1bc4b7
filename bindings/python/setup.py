# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Lets setuptools build in a temporary folder, so that `pip install` leaves nothing in this one.

import atexit
import shutil
import tempfile

from setuptools import setup

folder = tempfile.mkdtemp(prefix="gpumem-")
atexit.register(shutil.rmtree, folder, True)
setup(options={"egg_info": {"egg_base": folder}, "build": {"build_base": folder}})
