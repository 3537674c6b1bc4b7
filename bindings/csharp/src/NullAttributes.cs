// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The attributes that say where the public API takes or returns null, for compilers that check references. They stand in
// place of `string?`, which Mono's compiler cannot read. Mono, .NET Standard 2.0 and older versions of Unity lack them.
#if !NETCOREAPP3_0_OR_GREATER && !NET_STANDARD_2_1

namespace System.Diagnostics.CodeAnalysis
{
  [AttributeUsage(AttributeTargets.Parameter | AttributeTargets.Property)]
  sealed class AllowNullAttribute : Attribute
  {
  }

  [AttributeUsage(AttributeTargets.Parameter | AttributeTargets.Property | AttributeTargets.ReturnValue)]
  sealed class MaybeNullAttribute : Attribute
  {
  }
}

#endif
