// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory and events under names: the side that has them.

using System;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>Options for a hub. A limit of 0 means its default.</summary>
  public struct HubOptions
  {
    /// <summary>
    /// Where it listens, up to 107 bytes. A path that begins with <c>@</c> is an abstract address, which has no file. A name
    /// without <c>/</c> is that of a file in <c>$XDG_RUNTIME_DIR/gpumem</c>, or in <c>/tmp/gpumem-UID</c> where that is not
    /// set. Null is the name <c>default</c>.
    /// </summary>
    [AllowNull, MaybeNull]
    public string Path { get; set; }

    /// <summary>Permissions of the socket file; 0 means 0600 (octal): the user alone.</summary>
    public int Mode { get; set; }

    /// <summary>Users that may connect beside the own one, by their ids.</summary>
    [AllowNull, MaybeNull]
    public uint[] Users { get; set; }

    /// <summary>Groups whose members may connect.</summary>
    [AllowNull, MaybeNull]
    public uint[] Groups { get; set; }

    /// <summary>A secret that links must show, up to 256 bytes.</summary>
    [AllowNull, MaybeNull]
    public byte[] Token { get; set; }

    /// <summary>How it behaves.</summary>
    public HubFlags Flags { get; set; }

    /// <summary>Links at once; 64 by default.</summary>
    public int LinksMax { get; set; }

    /// <summary>Names at once; 1,024 by default.</summary>
    public int NamesMax { get; set; }

    /// <summary>Versions of one name at once; 16 by default.</summary>
    public int VersionsMax { get; set; }

    /// <summary>Descriptors that are held at once; 4,096 by default.</summary>
    public int DescriptorsMax { get; set; }

    /// <summary>Bytes of memory that links may publish in a keeper; no limit by default.</summary>
    public long BytesMax { get; set; }

    /// <summary>How long a link may take for a message that it has begun; zero means 5 seconds.</summary>
    public TimeSpan Timeout { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Its options, without the secret.</summary>
    public override string ToString()
    {
      return new Printed(nameof(HubOptions)).Add(nameof(Path), Path).Add(nameof(Mode), Mode).Add(nameof(Users), Users)
          .Add(nameof(Groups), Groups).Add(nameof(Token), Token == null ? null : "secret").Add(nameof(Flags), Flags)
          .Add(nameof(LinksMax), LinksMax).Add(nameof(NamesMax), NamesMax).Add(nameof(VersionsMax), VersionsMax)
          .Add(nameof(DescriptorsMax), DescriptorsMax).Add(nameof(BytesMax), BytesMax).Add(nameof(Timeout), Timeout)
          .Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Options for publishing.</summary>
  public unsafe struct PublishOptions
  {
    /// <summary>Number of the version, above all that the name ever had; 0 means one more than the last.</summary>
    public long Version { get; set; }

    /// <summary>
    /// The most that links get, within what the export allows: <see cref="Access.Read"/> or
    /// <see cref="Access.ReadWrite"/>. By default to read if it is shared by descriptors, otherwise what the export allows.
    /// </summary>
    public Access Access { get; set; }

    /// <summary>How many older versions to keep; those before are withdrawn. 0 means one.</summary>
    public int Keep { get; set; }

    /// <summary>32 bytes that say what the content is, such as a hash of it, to be fetched by; or null.</summary>
    [AllowNull, MaybeNull]
    public byte[] Fingerprint { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(PublishOptions)).Add(nameof(Version), Version).Add(nameof(Access), Access)
          .Add(nameof(Keep), Keep).Add(nameof(Fingerprint), Fingerprint).ToString();
    }

    internal gpumem_publish_desc Describe()
    {
      gpumem_publish_desc desc = gpumem_publish_desc.Sized();
      desc.version = Sizes.ToNative(Version, nameof(Version));
      desc.access = (int)Access;
      desc.keep = (uint)Sizes.ToNative(Keep, nameof(Keep));
      Bytes.Write(Fingerprint, desc.fingerprint, 32, nameof(Fingerprint));
      return desc;
    }
  }

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
      gpumem_hub_desc desc = gpumem_hub_desc.Sized();
      desc.path = path;
      desc.mode = (uint)Sizes.ToNative(options.Mode, nameof(options.Mode));
      desc.flags = (ulong)options.Flags;
      desc.links_max = (uint)Sizes.ToNative(options.LinksMax, nameof(options.LinksMax));
      desc.names_max = (uint)Sizes.ToNative(options.NamesMax, nameof(options.NamesMax));
      desc.versions_max = (uint)Sizes.ToNative(options.VersionsMax, nameof(options.VersionsMax));
      desc.fds_max = (uint)Sizes.ToNative(options.DescriptorsMax, nameof(options.DescriptorsMax));
      desc.bytes_max = Sizes.ToNative(options.BytesMax, nameof(options.BytesMax));
      desc.timeout_ns = Timeout.ToNanoseconds(options.Timeout, nameof(options.Timeout));
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
