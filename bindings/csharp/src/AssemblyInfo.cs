// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the assembly says of itself.

using System;
using System.Runtime.InteropServices;

[assembly: ComVisible(false)]
[assembly: CLSCompliant(false)]
#if NET8_0_OR_GREATER
// Every native signature is blittable; no stub is made, at run time or ahead of it.
[assembly: System.Runtime.CompilerServices.DisableRuntimeMarshalling]
#endif
