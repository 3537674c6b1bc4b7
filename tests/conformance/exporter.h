// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A second process that shares memory and events, and does as it is told. The test is the importer.
#pragma once

#include <optional>
#include <string>

#include "harness.h"

namespace conformance {

class Exporter {
 public:
  // `peers` and `masked` as in gpumem_host_options.
  explicit Exporter(const std::string& peers = "all", const std::string& masked = {})
      : peer_("exporter", {peers, masked}) {}

  // What it makes has a number there.
  uint64_t alloc(uint64_t size, gpumem_memory_flags require = GPUMEM_MEMORY_SHAREABLE);
  uint64_t buffer(uint64_t size, gpumem_location location = GPUMEM_LOCATION_DEVICE);
  // Allocates from the one pool of the exporter, which can be shared.
  uint64_t pool_block(uint64_t size, gpumem_memory_flags flags = 0);
  // Returns the bytes that the pool keeps.
  uint64_t trim_pool();
  uint64_t event();
  gpumem_status destroy(uint64_t number);
  gpumem_status resize(uint64_t number, uint64_t size);
  void put(uint64_t number, uint64_t offset, uint64_t size, uint32_t seed);
  bool holds(uint64_t number, uint64_t offset, uint64_t size, uint32_t seed);

  struct Shared {
    gpumem_status status = GPUMEM_ERROR_INTERNAL;
    gpumem_share_handle handle{};
  };
  Shared try_share(uint64_t number, uint64_t offset, const gpumem_export_desc& desc);
  gpumem_share_handle share(uint64_t number, uint64_t offset = 0, gpumem_access access = 0,
                            gpumem_export_flags flags = 0);
  gpumem_status revoke(const gpumem_share_handle& handle);
  // Over the socket of socket(). The answer follows what is sent: sent() returns it once that was received.
  void send(const gpumem_share_handle& handle, uint64_t lease_ns = 0);
  gpumem_status sent();
  int socket() const { return peer_.socket(); }
  gpumem_status import(const gpumem_share_handle& handle);

  // The event is recorded in a stream that is held, or in one that is not.
  void record(uint64_t number, bool held);
  void let_go();

  gpumem_status open_hub(const std::string& path, const std::string& token = {}, gpumem_hub_flags flags = 0,
                         uint32_t names_max = 0);
  gpumem_status publish(const std::string& name, const gpumem_share_handle& handle, uint64_t version = 0,
                        uint32_t keep = 0, gpumem_access access = 0, uint8_t fingerprint = 0);
  gpumem_status withdraw(const std::string& name, uint64_t version = 0);
  gpumem_status close_hub();
  // Takes all descriptors that the process may have.
  void use_up_descriptors();
  // Publishes in a keeper of another process.
  gpumem_status deposit(const std::string& path, const std::string& name, const gpumem_share_handle& handle);

  pid_t pid() const { return peer_.pid(); }
  bool signal(int number) const { return peer_.signal(number); }
  void kill() { peer_.kill(); }
  void end();

  struct Order;
  struct Answer;

 private:
  Answer ask(const Order& order);
  Answer hear();
  Peer peer_;
};

}  // namespace conformance
