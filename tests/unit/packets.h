// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The packets of a message, for tests that send only some of them, or others than the library sends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/share/wire/protocol.h"
#include "platform/socket.h"

namespace gpumem::core {

struct Packet {
  std::vector<uint8_t> bytes;
  platform::Descriptors descriptors;
};

// Sets the counts of the message.
inline std::vector<Packet> split_message(Message& message, platform::Descriptors descriptors,
                                         size_t most = platform::kDescriptorsPerPacket) {
  message.descriptor_count = static_cast<uint32_t>(descriptors.size());
  std::vector<Packet> packets;
  size_t done = 0;
  do {
    const size_t count = std::min(descriptors.size() - done, most);
    Message more = message_of(MessageType::kMore);
    more.number = message.number;
    more.descriptor_count = message.descriptor_count;
    Message& head = packets.empty() ? message : more;
    head.packet_count = static_cast<uint32_t>(count);
    Packet packet{encode_message(head), {}};
    for (size_t i = 0; i < count; ++i)
      packet.descriptors.push_back(std::move(descriptors[done + i]));
    packets.push_back(std::move(packet));
    done += count;
  } while (done < descriptors.size());
  return packets;
}

}  // namespace gpumem::core
