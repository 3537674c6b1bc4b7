// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Boxes of bytes, which are copied in batches.

using System;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// One side of a region: the range that contains the box, and the distances between its rows and slices.
  /// </summary>
  public struct CopyOperand
  {
    /// <summary>Describes one side of a region.</summary>
    /// <param name="range">Range whose first byte is the first byte of the box; the box must lie inside.</param>
    /// <param name="rowPitch">Bytes from one row to the next; 0 means the width of the region.</param>
    /// <param name="slicePitch">Bytes from one slice to the next; 0 means the height times the row pitch.</param>
    public CopyOperand(GpuRange range, long rowPitch = 0, long slicePitch = 0)
    {
      Range = range;
      RowPitch = rowPitch;
      SlicePitch = slicePitch;
    }

    /// <summary>Range whose first byte is the first byte of the box; the box must lie inside.</summary>
    public GpuRange Range { get; set; }

    /// <summary>Bytes from one row to the next; 0 means the width of the region.</summary>
    public long RowPitch { get; set; }

    /// <summary>Bytes from one slice to the next; 0 means the height times the row pitch.</summary>
    public long SlicePitch { get; set; }

    /// <summary>A range without gaps between rows and slices.</summary>
    public static implicit operator CopyOperand(GpuRange range) { return new CopyOperand(range); }

    /// <summary>A whole memory without gaps between rows and slices.</summary>
    public static implicit operator CopyOperand(GpuMemory memory) { return new CopyOperand(memory); }

    /// <summary>Imported memory, from the byte that was exported, without gaps between rows and slices.</summary>
    public static implicit operator CopyOperand(ImportedMemory memory) { return new CopyOperand(memory); }

    /// <summary>The range and its pitches.</summary>
    public override string ToString()
    {
      return new Printed(nameof(CopyOperand)).Add(nameof(Range), Range).Add(nameof(RowPitch), RowPitch)
          .Add(nameof(SlicePitch), SlicePitch).ToString();
    }

    internal long Least { get { return Math.Min(RowPitch, SlicePitch); } }

    // The range may be a slice, and the library would not see its end. Pitches that are too small are left to the
    // library.
    internal bool Fits(long width, long height, long depth)
    {
      long rowPitch = RowPitch == 0 ? width : RowPitch;
      if (rowPitch > long.MaxValue / height) return false;
      long slicePitch = SlicePitch == 0 ? height * rowPitch : SlicePitch;
      if (width > Range.Size) return false;
      long left = Range.Size - width;
      if (height > 1 && rowPitch > left / (height - 1)) return false;
      left -= (height - 1) * rowPitch;
      return depth == 1 || slicePitch <= left / (depth - 1);
    }

    internal gpumem_copy_operand Describe()
    {
      gpumem_copy_operand native = default(gpumem_copy_operand);
      if (Range.Memory != null)
      {
        native.memory = Range.Memory.Raw;
        native.offset = (ulong)Range.Offset;
      }
      else
      {
        native.pointer = Range.Pointer;
      }
      native.row_pitch = (ulong)RowPitch;
      native.slice_pitch = (ulong)SlicePitch;
      return native;
    }
  }

  /// <summary>
  /// A box of bytes to copy: <see cref="Depth"/> slices of <see cref="Height"/> rows of <see cref="Width"/> bytes.
  /// </summary>
  public struct CopyRegion
  {
    /// <summary>Describes a box of bytes.</summary>
    /// <param name="destination">Where to write.</param>
    /// <param name="source">Where to read; it must share no byte with the destination.</param>
    /// <param name="width">Bytes of a row; 0 copies nothing.</param>
    /// <param name="height">Rows of a slice; 0 means 1.</param>
    /// <param name="depth">Slices; 0 means 1.</param>
    public CopyRegion(CopyOperand destination, CopyOperand source, long width, long height = 1, long depth = 1)
        : this()
    {
      Destination = destination;
      Source = source;
      Width = width;
      Height = height;
      Depth = depth;
    }

    /// <summary>Where to write.</summary>
    public CopyOperand Destination { get; set; }

    /// <summary>Where to read; it must share no byte with the destination.</summary>
    public CopyOperand Source { get; set; }

    /// <summary>Bytes of a row; 0 copies nothing.</summary>
    public long Width { get; set; }

    /// <summary>Rows of a slice; 0 means 1.</summary>
    public long Height { get; set; }

    /// <summary>Slices; 0 means 1.</summary>
    public long Depth { get; set; }

    /// <summary>Direction and source order.</summary>
    public CopyOptions Options { get; set; }

    /// <summary>Its extents, operands and options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(CopyRegion)).Add(nameof(Destination), Destination).Add(nameof(Source), Source)
          .Add(nameof(Width), Width).Add(nameof(Height), Height).Add(nameof(Depth), Depth).Add(nameof(Options), Options)
          .ToString();
    }

    internal void Check(int index)
    {
      long least = Math.Min(Math.Min(Width, Math.Min(Height, Depth)), Math.Min(Destination.Least, Source.Least));
      if (least < 0)
      {
        throw new ArgumentOutOfRangeException("regions", least, "region " + index + " has a negative extent or pitch");
      }
      if (Width == 0) return;
      long height = Math.Max(Height, 1), depth = Math.Max(Depth, 1);
      bool destinationFits = Destination.Fits(Width, height, depth);
      if (destinationFits && Source.Fits(Width, height, depth)) return;
      string side = destinationFits ? "source" : "destination";
      long size = (destinationFits ? Source : Destination).Range.Size;
      throw new ArgumentException(
          "region " + index + " leaves the range of its " + side + ", which has " + size + " bytes", "regions");
    }

    internal unsafe gpumem_copy_region Describe()
    {
      gpumem_copy_region native = gpumem_copy_region.Sized();
      native.destination = Destination.Describe();
      native.source = Source.Describe();
      native.width = (ulong)Width;
      native.height = (ulong)Height;
      native.depth = (ulong)Depth;
      native.direction = (int)Options.Direction;
      native.source_order = (int)Options.SourceOrder;
      return native;
    }
  }
}
