// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The enumerations of the interface. Their numbers are those of the C headers, which also say more of each.

using System;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>What a call returned: negative is a failure, positive a note.</summary>
  public enum Status
  {
    /// <summary>Done.</summary>
    Success = Constants.GPUMEM_SUCCESS,
    /// <summary>Note: the work that was asked about is not complete.</summary>
    NotReady = Constants.GPUMEM_NOT_READY,
    /// <summary>Note: a valid hint that cannot be used here.</summary>
    NoEffect = Constants.GPUMEM_NO_EFFECT,
    /// <summary>A value that no configuration accepts.</summary>
    InvalidArgument = Constants.GPUMEM_ERROR_INVALID_ARGUMENT,
    /// <summary>The memory is of a kind that the function does not take.</summary>
    WrongKind = Constants.GPUMEM_ERROR_WRONG_KIND,
    /// <summary>Nothing of that name, address or number exists.</summary>
    NotFound = Constants.GPUMEM_ERROR_NOT_FOUND,
    /// <summary>The range or relation exists already.</summary>
    AlreadyExists = Constants.GPUMEM_ERROR_ALREADY_EXISTS,
    /// <summary>The handle named an object that is gone.</summary>
    StaleHandle = Constants.GPUMEM_ERROR_STALE_HANDLE,
    /// <summary>Right object, wrong moment.</summary>
    InvalidState = Constants.GPUMEM_ERROR_INVALID_STATE,
    /// <summary>The processor that would act has no right to the memory.</summary>
    NoAccess = Constants.GPUMEM_ERROR_NO_ACCESS,
    /// <summary>In use by other work; the same call may succeed later.</summary>
    Busy = Constants.GPUMEM_ERROR_BUSY,
    /// <summary>The instance is closed, or the driver is shutting down.</summary>
    Closed = Constants.GPUMEM_ERROR_CLOSED,
    /// <summary>A forked child used something of its parent.</summary>
    Forked = Constants.GPUMEM_ERROR_FORKED,
    /// <summary>The other process of a shared object has ended.</summary>
    PeerGone = Constants.GPUMEM_ERROR_PEER_GONE,
    /// <summary>The device cannot be used again until the process ends.</summary>
    DeviceLost = Constants.GPUMEM_ERROR_DEVICE_LOST,
    /// <summary>No memory at a device.</summary>
    OutOfDeviceMemory = Constants.GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
    /// <summary>No memory at the host.</summary>
    OutOfHostMemory = Constants.GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
    /// <summary>No address range of that size.</summary>
    OutOfAddressSpace = Constants.GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
    /// <summary>A limit or budget is used up; the message names it.</summary>
    LimitExceeded = Constants.GPUMEM_ERROR_LIMIT_EXCEEDED,
    /// <summary>Valid, but this device, driver, backend or object cannot do it.</summary>
    Unsupported = Constants.GPUMEM_ERROR_UNSUPPORTED,
    /// <summary>System, driver or peer refuses this user or process.</summary>
    PermissionDenied = Constants.GPUMEM_ERROR_PERMISSION_DENIED,
    /// <summary>The driver is present but offers no device.</summary>
    NoDevice = Constants.GPUMEM_ERROR_NO_DEVICE,
    /// <summary>No driver library can be loaded, or it is a stub.</summary>
    DriverNotFound = Constants.GPUMEM_ERROR_DRIVER_NOT_FOUND,
    /// <summary>The driver is older than the oldest that works.</summary>
    DriverTooOld = Constants.GPUMEM_ERROR_DRIVER_TOO_OLD,
    /// <summary>This driver lacks the entry point of this one function.</summary>
    SymbolMissing = Constants.GPUMEM_ERROR_SYMBOL_MISSING,
    /// <summary>Anything else; the native code is attached.</summary>
    Internal = Constants.GPUMEM_ERROR_INTERNAL,
  }

  /// <summary>Whose number a native code is.</summary>
  public enum NativeDomain
  {
    /// <summary>No native code: the library decided by itself.</summary>
    None = Constants.GPUMEM_NATIVE_NONE,
    /// <summary>An <c>errno</c> value of the operating system.</summary>
    Errno = Constants.GPUMEM_NATIVE_ERRNO,
    /// <summary>A <c>CUresult</c> of the CUDA driver.</summary>
    Cuda = Constants.GPUMEM_NATIVE_CUDA,
  }

  /// <summary>Something that a build of the library may or may not contain.</summary>
  public enum Feature
  {
    /// <summary>The host backend is compiled in.</summary>
    BackendHost = Constants.GPUMEM_FEATURE_BACKEND_HOST,
    /// <summary>The cuda backend is compiled in.</summary>
    BackendCuda = Constants.GPUMEM_FEATURE_BACKEND_CUDA,
    /// <summary>Device memory.</summary>
    MemoryDevice = Constants.GPUMEM_FEATURE_MEMORY_DEVICE,
    /// <summary>Pinned and mapped host memory.</summary>
    MemoryPinned = Constants.GPUMEM_FEATURE_MEMORY_PINNED,
    /// <summary>Pinning of memory that exists already.</summary>
    MemoryRegistered = Constants.GPUMEM_FEATURE_MEMORY_REGISTERED,
    /// <summary>Value write and value wait in a stream.</summary>
    StreamValue = Constants.GPUMEM_FEATURE_STREAM_VALUE,
    /// <summary>The functions of <see cref="HostSimulation"/>.</summary>
    HostSimulation = Constants.GPUMEM_FEATURE_HOST_SIMULATION,
  }

  /// <summary>How much a message matters.</summary>
  public enum LogLevel
  {
    /// <summary>Something was lost, such as a free that the driver refused.</summary>
    Error = Constants.GPUMEM_LOG_ERROR,
    /// <summary>Something is probably not as intended.</summary>
    Warning = Constants.GPUMEM_LOG_WARNING,
    /// <summary>What was found and chosen when a backend opened.</summary>
    Info = Constants.GPUMEM_LOG_INFO,
    /// <summary>Why a call failed, for each failing call.</summary>
    Debug = Constants.GPUMEM_LOG_DEBUG,
  }

  /// <summary>Who does the work.</summary>
  public enum Backend
  {
    /// <summary>cuda if it has a usable device, otherwise host.</summary>
    Any = Constants.GPUMEM_BACKEND_ANY,
    /// <summary>The CUDA driver, loaded at run time.</summary>
    Cuda = Constants.GPUMEM_BACKEND_CUDA,
    /// <summary>CPU and operating system only, with the rules of a GPU.</summary>
    Host = Constants.GPUMEM_BACKEND_HOST,
  }

  /// <summary>What to do with objects that live when an instance is closed.</summary>
  public enum CloseMode
  {
    /// <summary>Refuse, and say what lives.</summary>
    Check = Constants.GPUMEM_CLOSE_CHECK,
    /// <summary>Wait for the instance's streams, then destroy everything.</summary>
    Force = Constants.GPUMEM_CLOSE_FORCE,
  }

  /// <summary>A choice whose default belongs to the library.</summary>
  public enum Toggle
  {
    /// <summary>What the option's text says.</summary>
    Default = Constants.GPUMEM_TOGGLE_DEFAULT,
    /// <summary>On.</summary>
    On = Constants.GPUMEM_TOGGLE_ON,
    /// <summary>Off.</summary>
    Off = Constants.GPUMEM_TOGGLE_OFF,
  }

  /// <summary>Whether the host backend locks pinned pages.</summary>
  public enum HostLock
  {
    /// <summary>As <see cref="Try"/>.</summary>
    Default = Constants.GPUMEM_HOST_LOCK_DEFAULT,
    /// <summary>Lock if the limits allow; the granted flags tell.</summary>
    Try = Constants.GPUMEM_HOST_LOCK_TRY,
    /// <summary>Fail if the limits do not allow it.</summary>
    Require = Constants.GPUMEM_HOST_LOCK_REQUIRE,
    /// <summary>Never lock.</summary>
    Off = Constants.GPUMEM_HOST_LOCK_OFF,
  }

  /// <summary>What a piece of memory is.</summary>
  public enum MemoryKind
  {
    /// <summary>An address that neither the instance, the driver nor the CPU knows.</summary>
    Unknown = Constants.GPUMEM_KIND_UNKNOWN,
    /// <summary>Ordinary memory of the process.</summary>
    Pageable = Constants.GPUMEM_KIND_PAGEABLE,
    /// <summary>Page-locked host memory that was allocated here.</summary>
    Pinned = Constants.GPUMEM_KIND_PINNED,
    /// <summary>Memory of the caller that was page-locked here.</summary>
    Registered = Constants.GPUMEM_KIND_REGISTERED,
    /// <summary>Memory of one device.</summary>
    Device = Constants.GPUMEM_KIND_DEVICE,
    /// <summary>Known to the driver, but made by other code.</summary>
    Foreign = Constants.GPUMEM_KIND_FOREIGN,
  }

  /// <summary>Properties of an allocation or registration.</summary>
  [Flags]
  public enum MemoryFlags : ulong
  {
    /// <summary>None.</summary>
    None = 0,
    /// <summary>All devices treat the memory as pinned.</summary>
    Portable = Constants.GPUMEM_MEMORY_PORTABLE,
    /// <summary>The memory has a device pointer.</summary>
    Mapped = Constants.GPUMEM_MEMORY_MAPPED,
    /// <summary>Pinned only: uncached for the CPU, which may read it very slowly.</summary>
    WriteCombined = Constants.GPUMEM_MEMORY_WRITE_COMBINED,
    /// <summary>Registered only: devices may only read.</summary>
    ReadOnly = Constants.GPUMEM_MEMORY_READ_ONLY,
    /// <summary>Registered only: memory-mapped I/O of another device.</summary>
    IoMemory = Constants.GPUMEM_MEMORY_IOMEMORY,
    /// <summary>The pages are really locked.</summary>
    PageLocked = Constants.GPUMEM_MEMORY_PAGE_LOCKED,
    /// <summary>Pinned only: the pages lie on the NUMA node asked for.</summary>
    NumaNode = Constants.GPUMEM_MEMORY_NUMA_NODE,
  }

  /// <summary>Between which sides a copy goes.</summary>
  public enum Direction
  {
    /// <summary>As the pointers say.</summary>
    Infer = Constants.GPUMEM_DIRECTION_INFER,
    /// <summary>Both operands are host memory.</summary>
    HostToHost = Constants.GPUMEM_DIRECTION_HOST_TO_HOST,
    /// <summary>From host to device memory.</summary>
    HostToDevice = Constants.GPUMEM_DIRECTION_HOST_TO_DEVICE,
    /// <summary>From device to host memory.</summary>
    DeviceToHost = Constants.GPUMEM_DIRECTION_DEVICE_TO_HOST,
    /// <summary>Both operands are device memory.</summary>
    DeviceToDevice = Constants.GPUMEM_DIRECTION_DEVICE_TO_DEVICE,
  }

  /// <summary>When the source of a copy is read.</summary>
  public enum SourceOrder
  {
    /// <summary>In stream order.</summary>
    Stream = Constants.GPUMEM_SOURCE_ORDER_STREAM,
    /// <summary>Before the call returns.</summary>
    DuringCall = Constants.GPUMEM_SOURCE_ORDER_DURING_CALL,
    /// <summary>At any time before completion.</summary>
    Any = Constants.GPUMEM_SOURCE_ORDER_ANY,
  }

  /// <summary>When a value wait lets go.</summary>
  public enum WaitCondition
  {
    /// <summary><c>(signed)(word - value) &gt;= 0</c>, so that counters may wrap.</summary>
    GreaterOrEqual = Constants.GPUMEM_WAIT_VALUE_GEQ,
    /// <summary><c>word == value</c></summary>
    Equal = Constants.GPUMEM_WAIT_VALUE_EQ,
    /// <summary><c>(word &amp; value) != 0</c></summary>
    And = Constants.GPUMEM_WAIT_VALUE_AND,
    /// <summary><c>~(word | value) != 0</c></summary>
    Nor = Constants.GPUMEM_WAIT_VALUE_NOR,
  }

  /// <summary>Properties of an event.</summary>
  [Flags]
  public enum EventFlags : uint
  {
    /// <summary>None.</summary>
    None = 0,
    /// <summary>Takes no time stamp; cheaper.</summary>
    DisableTiming = Constants.GPUMEM_EVENT_DISABLE_TIMING,
    /// <summary>Waiting gives up the processor.</summary>
    BlockingSync = Constants.GPUMEM_EVENT_BLOCKING_SYNC,
  }

  /// <summary>Where bytes lie.</summary>
  public enum Location
  {
    /// <summary>Nowhere that can be named.</summary>
    None = Constants.GPUMEM_LOCATION_NONE,
    /// <summary>A device.</summary>
    Device = Constants.GPUMEM_LOCATION_DEVICE,
    /// <summary>The host, any node.</summary>
    Host = Constants.GPUMEM_LOCATION_HOST,
    /// <summary>A NUMA node of the host.</summary>
    HostNuma = Constants.GPUMEM_LOCATION_HOST_NUMA,
  }

  /// <summary>Rights of devices to memory.</summary>
  public enum Access
  {
    /// <summary>No right.</summary>
    None = Constants.GPUMEM_ACCESS_NONE,
    /// <summary>Read.</summary>
    Read = Constants.GPUMEM_ACCESS_READ,
    /// <summary>Read and write.</summary>
    ReadWrite = Constants.GPUMEM_ACCESS_READWRITE,
    /// <summary>Foreign memory: the driver does not tell.</summary>
    Unknown = Constants.GPUMEM_ACCESS_UNKNOWN,
  }

  /// <summary>Something that can be asked of a device.</summary>
  public enum Capability
  {
    /// <summary>One address space for host and devices.</summary>
    Uva = Constants.GPUMEM_CAPABILITY_UVA,
    /// <summary>Devices of the instance.</summary>
    DeviceCount = Constants.GPUMEM_CAPABILITY_DEVICE_COUNT,
    /// <summary>Memory of the device.</summary>
    DeviceBytes = Constants.GPUMEM_CAPABILITY_DEVICE_BYTES,
    /// <summary>The CPU may touch device memory.</summary>
    DeviceCpuAccess = Constants.GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS,
    /// <summary>The device can use pinned memory in place.</summary>
    PinMapHost = Constants.GPUMEM_CAPABILITY_PIN_MAP_HOST,
    /// <summary>Pinned pages are really locked.</summary>
    PinPageLocked = Constants.GPUMEM_CAPABILITY_PIN_PAGE_LOCKED,
    /// <summary>Write-combined pinned memory.</summary>
    PinWriteCombined = Constants.GPUMEM_CAPABILITY_PIN_WRITE_COMBINED,
    /// <summary>Pinning of memory that exists already.</summary>
    PinRegister = Constants.GPUMEM_CAPABILITY_PIN_REGISTER,
    /// <summary>Registered memory has one address for CPU and devices.</summary>
    PinRegisterSamePointer = Constants.GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER,
    /// <summary>Pinning for reading only.</summary>
    PinRegisterReadOnly = Constants.GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY,
    /// <summary>Pinning of memory-mapped I/O.</summary>
    PinRegisterIoMemory = Constants.GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY,
    /// <summary>Bytes of the largest range that is locked in one piece.</summary>
    PinMaxSingle = Constants.GPUMEM_CAPABILITY_PIN_MAX_SINGLE,
    /// <summary>Pieces that may be locked at once.</summary>
    PinMaxCount = Constants.GPUMEM_CAPABILITY_PIN_MAX_COUNT,
    /// <summary>Pinned memory can be placed on a NUMA node.</summary>
    PinNuma = Constants.GPUMEM_CAPABILITY_PIN_NUMA,
    /// <summary>Atomics work across CPU and device.</summary>
    HostAtomics = Constants.GPUMEM_CAPABILITY_HOST_ATOMICS,
    /// <summary>The device reaches ordinary pageable memory.</summary>
    Pageable = Constants.GPUMEM_CAPABILITY_PAGEABLE,
    /// <summary>It does so by the host's page tables.</summary>
    PageableHostTables = Constants.GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES,
    /// <summary>Value write and wait on 4 bytes.</summary>
    StreamValue32 = Constants.GPUMEM_CAPABILITY_STREAM_VALUE32,
    /// <summary>Value write and wait on 8 bytes.</summary>
    StreamValue64 = Constants.GPUMEM_CAPABILITY_STREAM_VALUE64,
    /// <summary>Value wait with <see cref="WaitCondition.Nor"/>.</summary>
    StreamValueNor = Constants.GPUMEM_CAPABILITY_STREAM_VALUE_NOR,
    /// <summary>Copies that can run at the same time.</summary>
    CopyEngines = Constants.GPUMEM_CAPABILITY_COPY_ENGINES,
    /// <summary>Access of a pair of devices.</summary>
    PeerAccess = Constants.GPUMEM_CAPABILITY_PEER_ACCESS,
    /// <summary>Atomics between a pair of devices.</summary>
    PeerAtomics = Constants.GPUMEM_CAPABILITY_PEER_ATOMICS,
  }

  /// <summary>What the value of a capability counts.</summary>
  public enum CapabilityType
  {
    /// <summary>A <see cref="CapabilityAnswer"/>.</summary>
    Answer = Constants.GPUMEM_CAPABILITY_TYPE_TRI,
    /// <summary>A number.</summary>
    Number = Constants.GPUMEM_CAPABILITY_TYPE_INT,
    /// <summary>A number of bytes.</summary>
    Bytes = Constants.GPUMEM_CAPABILITY_TYPE_BYTES,
  }

  /// <summary>The answer to a question that is not about a number.</summary>
  public enum CapabilityAnswer
  {
    /// <summary>It cannot be done; the reason says why.</summary>
    No = Constants.GPUMEM_CAPABILITY_NO,
    /// <summary>It works.</summary>
    Yes = Constants.GPUMEM_CAPABILITY_YES,
    /// <summary>It works as described, without the effect on hardware.</summary>
    Emulated = Constants.GPUMEM_CAPABILITY_EMULATED,
  }

  /// <summary>How an answer was found.</summary>
  public enum CapabilitySource
  {
    /// <summary>The driver says so.</summary>
    Attribute = Constants.GPUMEM_CAPABILITY_FROM_ATTRIBUTE,
    /// <summary>It was tried.</summary>
    Trial = Constants.GPUMEM_CAPABILITY_FROM_TRIAL,
    /// <summary>An option of the instance says so.</summary>
    Configuration = Constants.GPUMEM_CAPABILITY_FROM_CONFIGURATION,
    /// <summary>It is so for every device of this backend.</summary>
    Contract = Constants.GPUMEM_CAPABILITY_FROM_CONTRACT,
  }
}
