// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory and events under names: the side that looks for them.

using System;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A connection to a hub. All threads may use it at the same time, also while one waits.</summary>
  public sealed unsafe partial class Link : IDisposable
  {
    /// <summary>
    /// Gets all versions of all names in the hub, in their order. What is published or withdrawn meanwhile may be missing.
    /// </summary>
    public IReadOnlyList<HubEntry> GetEntries()
    {
      handle.Usable();
      var list = new List<HubEntry>();
      var known = new HashSet<string>();
      HubEntry entry;
      for (uint index = 0; Enumerate(index, out entry); ++index)
      {
        // One that was published meanwhile moves the others. A name has no '/'.
        if (known.Add(entry.Name + "/" + entry.Version)) list.Add(entry);
      }
      return list;
    }

    /// <summary>Waits until a name has a version after a given one.</summary>
    /// <param name="name">The name.</param>
    /// <param name="afterVersion">The newest version that this link has found; 0 waits for any.</param>
    /// <returns>The newest version.</returns>
    /// <remarks>
    /// Fetch the version that it found; if that is <see cref="Status.NotFound"/>, newer ones have replaced it, so wait again.
    /// The numbers only grow while the hub is open, and another hub counts anew: after <see cref="Status.PeerGone"/>, connect
    /// again and begin with 0.
    /// </remarks>
    public HubEntry Wait(string name, long afterVersion = 0)
    {
      return Timeout.Never(timeout => Wait(name, afterVersion, timeout));
    }

    /// <summary>The same with a timeout. Null if there was no such version in time.</summary>
    [return: MaybeNull]
    public HubEntry Wait(string name, long afterVersion, TimeSpan timeout)
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      ulong after = Sizes.ToNative(afterVersion, nameof(afterVersion)), limit = Timeout.ToNanoseconds(timeout, nameof(timeout));
      return Calls.gpumem_link_wait(handle, name, after, limit);
    }

    /// <summary>
    /// Fetches the handle of a name. Its descriptors and connection are kept until it is imported, or for 30 seconds.
    /// </summary>
    /// <param name="name">The name.</param>
    /// <param name="options">Version or fingerprint; by default the newest version.</param>
    public ShareHandle Fetch(string name, FetchOptions options = default(FetchOptions))
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      return Calls.gpumem_link_fetch(handle, name, options.Describe());
    }

    /// <summary>
    /// Waits until a name has memory after a given version, and imports the newest. One that is replaced meanwhile is passed
    /// over. Otherwise it is <see cref="Wait(string, long, TimeSpan)"/>, <see cref="Fetch"/> and
    /// <see cref="GpuInstance.Import(ShareHandle, ImportOptions)"/>.
    /// </summary>
    /// <param name="name">The name.</param>
    /// <param name="afterVersion">The version of the last entry; 0 at first, and after <see cref="Status.PeerGone"/>.</param>
    /// <param name="timeout">How long to wait for a version.</param>
    /// <param name="entry">What was imported; null if there was no such version in time.</param>
    /// <param name="options">Options for the import.</param>
    /// <returns>The memory; null if there was no such version in time.</returns>
    [return: MaybeNull]
    public ImportedMemory ImportNext(string name, long afterVersion, TimeSpan timeout, [MaybeNull] out HubEntry entry,
                                     ImportOptions options = default(ImportOptions))
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      ulong after = Sizes.ToNative(afterVersion, nameof(afterVersion)), limit = Timeout.ToNanoseconds(timeout, nameof(timeout));
      HubEntry found = null;
      ImportedMemory memory;
      using (var text = new CText(name, nameof(name)))
      using (var memoryName = new CText(options.Name, nameof(options.Name)))
      {
        memory = ImportedMemory.Import(instance, made =>
            ImportNextNative(made, text.Pointer, after, limit, options, memoryName.Pointer, out found));
      }
      entry = found;
      return memory;
    }

    /// <summary>
    /// Publishes a handle in a keeper, as <see cref="Hub.Publish"/> does. The keeper takes its descriptors, so it must be
    /// shared by <see cref="ShareWay.PosixFd"/>.
    /// </summary>
    /// <param name="name">Up to 63 bytes, without <c>/</c> and control characters.</param>
    /// <param name="share">Handle that the link's instance exported.</param>
    /// <param name="options">Number, access and fingerprint of the version.</param>
    /// <returns>Number of the version.</returns>
    public long Publish(string name, ShareHandle share, PublishOptions options = default(PublishOptions))
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      return Sizes.FromNative(Calls.gpumem_link_publish(handle, name, ShareHandle.ToNative(share), options.Describe()));
    }

    /// <summary>Withdraws a name, or one version of it, from a keeper.</summary>
    /// <param name="name">The name.</param>
    /// <param name="version">Its version; 0 means all.</param>
    public void Withdraw(string name, long version = 0)
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      Calls.gpumem_link_withdraw(handle, name, Sizes.ToNative(version, nameof(version)));
    }

    /// <summary>
    /// Says whether memory of the link's instance can be shared in one way with the process of the hub, by a trial at both
    /// ends: that process opens a small block in the same place. The answer is kept with the link. A keeper opens nothing.
    /// </summary>
    /// <param name="memory">Any part of the memory.</param>
    /// <param name="way">The way; not <see cref="ShareWay.Any"/>.</param>
    /// <param name="peer">Who that process is.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public ShareWayInfo GetShareWay(GpuRange memory, ShareWay way, SharePeer peer = SharePeer.OtherProcess)
    {
      handle.Usable();
      gpumem_way_info info = gpumem_way_info.Sized();
      gpumem_way_info* written = &info;
      KeptMemory.While(memory, handle, error =>
          Native.gpumem_link_get_way(handle.Value, memory.Pointer, (int)way, (int)peer, written, error));
      return new ShareWayInfo(written);
    }

    /// <summary>
    /// Closes the link. What was imported through it stays, and still learns how the publisher fares. A thread that waits
    /// gets an <see cref="ObjectDisposedException"/>. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static Link Connect(GpuInstance instance, LinkOptions options)
    {
      gpumem_link_desc desc = options.Describe();
      desc.token_size = Sizes.OfToken(options.Token, nameof(options.Token));
      return Handles.Make(new LinkHandle(instance.Handle, options.Path), handle =>
      {
        fixed (byte* token = options.Token)
        {
          desc.token = (IntPtr)token;
          Calls.gpumem_link_connect(instance.Handle, desc, options.Path, handle);
        }
        return new Link(instance, handle);
      });
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    bool Enumerate(uint index, out HubEntry entry)
    {
      entry = null;
      gpumem_entry_info info = gpumem_entry_info.Sized();
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_link_enumerate(handle.Value, index, &info, error);
      GC.KeepAlive(this);
      if (status == Constants.GPUMEM_ERROR_NOT_FOUND) return false;
      handle.Check(status, error);
      entry = new HubEntry(&info);
      return true;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    IntPtr ImportNextNative(AllocationHandle made, IntPtr name, ulong after, ulong limit, ImportOptions options, IntPtr memoryName,
                            out HubEntry entry)
    {
      entry = null;
      gpumem_import_desc desc = options.Describe();
      desc.name = memoryName;
      gpumem_entry_info info = gpumem_entry_info.Sized();
      IntPtr pointer, value;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_link_import_next(handle.Value, name, after, limit, &desc, &info, &pointer, &value, error);
      GC.KeepAlive(this);
      handle.Check(status, error);
      if (status == Constants.GPUMEM_NOT_READY) return IntPtr.Zero;
      made.Attach(value);
      entry = new HubEntry(&info);
      return pointer;
    }
  }
}
