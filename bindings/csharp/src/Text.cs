// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Conversion of texts: the C interface uses UTF-8 with a 0 byte at the end.

using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace GpuMem
{
  static unsafe class Text
  {
    internal static string Read(IntPtr text)
    {
      if (text == IntPtr.Zero) return null;
      return Read((byte*)text, int.MaxValue);
    }

    internal static string Read(byte* text, int capacity)
    {
      int length = 0;
      while (length < capacity && text[length] != 0) ++length;
      return length == 0 ? "" : Encoding.UTF8.GetString(text, length);
    }
  }

  /// <summary>
  /// Texts of the library, which name constants and functions as C does, in words of C#. Nothing here needs another assembly
  /// than the runtime's first: the text of a failure is made when memory or descriptors may be short, and loading takes both.
  /// </summary>
  static unsafe class Words
  {
    // The property has the words of the field.
    static readonly string[] properties =
    {
      "bytes_max", "bytes_per_second", "consumers_first", "consumers_max", "device_bytes", "device_count", "handle_types",
      "initial_size", "links_max", "lock_mode", "lock_piece", "low_water", "max_level", "names_max", "numa_node", "numa_nodes",
      "pin_budget", "register_count_max", "same_pointer", "slot_count", "store_capacity", "stored_size", "transfer_bytes", "transfer_threads",
      "versions_max", "vmm_granularity",
    };

    // Other words with an underscore, such as the entry points that an option can mask, are the same in C#.
    static readonly Dictionary<string, string> words = new Dictionary<string, string>
    {
      { "NULL", "null" }, { "context_count", "Contexts.Length" }, { "fd_count", "descriptors.Length" },
      { "fds_max", "DescriptorsMax" }, { "location_id", "MemoryLocation.Id" }, { "native_event", "nativeEvent" },
      { "token_size", "token.Length" }, { "value_size", "valueSize" },
    };

    // Whole phrases of C, because a single word may be a name or part of a path that another program has chosen.
    static readonly string[] phrases =
    {
      "desc->", "",
      "count is 0; pass ", "pass ",
      "that in desc", "that in the options",
      "descriptor fds[", "descriptor descriptors[",
      " is NO)", " is CapabilityAnswer.No)",
      "cannot destroy ", "cannot dispose ", "could not destroy ", "could not dispose ",
      "destroy an ", "dispose an ", "destroy it", "dispose it", "destroy some", "dispose some", "destroy that", "dispose that",
      "destroy the", "dispose the", "Destroy the ", "Dispose the ",
      "a destroyed ", "a disposed ", "are destroyed", "are disposed", "be destroyed", "be disposed",
      "destroyed it", "disposed it", "destroyed this ", "disposed this ", "was destroyed", "was disposed",
      "destroyed pool", "disposed pool", ", destroyed; ", ", disposed; ",
      "destroying an ", "disposing an ", "destroying its ", "disposing its ",
      "option strict (", "option Strict (", "option pageable (", "option Pageable (",
      "option concurrent (", "option Concurrent (", "option fill (", "option Fill (",
      "option compressible (", "option Compressible (", "option granularity (", "option Granularity (",
      "option quarantine (", "option Quarantine (", "option peers (", "option Peers (", "option masked (", "option Masked (",
    };

    internal static string Read(IntPtr text) { return Translate(Text.Read(text)); }

    internal static string Read(byte* text, int capacity) { return Translate(Text.Read(text, capacity)); }

    // The library writes names without quotes, behind one of these.
    static readonly string[] nouns =
    {
      "memory ", "stream ", "event ", "buffer ", "group ", "pool ", "hub ", "ring ", "with: ", ", ",
    };

    // Texts of the program that hold words of C, oldest first.
    static readonly object gate = new object();
    const int MostGiven = 1000;
    static volatile string[] given = new string[0];

    /// <summary>Notes a text that the program passes to the library, so that it is left as it is in texts that hold it.</summary>
    internal static void Note(string text)
    {
      if (text.Length == 0 || (text.IndexOf('"') < 0 && TranslateOwn(text) == text)) return;
      lock (gate)
      {
        if (Array.IndexOf(given, text) >= 0) return;
        int dropped = given.Length < MostGiven ? 0 : 1;
        var all = new string[given.Length - dropped + 1];
        Array.Copy(given, dropped, all, 0, all.Length - 1);
        all[all.Length - 1] = text;
        given = all;
      }
    }

    internal static string Translate(string text)
    {
      if (text == null) return null;
      var result = new StringBuilder(text.Length);
      int own = 0;
      for (int at = 0; at < text.Length; )
      {
        int end = EndOfGiven(text, at);
        if (end == at)
        {
          ++at;
          continue;
        }
        result.Append(TranslateOwn(text.Substring(own, at - own))).Append(text, at, end - at);
        own = at = end;
      }
      return result.Append(TranslateOwn(text.Substring(own))).ToString();
    }

    // Where something ends that is not the library's own: what it writes between quotes, a path, or a text that was noted.
    static int EndOfGiven(string text, int at)
    {
      int end = at;
      if (given.Length != 0)
      {
        bool named = IsBehindNoun(text, at);
        foreach (string one in given)
        {
          if (!named && one[0] != '/') continue;
          if (at + one.Length > end && string.CompareOrdinal(text, at, one, 0, one.Length) == 0) end = at + one.Length;
        }
      }
      if (end != at) return end;
      if (text[at] == '/' && at > 0 && text[at - 1] == ' ')
      {
        while (end < text.Length && !char.IsWhiteSpace(text[end])) ++end;
        return end;
      }
      if (text[at] != '"') return at;
      for (end = at + 1; end < text.Length && text[end] != '"' && text[end] != '\n'; ++end)
      {
        if (text[end] == '\\') ++end;
      }
      return Math.Min(end + 1, text.Length);
    }

    static bool IsBehindNoun(string text, int at)
    {
      if (at == 0 || text[at - 1] != ' ') return false;
      foreach (string noun in nouns)
      {
        if (at >= noun.Length && string.CompareOrdinal(text, at - noun.Length, noun, 0, noun.Length) == 0) return true;
      }
      return false;
    }

    static string TranslateOwn(string text)
    {
      for (int i = 0; i < phrases.Length; i += 2) text = text.Replace(phrases[i], phrases[i + 1]);
      var result = new StringBuilder(text.Length);
      for (int at = 0; at < text.Length; )
      {
        int end = at;
        while (end < text.Length && IsOfWord(text[end])) ++end;
        while (end > at && text[end - 1] == '.') --end;
        if (end == at)
        {
          result.Append(text[at++]);
          continue;
        }
        string word = text.Substring(at, end - at), found = Find(word);
        at = found != null && string.CompareOrdinal(text, end, "()", 0, 2) == 0 ? end + 2 : end;
        result.Append(found ?? word);
      }
      return result.ToString();
    }

    static bool IsOfWord(char one)
    {
      return (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z') || (one >= '0' && one <= '9') || one == '_' || one == '.';
    }

    /// <summary>What C# calls something; null if it is the same.</summary>
    internal static string Find(string word)
    {
      string found;
      if (Names.OfC.TryGetValue(word, out found) || words.TryGetValue(word, out found)) return found;
      if (Array.IndexOf(properties, word) < 0) return null;
      var name = new StringBuilder(word.Length);
      foreach (string part in word.Split('_')) name.Append(char.ToUpperInvariant(part[0])).Append(part, 1, part.Length - 1);
      return name.ToString();
    }
  }

  /// <summary>A text that lives as long as a call needs it.</summary>
  struct CText : IDisposable
  {
    internal IntPtr Pointer;

    internal CText(string text, string name)
    {
      Pointer = IntPtr.Zero;
      if (text == null) return;
      if (text.IndexOf('\0') >= 0)
      {
        throw new ArgumentException("the text contains a 0 character, which a C string cannot hold; leave it out", name);
      }
      Words.Note(text);
      byte[] bytes = Encoding.UTF8.GetBytes(text);
      Pointer = Marshal.AllocHGlobal(bytes.Length + 1);
      Marshal.Copy(bytes, 0, Pointer, bytes.Length);
      Marshal.WriteByte(Pointer, bytes.Length, 0);
    }

    public void Dispose()
    {
      if (Pointer != IntPtr.Zero) Marshal.FreeHGlobal(Pointer);
      Pointer = IntPtr.Zero;
    }
  }
}
