# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests of the Python binding. Run them with ``python3 -m unittest discover -s tests -t .`` in the folder above."""
