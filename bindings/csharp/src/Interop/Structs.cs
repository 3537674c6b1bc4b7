// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The structs of the C interface, field for field, under their C names.

using System;
using System.Runtime.InteropServices;

#pragma warning disable 1591 // The C headers describe each field.

namespace GpuMem.Interop
{
  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_error
  {
    public UIntPtr struct_size;
    public int status;
    public int native_domain;
    public int native_code;
    public uint reserved;
    public fixed byte native_name[56];
    public fixed byte function[48];
    public fixed byte entry_point[48];
    public fixed byte message[512];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_status_info
  {
    public UIntPtr struct_size;
    public int status;
    public uint reserved;
    public IntPtr name;
    public IntPtr cause;
    public IntPtr remedy;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_probe_info
  {
    public UIntPtr struct_size;
    public int backend;
    public int driver_version;
    public uint device_count;
    public uint reserved;
    public fixed byte name[64];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_host_options
  {
    public UIntPtr struct_size;
    public uint device_count;
    public int strict;
    public ulong device_bytes;
    public ulong granularity;
    public int pageable;
    public int same_pointer;
    public int lock_mode;
    public uint numa_nodes;
    public ulong register_count_max;
    public ulong lock_piece;
    public uint quarantine;
    public int fill;
    public IntPtr peers;
    public IntPtr masked;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_instance_desc
  {
    public UIntPtr struct_size;
    public int backend;
    public uint reserved;
    public IntPtr name;
    public ulong pin_budget;
    public gpumem_host_options* host;
    public IntPtr* cuda_contexts;
    public ulong cuda_context_count;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_instance_info
  {
    public UIntPtr struct_size;
    public int backend;
    public int driver_version;
    public uint device_count;
    public uint strict;
    public ulong pin_budget;
    public fixed byte name[64];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_device_info
  {
    public UIntPtr struct_size;
    public uint ordinal;
    public int numa_node;
    public ulong total_bytes;
    public fixed byte uuid[16];
    public uint pci_domain;
    public uint pci_bus;
    public uint pci_device;
    public int compute_major;
    public int compute_minor;
    public uint lost;
    public fixed byte pci_id[32];
    public fixed byte name[256];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_capability_info
  {
    public UIntPtr struct_size;
    public int capability;
    public int type;
    public ulong value;
    public int source;
    public int status;
    public int native_domain;
    public int native_code;
    public fixed byte name[48];
    public fixed byte reason[256];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_memory_desc
  {
    public UIntPtr struct_size;
    public int kind;
    public int numa_node;
    public ulong size;
    public ulong alignment;
    public ulong require;
    public ulong prefer;
    public IntPtr host_pointer;
    public IntPtr name;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_memory_info
  {
    public UIntPtr struct_size;
    public int kind;
    public int numa_node;
    public IntPtr device;
    public uint device_ordinal;
    public uint reserved;
    public IntPtr host_pointer;
    public IntPtr device_pointer;
    public ulong size;
    public ulong granted_size;
    public ulong alignment;
    public ulong requested_flags;
    public ulong granted_flags;
    public ulong buffer_id;
    public fixed byte name[64];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_pointer_info
  {
    public UIntPtr struct_size;
    public int kind;
    public int location;
    public int location_id;
    public int device_ordinal;
    public IntPtr host_pointer;
    public IntPtr device_pointer;
    public IntPtr @base;
    public ulong size;
    public ulong buffer_id;
    public ulong granted_flags;
    public int access;
    public uint reserved;
    public ulong access_devices;
    public IntPtr memory;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_copy_options
  {
    public UIntPtr struct_size;
    public int direction;
    public int source_order;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_stream_desc
  {
    public UIntPtr struct_size;
    public int priority;
    public uint reserved;
    public IntPtr name;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_stream_info
  {
    public UIntPtr struct_size;
    public IntPtr device;
    public uint device_ordinal;
    public uint wrapped;
    public int priority;
    public uint reserved;
    public IntPtr native_stream;
    public fixed byte name[64];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_event_desc
  {
    public UIntPtr struct_size;
    public uint flags;
    public uint reserved;
    public IntPtr name;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_event_info
  {
    public UIntPtr struct_size;
    public IntPtr device;
    public uint device_ordinal;
    public uint wrapped;
    public uint flags;
    public uint reserved;
    public IntPtr native_event;
    public fixed byte name[64];
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_stats_kind
  {
    public ulong live_count;
    public ulong live_bytes;
    public ulong peak_count;
    public ulong peak_bytes;
    public ulong total_count;
    public ulong total_bytes;
  }

  [StructLayout(LayoutKind.Sequential)]
  public unsafe struct gpumem_stats
  {
    public UIntPtr struct_size;
    public gpumem_stats_kind device;
    public gpumem_stats_kind pinned;
    public gpumem_stats_kind registered;
    public ulong streams;
    public ulong events;
    public ulong file_descriptors;
  }
}
