// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory and events under names: the side that has them.

using System;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Shared memory and events under names, on a Unix socket. Others connect with
  /// <see cref="GpuInstance.Connect(LinkOptions)"/>, and list, wait for and fetch what is there. A name has versions,
  /// numbered upwards while the hub is open: publishing adds one, which nobody sees before, and readers of older versions keep them.
  /// </summary>
  /// <remarks>With <see cref="HubFlags.Keeper"/>, links publish too, and what they publish stays when they end.</remarks>
  public sealed unsafe partial class Hub : IDisposable
  {
    /// <summary>
    /// Publishes a handle under a name, as its newest version. The work that fills the memory must be complete.
    /// </summary>
    /// <param name="name">Up to 63 bytes, without <c>/</c> and control characters.</param>
    /// <param name="share">Handle that the hub's instance exported.</param>
    /// <param name="options">Number, access and fingerprint of the version.</param>
    /// <returns>Number of the version.</returns>
    public long Publish(string name, ShareHandle share, PublishOptions options = default(PublishOptions))
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      return Sizes.FromNative(Calls.gpumem_hub_publish(handle, name, ShareHandle.ToNative(share), options.Describe()));
    }

    /// <summary>
    /// Withdraws a name, or one version of it. Importers keep what they have, and see <see cref="ImportState.Withdrawn"/>.
    /// </summary>
    /// <param name="name">The name.</param>
    /// <param name="version">Its version; 0 means all.</param>
    public void Withdraw(string name, long version = 0)
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      Calls.gpumem_hub_withdraw(handle, name, Sizes.ToNative(version, nameof(version)));
    }

    /// <summary>
    /// Closes the hub: its links hang up, its file is removed, and its names are gone. Memory that links have imported stays
    /// with them. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static Hub Open(GpuInstance instance, HubOptions options)
    {
      gpumem_hub_desc desc = options.Describe();
      desc.user_count = (uint)(options.Users?.Length ?? 0);
      desc.group_count = (uint)(options.Groups?.Length ?? 0);
      desc.token_size = Sizes.OfToken(options.Token, nameof(options.Token));
      return Handles.Make(new HubHandle(instance.Handle, options.Path, options.Name), handle =>
      {
        fixed (uint* users = options.Users, groups = options.Groups)
        fixed (byte* token = options.Token)
        {
          desc.users = users;
          desc.groups = groups;
          desc.token = (IntPtr)token;
          Calls.gpumem_hub_open(instance.Handle, desc, options.Path, options.Name, handle);
        }
        return new Hub(instance, handle);
      });
    }
  }
}
