// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory and events under names: the side that has them.

using System;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Shared memory and events under names, on a Unix socket. Others connect with
  /// <see cref="GpuInstance.Connect(LinkOptions)"/>, and list, wait for and fetch what is there. A name has versions,
  /// numbered upwards while the hub is open: publishing adds one, which nobody sees before, and readers of older versions keep them.
  /// </summary>
  /// <remarks>With <see cref="HubFlags.Keeper"/>, links publish too, and what they publish stays when they end.</remarks>
  public sealed unsafe class Hub : IDisposable
  {
    readonly HubHandle handle;
    readonly GpuInstance instance;

    Hub(GpuInstance instance, HubHandle handle)
    {
      this.instance = instance;
      this.handle = handle;
    }

    /// <summary>Its instance.</summary>
    public GpuInstance Instance
    {
      get
      {
        handle.Usable();
        return instance;
      }
    }

    /// <summary>Information about the hub as it is now.</summary>
    public HubInfo Info { [MethodImpl(GpuMemLibrary.Bound)] get { return GetInfo(); } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

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
      using (var text = new CText(name, nameof(name))) return PublishNative(text.Pointer, ShareHandle.ToNative(share), options.Describe());
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
      ulong number = Sizes.ToNative(version, nameof(version));
      using (var text = new CText(name, nameof(name))) WithdrawNative(text.Pointer, number);
    }

    /// <summary>
    /// Closes the hub: its links hang up, its file is removed, and its names are gone. Memory that links have imported stays
    /// with them. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose()
    {
      Leftovers.Sweep();
      handle.Dispose();
    }

    /// <summary>Its path and name.</summary>
    public override string ToString() { return handle.Text; }

    internal static Hub Open(GpuInstance instance, HubOptions options)
    {
      Leftovers.Sweep();
      var handle = new HubHandle(instance.Handle, options.Path, options.Name);
      try
      {
        using (var path = new CText(options.Path, nameof(options.Path)))
        using (var name = new CText(options.Name, nameof(options.Name)))
        {
          OpenNative(instance, handle, options, path.Pointer, name.Pointer);
        }
        return new Hub(instance, handle);
      }
      catch
      {
        handle.Abandon();
        throw;
      }
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void OpenNative(GpuInstance instance, HubHandle handle, HubOptions options, IntPtr path, IntPtr name)
    {
      gpumem_hub_desc desc = options.Describe();
      desc.path = path;
      desc.name = name;
      desc.user_count = (uint)(options.Users?.Length ?? 0);
      desc.group_count = (uint)(options.Groups?.Length ?? 0);
      desc.token_size = Sizes.OfToken(options.Token, nameof(options.Token));
      IntPtr value;
      gpumem_error* error = Error.Detail;
      fixed (uint* users = options.Users, groups = options.Groups)
      fixed (byte* token = options.Token)
      {
        desc.users = users;
        desc.groups = groups;
        desc.token = (IntPtr)token;
        instance.Handle.Check(Native.gpumem_hub_open(instance.Handle.Value, &desc, &value, error), error);
      }
      handle.Attach(value);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    long PublishNative(IntPtr name, gpumem_share_handle share, gpumem_publish_desc desc)
    {
      ulong version;
      gpumem_error* error = Error.Detail;
      handle.Check(Native.gpumem_hub_publish(handle.Value, name, &share, &desc, &version, error), error);
      GC.KeepAlive(this);
      return Sizes.FromNative(version);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    void WithdrawNative(IntPtr name, ulong version)
    {
      gpumem_error* error = Error.Detail;
      handle.Check(Native.gpumem_hub_withdraw(handle.Value, name, version, error), error);
      GC.KeepAlive(this);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    HubInfo GetInfo()
    {
      gpumem_hub_info info = gpumem_hub_info.Sized();
      gpumem_error* error = Error.Detail;
      handle.Check(Native.gpumem_hub_get_info(handle.Value, &info, error), error);
      GC.KeepAlive(this);
      return new HubInfo(&info);
    }
  }
}
