// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The service manager that started this process, by the protocols of sd_notify(3) and sd_listen_fds(3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::platform {

// Sends to $NOTIFY_SOCKET.
class Notifier {
 public:
  // INVALID_STATE if the variable is not set, NOT_FOUND if nobody listens there.
  static Result<Notifier> open();
  // One packet, with a descriptor if that is not negative. BUSY if there is no room in time.
  Result<void> send(const std::string& text, int file_descriptor, Deadline deadline) const;

 private:
  Descriptor socket_;
};

struct NamedDescriptor {
  int value = -1;    // stays the process's
  std::string name;  // empty if the service manager gave none
};
// What the process was started with ($LISTEN_FDS); none if it is meant for another process.
std::vector<NamedDescriptor> inherited_descriptors();

// How many descriptors the service manager stores ($FDSTORE); none if it does not say.
std::optional<size_t> store_size();

// Orders descriptors, equal if they share one open file. Where the kernel does not tell, all differ.
bool opened_before(int a, int b);

}  // namespace gpumem::platform
