// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The address-searchable table of an instance's memory. A memory whose device addresses differ from its host
// addresses is entered under both.
#pragma once

#include <cstdint>
#include <map>
#include <shared_mutex>

#include "core/object.h"
#include "gpumem/memory.h"

namespace gpumem::core {

class Memory;

class Registry {
 public:
  struct Entry {
    uint64_t size = 0;
    Memory* memory = nullptr;
    // The backend is giving the memory back. Until it has, the address belongs to nobody that could be told;
    // afterwards it may belong to a new memory before this entry is erased.
    bool leaving = false;
  };
  using Map = std::map<uint64_t, Entry>;
  using Node = Map::node_type;

  // Where an address was found: a counted reference and the offset.
  struct Found {
    Ref<Memory> memory;
    uint64_t base = 0;  // of the entry, so host or device base as the address was
    uint64_t offset = 0;
    // There is an entry, but its memory is just being made or destroyed by another call: `memory` is empty,
    // and the driver must not be asked about the address.
    bool in_transition = false;
    gpumem_kind transition_kind = GPUMEM_KIND_UNKNOWN;
  };

  // Allocates a node now, so that insert() cannot fail later (COM-8).
  static Node make_node() {
    Map map;
    map.emplace(0, Entry{});
    return map.extract(map.begin());
  }

  void insert(Node node, uint64_t base, uint64_t size, Memory* memory) noexcept;
  // Inserts unless the range has a byte in common with an entry, whose kind is then handed out.
  bool insert_unless_overlap(Node& node, uint64_t base, uint64_t size, Memory* memory,
                             gpumem_kind* other) noexcept;
  // Marks the entry of a memory as leaving, or as staying after all.
  void set_leaving(uint64_t base, const Memory* memory, bool leaving) noexcept;
  // Erases the entry of a memory, if the address has not been taken by another one.
  void erase(uint64_t base, const Memory* memory) noexcept;

  // The live memory that holds an address, or an empty reference.
  Found find(uint64_t address) const;
  // Whether an entry that stays begins behind the first byte of a range, and none holds the first byte.
  bool begins_inside(uint64_t base, uint64_t size) const;

 private:
  Map::const_iterator first_overlap(uint64_t base, uint64_t size) const;
  Map::const_iterator leaving_registration(uint64_t base, uint64_t size) const;
  bool is_leaving(uint64_t address, gpumem_kind* kind) const;

  mutable std::shared_mutex mutex_;
  Map map_;
};

}  // namespace gpumem::core
