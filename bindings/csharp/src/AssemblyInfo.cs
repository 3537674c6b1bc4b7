// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Attributes of the assembly.

using System;
using System.Runtime.InteropServices;

[assembly: ComVisible(false)]
[assembly: CLSCompliant(false)]
#if NET8_0_OR_GREATER
// Every native signature is blittable, so no marshalling stubs are needed.
[assembly: System.Runtime.CompilerServices.DisableRuntimeMarshalling]
#endif
